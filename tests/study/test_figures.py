"""Every figure of DeepSea is drawn from records, says what is in them, and carries its command."""

import dataclasses

import numpy as np
import pytest

from ersac import api
from ersac.study import figures, sweeps
from ersac.study.records import Metrics, SeedFacts
from ersac.study.results import Result


def made_up(instance: sweeps.Instance, solved: int | None) -> figures.Run:
    """A run that fails until it is solved, and never fails after it."""
    settings = instance.settings
    goals = np.zeros(settings.run.episodes if solved is None else solved + 50, bool)
    if solved is not None:
        goals[solved - 80 :] = True
    metrics = Metrics(np.zeros(1), *np.zeros((3, 1, 1)))
    facts = SeedFacts(settings.run.seed, goals, goals.astype(np.float32))
    return figures.Run(instance.line, Result(settings, [facts], metrics, [], 1, 1.0, 1.0, 1.0, []))


def sample(name: str, rule) -> list[figures.Run]:
    sweep = sweeps.SWEEPS[name]
    return [made_up(each, rule(each)) for each in sweeps.instances(sweep, sweep.sizes["smoke"])]


def text_of(figure) -> str:
    axes = figure.axes[0]
    words = [text.get_text() for text in (*axes.texts, *(axes.get_legend().get_texts() if axes.get_legend() else ()))]
    return " ".join([*words, figure.get_supxlabel()])


@pytest.mark.parametrize("label", figures.FIGURES)
def test_every_figure_is_drawn_even_where_nothing_was_solved(label):
    sweep = figures.FIGURES[label].sweep
    for rule in (lambda each: None, lambda each: 100 + each.settings.env.depth):
        runs = [] if sweep is None else sample(sweep, rule)
        figure, numbers = figures.draw(label, runs, "smoke", "the command")
        assert figures.as_png(figure).startswith(b"\x89PNG")
        assert numbers
        assert "the command" in text_of(figure)
        assert ("smoke" in text_of(figure)) == (sweep is not None)


def test_the_papers_scale_has_no_watermark():
    figure, _ = figures.draw("f-robustness_lambda", sample("robustness-lambda", lambda each: 200), "paper", "")
    assert "smoke" not in text_of(figure)


def test_the_numbers_of_a_figure_are_those_of_its_records():
    quadratic = lambda each: each.settings.env.depth**2 + 100 if each.line == "ersac" else None
    _, numbers = figures.draw("f-DeepSea_solved_v_boot_dqn", sample("solve-time", quadratic), "smoke", "")
    assert numbers["ersac"]["median"] == {5: 125, 10: 200, 15: 325, 20: 500}
    assert numbers["ersac"]["solved"] == dict.fromkeys((5, 10, 15, 20), "3 of 3")
    assert (numbers["ersac"]["deepest"], numbers["vanilla"]["deepest"], numbers["vanilla"]["median"]) == (20, None, {})
    power = lambda each: round(2 * each.settings.env.depth**1.5 + 80)
    _, numbers = figures.draw("f-solve_time_v_depth", sample("solve-time", power), "smoke", "")
    assert list(numbers) == ["ersac", "fit"]


def test_half_a_failure_is_a_median_beyond_the_budget():
    runs = sample("solve-time", lambda each: 200 if each.settings.run.seed == 1000 else None)
    assert figures.median_solved(runs[:3]) is None
    assert figures.median_solved(runs[:1]) == 200


def test_a_share_keeps_its_last_value_where_a_run_ended_early():
    goals = np.r_[np.zeros(100, bool), np.ones(100, bool)]
    np.testing.assert_array_equal(figures.recent_share(goals, np.array([50, 100, 150, 200, 900])), [0, 0, 0.5, 1, 1])


def test_a_scale_changes_depths_seeds_and_episodes_only():
    for sweep in sweeps.SWEEPS.values():
        learners = [{(each.line, each.settings.learner) for each in sweeps.instances(sweep, sweep.sizes[scale])} for scale in sweeps.SCALES]
        assert set().union(*learners) == {(line.name, line.learner) for line in sweep.lines}
    assert dataclasses.asdict(api.make_settings().learner) == dataclasses.asdict(sweeps.ERSAC.learner)
