"""Figures are drawn from records, with their numbers and their command."""

import dataclasses

import numpy as np
import pytest

from ersac import api
from ersac.analysis import figures
from ersac.runs import disk, exits, run_dir
from ersac.runs.results import Result
from ersac.runs.run_dir import EpisodeStats, Metrics
from ersac.sweeps import catalogue


def make_result(instance: catalogue.Instance, solved: int | None) -> Result:
    """A run that is solved at an episode and never fails after it; None: never solved."""
    settings = instance.settings
    goals = np.zeros(settings.run.episodes if solved is None else solved + 50, bool)
    if solved is not None:
        goals[solved - 80 :] = True
    metrics = Metrics(np.zeros(1), {})
    stats = EpisodeStats(settings.run.seed, goals, goals.astype(np.float32))
    return Result(settings, [stats], metrics, [], 1, 1.0, 1.0, 1.0, [])


def wanted(label: str) -> list[catalogue.Instance]:
    """Every run of a figure's sweeps."""
    found = (catalogue.SWEEPS[name] for name in figures.FIGURES[label].sweeps)
    return [
        instance for sweep in found for instance in catalogue.instances(sweep, sweep.sizes["smoke"])
    ]


def sample(label: str, rule) -> list[figures.SolveRun]:
    found = [
        (instance, instance.settings, make_result(instance, rule(instance)).seeds[0].goals)
        for instance in wanted(label)
    ]
    return [
        figures.SolveRun(instance.line, settings.env.depth, settings.run.episodes, goals)
        for instance, settings, goals in found
    ]


def text_of(figure) -> str:
    axes = figure.axes[0]
    words = [
        text.get_text()
        for text in (*axes.texts, *(axes.get_legend().get_texts() if axes.get_legend() else ()))
    ]
    return " ".join([*words, figure.get_supxlabel()])


@pytest.mark.parametrize("label", figures.FIGURES)
def test_every_figure_is_drawn_with_and_without_solved_runs(label):
    for rule in (lambda instance: None, lambda instance: 100 + instance.settings.env.depth):
        figure, numbers = figures.draw_figure(label, sample(label, rule), "smoke", "the command")
        assert figures.figure_png(figure).startswith(b"\x89PNG")
        assert numbers
        assert "the command" in text_of(figure)
        assert ("smoke" in text_of(figure)) == bool(figures.FIGURES[label].sweeps)


def test_the_papers_scale_has_no_watermark():
    figure, _ = figures.draw_figure(
        "f-robustness_lambda", sample("f-robustness_lambda", lambda instance: 200), "paper", ""
    )
    assert "smoke" not in text_of(figure)


def test_the_numbers_of_a_figure_are_those_of_its_records():
    quadratic = lambda instance: (
        instance.settings.env.depth**2 + 100 if instance.line == "ersac" else None
    )
    label = "f-DeepSea_solved_v_boot_dqn"
    _, numbers = figures.draw_figure(label, sample(label, quadratic), "smoke", "")
    assert list(numbers) == ["ersac", "optimism", "vanilla", "boot-dqn", "boot-dqn-large"]
    assert numbers["ersac"]["median"] == {5: 125, 10: 200, 15: 325, 20: 500}
    assert numbers["ersac"]["solved"] == dict.fromkeys((5, 10, 15, 20), "3 of 3")
    assert (
        numbers["ersac"]["deepest"],
        numbers["vanilla"]["deepest"],
        numbers["vanilla"]["median"],
    ) == (20, None, {})
    power = lambda instance: round(2 * instance.settings.env.depth**1.5 + 80)
    _, numbers = figures.draw_figure(
        "f-solve_time_v_depth", sample("f-solve_time_v_depth", power), "smoke", ""
    )
    assert list(numbers) == ["ersac", "fit"]
    assert list(numbers["fit"]) == ["ersac"]


def test_a_figure_shows_the_ended_runs_of_all_its_sweeps(tmp_path):
    label = "f-DeepSea_solved_v_boot_dqn"
    homes = [
        (
            tmp_path / ("boot" if instance.settings.agent_name.startswith("boot") else "ersac"),
            instance,
        )
        for instance in wanted(label)
    ]
    for home, instance in homes[1:]:
        disk.make_directory(home / instance.name)
        run_dir.write_settings(home / instance.name, instance.settings)
        result = make_result(instance, 100 + instance.settings.env.depth)
        run_dir.write_results(
            home / instance.name, result.seeds, result.metrics, [], None, result.summary()
        )
    result_json = figures.make_figure(label, homes, "smoke", "the command", tmp_path / "figures")
    assert (result_json["runs"], result_json["missing"]) == (len(homes) - 1, [homes[0][1].name])
    assert (result_json["seeds"], len(result_json["settings_hash"]), len(result_json["date"])) == (
        "1000-1002",
        12,
        len("2026-11-16"),
    )
    assert result_json["numbers"]["ersac"]["solved"][5] == "2 of 2"
    assert result_json["numbers"]["boot-dqn-large"]["solved"] == {5: "2 of 2", 10: "2 of 2"}
    with pytest.raises(exits.Resumable, match=r"^no run in .*ersac has ended"):
        figures.make_figure(label, homes[:1], "smoke", "the command", tmp_path / "figures")


def test_the_median_is_none_where_half_the_runs_fail():
    runs = sample(
        "f-solve_time_v_depth", lambda instance: 200 if instance.settings.run.seed == 1000 else None
    )
    assert figures.median_solved(runs[:3]) is None
    assert figures.median_solved(runs[:1]) == 200


def test_the_goal_share_stays_constant_after_a_run_ends():
    goals = np.r_[np.zeros(100, bool), np.ones(100, bool)]
    np.testing.assert_array_equal(
        figures.recent_goal_share(goals, np.array([50, 100, 150, 200, 900])), [0, 0, 0.5, 1, 1]
    )


def test_a_scale_changes_depths_seeds_and_episodes_only():
    for sweep in catalogue.SWEEPS.values():
        learners = [
            {
                (instance.line, instance.settings.agent)
                for instance in catalogue.instances(sweep, sweep.sizes[scale])
            }
            for scale in catalogue.SCALES
        ]
        assert set().union(*learners) == {(line.name, line.learner) for line in sweep.lines}
    assert dataclasses.asdict(api.make_settings().agent) == dataclasses.asdict(
        catalogue.SWEEPS["solve-time"].lines[0].learner
    )
