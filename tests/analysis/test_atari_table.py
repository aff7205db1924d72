"""The tables and figures of the Atari sweep, from records in directories and in packs."""

import json
from pathlib import Path

import numpy as np
import pytest

from ersac import cli, config
from ersac.analysis import atari_figures, atari_scores, atari_table, pack, scores
from ersac.runs import disk, exits, run_dir
from ersac.runs.results import Result
from ersac.runs.run_dir import EpisodeStats, Metrics
from ersac.sweeps import ladder, runner

pytest.importorskip("ale_py")


def make_stats(cell: ladder.Cell, score: float) -> EpisodeStats:
    """Episodes of 500 steps whose return rises from a random player's to a score."""
    random = config.reference_scores()[cell.task].random
    steps = np.arange(1, cell.settings.run.steps // 500 + 1) * 500
    returns = random + (score - random) * steps / steps[-1]
    return EpisodeStats(
        cell.settings.run.seed, np.zeros(len(steps), bool), returns.astype(np.float32), steps
    )


def human_share(cell: ladder.Cell) -> float:
    """The share of the human score that a run reaches in these tests."""
    return (2.0 if cell.agent == "ersac-replay" else 1.0) + 0.1 * (cell.settings.run.seed - 1000)


def score_of(cell: ladder.Cell) -> float:
    reference = config.reference_scores()[cell.task]
    return reference.random + human_share(cell) * (reference.human - reference.random)


def write_cell(home: Path, cell: ladder.Cell, episodes: int | None = None) -> None:
    stats = make_stats(cell, score_of(cell))
    stats = EpisodeStats(stats.seed, *(column[:episodes] for column in stats[1:4]))
    disk.make_directory(home / cell.name)
    run_dir.write_fingerprint(home / cell.name, cell.settings.env)
    run_dir.write_settings(home / cell.name, cell.settings)
    result = Result(cell.settings, [stats], Metrics(np.zeros(1), {}), [], 1, 1.0, 1.0, 1.0, [])
    run_dir.write_results(home / cell.name, [stats], result.metrics, [], None, result.summary())


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> tuple[ladder.LadderPlan, Path]:
    """All runs of the scale `smoke`, as records/atari57-smoke."""
    plan = ladder.plan_ladder("atari57", "smoke")
    home = tmp_path_factory.mktemp("records") / plan.title
    with runner.lock_sweep(home, plan.title, plan.cells):
        for cell in plan.cells:
            write_cell(home, cell)
    return plan, home


def test_the_table_has_the_scores_of_the_records(smoke):
    plan, home = smoke
    curves, _ = atari_table.read_atari(plan, home, pytest.fail)
    (freeway,) = curves["ersac-replay"]["freeway"]
    assert (freeway.steps[0], freeway.steps[-1], freeway.end) == (2_000, 200_000, 200_000)  # frames
    table = atari_table.write_atari(plan, home, pytest.fail)
    assert [row.game for row in table.rows] == [game for game in plan.tasks for _ in range(2)]
    assert {row.frames for row in table.rows} == {200_000}
    for row in table.rows:
        cell = next(c for c in plan.cells if (c.task, c.agent) == (row.game, row.agent))
        last = make_stats(cell, score_of(cell)).returns[-scores.RELIABLE_WINDOW :]
        assert row.score == pytest.approx(last.mean(), rel=1e-5)
        assert row.normalised == pytest.approx(human_share(cell) * 0.505, rel=1e-3)
    ersac, vanilla = table.aggregates
    assert (ersac.agent, ersac.games, ersac.runs, ersac.frames) == ("ersac-replay", 3, 3, 200_000)
    assert ersac.median.value == pytest.approx(2 * vanilla.median.value)
    assert vanilla.iqm.value == pytest.approx(0.505, rel=1e-3)
    (comparison,) = table.comparisons
    assert comparison.improvement == (1, 1, 1)
    assert comparison.speedup == pytest.approx(2, rel=0.02)
    assert comparison.describe().startswith("ersac-replay is above vanilla-replay in 100% of pairs")
    data = json.loads((home / "table.json").read_text())
    assert data["aggregates"][0]["median"]["value"] == ersac.median.value
    lines = (home / "table.md").read_text().splitlines()
    assert len(lines) == 5
    assert lines[2].startswith("| freeway | 200,000 | 0 | 29.6 | ")
    assert lines[2].endswith("| 0.004878 | 0.2618 | 0.7512 | 2.828 |")  # the first million frames


def test_only_games_that_every_agent_has_are_aggregated(smoke, tmp_path):
    plan, _ = smoke
    for cell in plan.cells[:3]:  # both agents in the first game, one in the second
        write_cell(tmp_path, cell)
    damaged = tmp_path / plan.cells[1].name / "facts.npz"
    curves, missing = atari_table.read_atari(plan, tmp_path, pytest.fail)
    table = atari_table.atari_numbers(plan, curves)
    assert [part.games for part in table.aggregates] == [1, 1]
    assert len(table.rows) == 3
    assert missing == list(plan.cells[3:])
    damaged.write_bytes(b"nothing")
    notes: list[str] = []
    table = atari_table.write_atari(plan, tmp_path, notes.append)
    (alone,) = table.aggregates  # the other agent has nothing left
    assert (len(table.rows), alone.games, table.comparisons) == (2, 2, [])
    assert len(notes) == 1
    assert "facts.npz" in notes[0]


def test_a_run_that_ended_no_episode_has_no_score(smoke, tmp_path, capsys):
    plan, _ = smoke
    write_cell(tmp_path, plan.cells[0], episodes=0)
    notes: list[str] = []
    assert atari_table.write_atari(plan, tmp_path, notes.append) == ([], [], [])
    assert notes == [f"{plan.cells[0].name} has no score: it ended no episode"]
    assert not (tmp_path / "table.json").exists()


def figure_text(figure) -> str:
    words = [text.get_text() for axes in figure.axes for text in (*axes.texts, axes.title)]
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    words += [text.get_text() for legend in legends for text in legend.get_texts()]
    return " ".join([*words, figure.get_suptitle(), figure.get_supxlabel()])


@pytest.mark.parametrize("label", atari_figures.ATARI_FIGURES)
def test_every_figure_has_our_curves_and_the_published_ones(label, smoke):
    plan, home = smoke
    curves, _ = atari_table.read_atari(plan, home, pytest.fail)
    figure, numbers = atari_figures.draw_atari_figure(label, plan, curves, "the command")
    text = figure_text(figure)
    for part in ("smoke", "the command", "ersac-replay", "vanilla-replay", "IQN (Dopamine"):
        assert part in text
    assert numbers["rows"]
    games = {"f-atari_hard_exp": 7, "f-atari_all_games": 3}.get(label)
    assert len(numbers.get("panels", ())) == (games or 0)
    if label == "f-atari_hard_exp":
        assert numbers["games with runs"]["ersac-replay"] == ["freeway", "gravitar"]
        assert {row["game"] for row in numbers["rows"]} == {"freeway", "gravitar"}


def test_the_median_figure_draws_the_medians(smoke):
    plan, home = smoke
    curves, _ = atari_table.read_atari(plan, home, pytest.fail)
    figure, _ = atari_figures.draw_atari_figure("f-atari_human_normalized_median", plan, curves, "")
    lines = {line.get_label(): line.get_xydata() for line in figure.axes[0].get_lines()}
    np.testing.assert_allclose(lines["vanilla-replay, 3 runs"][-1], [0.2, 50.5], rtol=2e-3)
    rainbow = [
        atari_scores.normalise_scores(
            game, atari_scores.published_curves()["Rainbow"][game].mean[0]
        )
        for game in plan.tasks
    ]
    np.testing.assert_allclose(lines["Rainbow (Dopamine)"], [[0.5, 100 * np.median(rainbow)]])


def test_a_pack_has_the_figures_of_its_directory(smoke, tmp_path, capsys):
    plan, home = smoke
    path = tmp_path / "atari57-smoke.json"
    with pytest.raises(SystemExit) as stop:
        cli.main(["sweep", "atari57", "--out", str(home), "--pack", str(path)])
    assert stop.value.code == exits.OK
    assert capsys.readouterr().out == f"packed 6 runs in {path}; 0 have failed\n"
    packed = pack.read_pack(path)
    curves, missing = atari_table.read_atari(plan, packed, pytest.fail)
    assert not missing
    assert atari_table.atari_numbers(plan, curves) == atari_table.atari_numbers(
        plan, atari_table.read_atari(plan, home, pytest.fail)[0]
    )
    label, numbers = "f-atari_human_normalized_median", []
    for records in (tmp_path, home):  # a directory of packs, and that of the sweep
        with pytest.raises(SystemExit) as stop:
            cli.main(["figure", label, "--records", str(records), "--json"])
        assert stop.value.code == exits.OK
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (result["runs"], result["missing"], result["seeds"]) == (6, [], "1000-1000")
        assert Path(result["picture"]).read_bytes().startswith(b"\x89PNG")
        numbers.append(result["numbers"])
    assert numbers[0] == numbers[1]


def test_errors_are_one_line(smoke, tmp_path, capsys):
    def error(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as stop:
            cli.main(list(words))
        return stop.value.code, capsys.readouterr().err

    code, line = error("sweep", "atari57", "--tasks", "Freway,Pong", "--out", str(tmp_path / "a"))
    assert (code, line) == (
        exits.SETTINGS,
        "ersac: unknown Atari game 'Freway', not one of the 57; did you mean freeway?\n",
    )
    code, line = error("sweep", "atari57", "--agents", "vanila", "--out", str(tmp_path / "a"))
    assert (code, line.count("\n")) == (exits.SETTINGS, 1)
    assert "did you mean vanilla?" in line
    code, line = error("sweep", "atari57", "--address", "auto", "--out", str(tmp_path / "a"))
    assert code == exits.SETTINGS
    assert line == "ersac: --address, --cores and --accelerators need --engine ray\n"
    code, line = error("figure", "f-atari_hard_exp", "--records", str(tmp_path))
    assert code == exits.RESUMABLE
    assert (
        line == f"ersac: no run in {tmp_path}/atari57-smoke has ended: there is nothing to draw\n"
    )
    assert not list(tmp_path.iterdir())
