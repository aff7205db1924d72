"""The ladder: its cells, resuming after errors and signals, and its table."""

import contextlib
import dataclasses
import json
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ersac import api, cli, config, display
from ersac.analysis import ladder_table
from ersac.runs import disk, exits, run_dir
from ersac.runs.results import Result
from ersac.runs.run_dir import EpisodeStats, Metrics
from ersac.sweeps import catalogue, ladder, ladder_tasks, runner

GOALS_80 = np.r_[np.zeros(50, bool), np.ones(100, bool)]  # solved with episode 130


def make_stats(seed: int, goals: np.ndarray = GOALS_80, length: int = 10) -> EpisodeStats:
    """Episodes of equal length with return 1 where they reach the goal."""
    steps = length * np.arange(1, len(goals) + 1)
    return EpisodeStats(seed, goals, goals.astype(np.float32), steps)


def write_run(home: Path, cell: ladder.Cell, stats: EpisodeStats) -> None:
    """Write the records of an ended run."""
    disk.make_directory(home / cell.name)
    run_dir.write_settings(home / cell.name, cell.settings)
    result = Result(cell.settings, [stats], Metrics(np.zeros(1), {}), [], 1, 1.0, 1.0, 1.0, [])
    run_dir.write_results(home / cell.name, [stats], result.metrics, [], None, result.summary())


class Trainer:
    """Replaces api.run_experiment: raises an error for some cells, writes records for others."""

    def __init__(self, home: Path, errors: dict[str, BaseException] | None = None) -> None:
        self.home, self.errors, self.ran = home, errors or {}, []

    def __call__(self, settings, out, screen, resume, poll):
        assert resume
        cell = next(
            cell for cell in ladder.plan_ladder("ladder", "smoke").cells if cell.name == out.name
        )
        assert run_dir.settings_hash(cell.settings) == run_dir.settings_hash(settings)
        self.ran.append(f"{cell.task}-{cell.agent}")
        if error := self.errors.get(self.ran[-1]):
            disk.make_directory(out)
            raise error
        write_run(self.home, cell, make_stats(settings.run.seed))


def run(home: Path, trainer: Trainer, **chosen: str) -> ladder.LadderReport:
    return ladder.run_ladder(
        ladder.plan_ladder("ladder", "smoke", **chosen), home, trainer, display.NullDisplay()
    )


@pytest.mark.parametrize("name", ladder_tasks.LADDERS)
@pytest.mark.parametrize("scale", catalogue.SCALES)
def test_names_are_unique_and_seeds_are_those_of_the_ladder(name, scale):
    plan = ladder.plan_ladder(name, scale)
    names = [cell.name for cell in plan.cells]
    assert len(set(names)) == len(names) > 0
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-") for name in names)
    seeds = {cell.settings.run.seed for cell in plan.cells}
    assert seeds == set(plan.seeds)
    assert seeds <= ({0, 1} if name == "ladder-tune" else set(range(1000, 1100)))
    present = len(plan.cells) + len(plan.unavailable) * len(seeds)
    assert present == len(plan.tasks) * len(plan.agents) * len(seeds)


def test_a_scale_changes_tasks_seeds_and_steps_only():
    learners = [
        {
            (cell.task, cell.agent): cell.settings.agent
            for cell in ladder.plan_ladder("ladder", scale).cells
        }
        for scale in catalogue.SCALES
    ]
    assert learners[0].items() <= learners[1].items() <= learners[2].items()
    assert {cell.settings.run.steps for cell in ladder.plan_ladder("ladder", "smoke").cells} == {
        4_000
    }
    assert {
        cell.task: cell.settings.run.steps for cell in ladder.plan_ladder("ladder", "desk").cells
    } == {name: ladder_tasks.TASKS[name].steps for name in ladder_tasks.DEFAULT_TASKS}


def test_an_unknown_estimator_makes_a_cell_unavailable(monkeypatch):
    monkeypatch.delitem(config.UNCERTAINTIES, "hashed", raising=False)
    plan = ladder.plan_ladder("ladder", "smoke", agents="hashed,ersac")
    assert {cell.agent for cell in plan.selected} == {"ersac"}
    assert set(plan.unavailable) == {"deep-sea-10-hashed", "lock-hashed"}
    lines = list(
        ladder_table.ladder_lines(plan, ladder.LadderReport(runner.Report(0, 2, {}, {}), {}), [])
    )
    assert lines[0].startswith(
        "not available: deep-sea-10-hashed, lock-hashed: unknown uncertainty 'hashed'"
    )


def test_baselines_have_the_entropy_weight_of_their_task(monkeypatch):
    monkeypatch.setitem(ladder_tasks.ALPHA["vanilla"], "lock", 0.25)
    found = {
        (cell.task, cell.agent): cell.settings.agent
        for cell in ladder.plan_ladder("ladder", "smoke").cells
    }
    assert found["lock", "vanilla"].risk.alpha == 0.25
    assert found["deep-sea-10", "vanilla"].risk.alpha == 0.01
    tried = ladder.plan_ladder("ladder-tune", "smoke").cells
    assert {
        cell.settings.agent.risk.alpha for cell in tried if cell.agent.startswith("vanilla")
    } == set(ladder_tasks.ALPHAS)


@pytest.mark.parametrize("name", [*ladder_tasks.DEFAULT_TASKS, "swingup-19"])
def test_every_task_can_be_made_and_pickled(name):
    task = ladder_tasks.TASKS[name]
    env = task.env_settings(3)
    assert env.target is not None or "deep-sea" in name  # which reports success itself
    sent = pickle.loads(pickle.dumps(env))
    env = task.make_gym_env(3) if task.make is None else sent.make()
    with contextlib.closing(env):
        env.reset(seed=0)
        assert len(env.step(0)) == 5


def test_cells_run_once_and_errors_do_not_stop_the_others(tmp_path, capsys):
    errors = {
        "deep-sea-10-ersac": ValueError("of any\nkind"),
        "deep-sea-10-vanilla": exits.NonFinite("reward is nan"),
        "lock-rnd": config.SettingsError("does not fit"),
    }
    first = Trainer(tmp_path, errors)
    ended = run(tmp_path, first, agents="ersac,vanilla,rnd,boot-dqn")
    assert len(first.ran) == 8
    (missing,), (failed,), (refused,) = (
        ended.report.missing,
        ended.report.failed,
        ended.refused,
    )
    assert missing.startswith("deep-sea-10-ersac-seed-1000-")
    assert ended.report.missing[missing] == "ValueError: of any kind"
    assert (failed[:20], ended.report.failed[failed]) == ("deep-sea-10-vanilla-", "reward is nan")
    assert refused.startswith("lock-rnd-")
    assert (ended.report.ended, ended.report.wanted) == (5, 8)
    assert f"ersac: {refused} cannot be run: does not fit\n" in capsys.readouterr().err
    with pytest.raises(exits.Resumable, match="1 of 8 runs are missing"):
        ended.report.raise_if_incomplete(tmp_path)

    second = Trainer(tmp_path)
    ended = run(tmp_path, second, agents="ersac,vanilla,rnd,boot-dqn")
    assert second.ran == ["deep-sea-10-ersac", "lock-rnd"]  # NonFinite is not tried again
    assert list(ended.report.failed) == [failed]
    assert not ended.report.missing


def test_a_damaged_cell_is_run_again(tmp_path):
    run(tmp_path, Trainer(tmp_path), tasks="lock", agents="ersac,vanilla")
    (path,) = tmp_path.glob("lock-vanilla-*/facts.npz")
    path.write_bytes(path.read_bytes()[:-10])
    again = Trainer(tmp_path)
    run(tmp_path, again, tasks="lock", agents="ersac,vanilla")
    assert again.ran == ["lock-vanilla"]


def test_a_signal_stops_the_ladder_and_the_same_command_resumes_it(tmp_path):
    stopped = Trainer(
        tmp_path, {"lock-ersac": exits.Stopped(15, "stopped; resume with: ersac resume x")}
    )
    with pytest.raises(
        exits.Stopped, match=r"^stopped in lock-ersac-.*; resume with the same command$"
    ) as stop:
        run(tmp_path, stopped)
    assert stop.value.number == 15
    assert stopped.ran[-1] == "lock-ersac"
    plan = ladder.plan_ladder("ladder", "smoke")
    with pytest.raises(exits.Stopped, match=r"^stopped; resume with the same command$"):
        ladder.run_ladder(plan, tmp_path, stopped, display.NullDisplay(), poll=lambda: 2)
    went_on = Trainer(tmp_path)
    run(tmp_path, went_on)
    assert len(stopped.ran) - 1 + len(went_on.ran) == len(plan.cells)
    assert went_on.ran[0] == "lock-ersac"


def test_another_sweeps_directory_is_refused(tmp_path):
    run(tmp_path, Trainer(tmp_path), tasks="lock", agents="ersac")
    with pytest.raises(config.SettingsError, match="holds another sweep: ladder-smoke"):
        ladder.run_ladder(
            ladder.plan_ladder("ladder-tune", "smoke"),
            tmp_path,
            Trainer(tmp_path),
            display.NullDisplay(),
        )


def test_a_row_has_the_median_step_at_which_80_of_100_reached_the_goal():
    never = make_stats(3, np.zeros(150, bool))
    row = ladder_table.ladder_row(
        "lock", "ersac", 2_000, [make_stats(1), make_stats(2, length=20), never]
    )
    assert row == ladder_table.LadderRow("lock", "ersac", 2_000, 3, 2, 2_600, 1.0, 0.0, 1.0)
    assert (
        ladder_table.ladder_row("lock", "ersac", 2_000, [make_stats(1), never, never]).solved_steps
        is None
    )  # the median is beyond the budget
    nothing = ladder_table.ladder_row("lock", "ersac", 2_000, [make_stats(1, np.zeros(0, bool))])
    assert nothing.describe() == "0 of 1 solved; no episode ended"
    assert row.describe() == "2 of 3 solved after 2,600 steps; return 1 (0 to 1)"


def test_the_best_entropy_weight_solves_most_then_soonest_then_has_the_highest_return():
    row = lambda task, alpha, solved, steps, end: ladder_table.LadderRow(
        task, f"vanilla-alpha-{alpha}", 9, 2, solved, steps, end, end, end
    )
    rows = [
        row("lock", 0.001, 1, None, 9.0),
        row("lock", 0.003, 2, 700, 1.0),
        row("lock", 0.01, 2, 500, 0.5),
    ]
    rows += [row("cartpole", 0.0003, 0, None, 20.0), row("cartpole", 0.03, 0, None, 30.0)]
    rows += [
        row("doorkey-8", alpha, 0, None, 0.0) for alpha in (0.0003, 0.003, 0.03)
    ]  # which says nothing
    assert ladder_table.best_alphas(rows) == {
        "vanilla": {"lock": 0.01, "cartpole": 0.03, "doorkey-8": 0.03}
    }


def write_peer(path: Path, **changes) -> None:
    record = {"task": "lock", "agent": "sb3-ppo", "seed": 1000, "steps": 4_000}
    record |= {
        "returns": [0.0] * 50 + [1.0] * 100,
        "goals": GOALS_80.tolist(),
        "when": list(range(40, 6_001, 40)),
    } | changes
    disk.make_directory(path.parent)
    disk.write(path, json.dumps(record).encode())


def test_peers_are_in_the_table_with_the_same_number_of_steps(tmp_path):
    run(tmp_path, Trainer(tmp_path), agents="ersac,vanilla")
    write_peer(tmp_path / "peers" / "a.json")
    write_peer(tmp_path / "peers" / "b.json", agent="sb3-dqn", steps=2_000)
    write_peer(tmp_path / "peers" / "c.json", seed=7)
    write_peer(tmp_path / "peers" / "d.json", when=[1, 2])
    write_peer(tmp_path / "peers" / "e.json", task="doorkey-8")
    noted = []
    plan = ladder.plan_ladder("ladder", "smoke", agents="ersac,vanilla")
    rows = ladder_table.write_ladder(plan, tmp_path, noted.append)
    assert [(row.task, row.agent) for row in rows] == [
        ("deep-sea-10", "ersac"),
        ("deep-sea-10", "vanilla"),
        ("lock", "ersac"),
        ("lock", "vanilla"),
        ("lock", "sb3-ppo"),
    ]
    assert (rows[2].solved_steps, rows[4].solved_steps) == (
        1_300,
        None,
    )  # 80 of 100 only after 5,200 of its steps
    assert rows[4].end_return == 0.5  # of the hundred episodes within 4,000 steps
    assert [
        "b.json" in noted[0],
        "c.json" in noted[1],
        "d.json is not what" in noted[2],
        len(noted),
    ] == [True, True, True, 3]
    table = json.loads((tmp_path / "table.json").read_text())
    assert table["rows"] == [row._asdict() for row in rows]
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert lines[0] == "| task | steps | `ersac` | `vanilla` | `sb3-ppo` |"
    assert lines[2].startswith(
        "| deep-sea-10 | 4,000 | 1 of 1 solved after 1,300 steps; return 1 (1 to 1) |"
    )
    assert lines[2].endswith("|  |")
    assert len(lines) == 4
    assert all(
        (tmp_path / "figures" / f"{task}.png").read_bytes().startswith(b"\x89PNG")
        for task in ("deep-sea-10", "lock")
    )


def test_a_figure_has_a_median_between_the_least_and_the_greatest_of_each_agent():
    seeds = {
        "ersac": [make_stats(1), make_stats(2, np.ones(150, bool))],
        "vanilla": [make_stats(1, np.zeros(0, bool))],
    }
    axes = ladder_table.draw_curves("lock", 1_500, seeds, "the command").axes[0]
    (line,) = axes.lines
    assert line.get_label() == "ersac, 2 seeds"
    steps, median = line.get_data()
    assert (steps[0], steps[-1]) == (10, 1_500)
    assert median[0] == 0.5  # of a failure and a success
    assert median[-1] == 1


@pytest.mark.filterwarnings("ignore")
def test_a_real_cell_is_trained_then_skipped_and_reported(tmp_path, capsys, monkeypatch):
    short = ladder_tasks.LADDERS["ladder"]._replace(
        sizes={"smoke": ladder_tasks.LadderSize(("deep-sea-10",), 1, 600)}
    )
    monkeypatch.setitem(ladder_tasks.LADDERS, "ladder", short)
    monkeypatch.setitem(
        ladder_tasks.TASKS,
        "deep-sea-10",
        ladder_tasks.TASKS["deep-sea-10"]._replace(make=partial(ladder_tasks.make_deep_sea, 2, 0)),
    )
    outputs = []
    for _ in range(2):
        with pytest.raises(SystemExit) as stop:
            cli.main(
                [
                    "sweep",
                    "ladder",
                    "--agents",
                    "ersac",
                    "--out",
                    str(tmp_path / "out"),
                    "--json",
                    "--quiet",
                ]
            )
        assert stop.value.code == 0
        outputs.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
        monkeypatch.setattr(api, "run_experiment", None)  # nothing is left to run
    assert outputs[0] == outputs[1]
    (row,) = outputs[0]["table"]
    assert (row["task"], row["agent"], row["seeds"], outputs[0]["ended"]) == (
        "deep-sea-10",
        "ersac",
        1,
        1,
    )
    assert -0.01 <= row["end_return"] <= 0.99
    (cell,) = (path for path in (tmp_path / "out").glob("deep-sea-10-ersac-*"))
    (seed,) = run_dir.read_results(cell)[0]
    assert (
        len(seed.goals) == 176
    )  # of two steps, and one that begins anew, in 16 environments, within two whole rollouts
    np.testing.assert_array_equal(seed.goals, seed.returns > 0.5)


def ersac(*argv: str) -> subprocess.CompletedProcess[str]:
    """A command in a process in which jax cannot be imported."""
    code = "import sys; sys.modules['jax'] = None; from ersac import cli; cli.main(sys.argv[1:])"
    return subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("ladder", "--scale", "dsk"), "unknown scale 'dsk'; did you mean desk?"),
        (("ladder", "--tasks", "lokc"), "unknown task 'lokc'; did you mean lock?"),
        (
            ("ladder-tune", "--agents", "ersac"),
            "unknown agent 'ersac'; known: vanilla-alpha-0.0003, ",
        ),
        (("ladder", "--engine", "rai"), "unknown engine 'rai'; did you mean ray?"),
        (
            ("solve-time", "--tasks", "lock"),
            "--tasks and --agents are options of `ersac sweep ladder` and atari57, not of solve",
        ),
    ],
)
def test_errors_are_one_line_and_come_before_jax(argv, message):
    done = ersac("sweep", *argv)
    assert done.returncode == 2
    assert done.stderr.startswith(f"ersac: {message}")
    assert done.stderr.count("\n") == 1


def test_the_list_of_sweeps_has_the_ladders():
    lines = ersac("sweep").stdout.splitlines()
    found = {words[0]: words[1:4] for line in lines if (words := line.split())}
    assert found["ladder"] == [str(count) for count in (2 * 6 * 1, 14 * 6 * 3, 14 * 6 * 10)]
    assert found["atari57"] == [str(count) for count in (3 * 2 * 1, 10 * 2 * 3, 57 * 2 * 5)]


def test_the_atari_sweep_has_the_papers_games_agents_and_frames():
    plans = [ladder.plan_ladder("atari57", scale) for scale in catalogue.SCALES]
    smoke, desk, paper = plans
    assert set(paper.tasks) == config.reference_scores().keys()
    frames = [plan.steps(plan.tasks[0]) * plan.cells[0].settings.env.frame_skip for plan in plans]
    assert frames == [200_000, 2_000_000, 200_000_000]
    assert set(smoke.tasks) < set(desk.tasks) < set(paper.tasks)
    assert set(ladder_tasks.HARD_EXPLORATION) < set(desk.tasks)
    vanilla = next(cell for cell in paper.cells if cell.agent == "vanilla-replay")
    assert vanilla.settings.agent.risk.alpha == 0.02
    assert {cell.settings.env.sticky for plan in plans for cell in plan.cells} == {0.25}
    assert smoke.command == "ersac sweep atari57 --scale smoke"


def test_games_of_the_atari_sweep_have_any_spelling():
    names = "MontezumaRevenge, ALE/Pong-v5,up_n_down"
    plan = ladder.plan_ladder("atari57", "smoke", names, "vanilla,ersac")
    assert plan.tasks == ("montezuma_revenge", "pong", "up_n_down")
    assert [(cell.task, cell.agent) for cell in plan.selected[:2]] == [
        ("montezuma_revenge", "vanilla"),
        ("montezuma_revenge", "ersac"),
    ]
    # What the sweep's directory is meant to hold grows by what is named.
    assert len(plan.cells) == 6 * 4
    with pytest.raises(config.SettingsError, match=r"unknown Atari game 'pnog'.* pong"):
        ladder.plan_ladder("atari57", "smoke", "pnog")


def test_the_hash_of_a_cell_depends_on_its_task():
    """The factory is not hashed, but the environment's id is, and it names the task."""
    one, other = (
        ladder.plan_ladder("ladder", "desk", tasks=task).selected[0].settings
        for task in ("deep-sea-10", "deep-sea-10-noise")
    )
    assert run_dir.run_hash(one) != run_dir.run_hash(dataclasses.replace(one, env=other.env))
