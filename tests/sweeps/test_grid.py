"""Sweeps of one's own: the runs of a grid, resuming, files, and the example of the docs."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ersac
from ersac import api, cli, config
from ersac.analysis import compare
from ersac.config import SettingsError
from ersac.runs import exits, run_dir, seal
from ersac.sweeps import engines, grid

gymnasium = pytest.importorskip("gymnasium")
PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
SMALL = {"steps": 300, "envs": 2, "hidden": (8,), "rollout": 8, "lockstep": True}
DEEP = {"depth": 4, "episodes": 60, "hidden": (8,), "chunk": 4, "stop_when_solved": False}


class Corridor(gymnasium.Env):
    """Eight cells; only the last is rewarded."""

    observation_space, action_space = gymnasium.spaces.Discrete(8), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = self.time = 0
        return 0, {}

    def step(self, action):
        self.time += 1
        self.cell = min(7, self.cell + 1) if action == 1 else 0
        return self.cell, float(self.cell == 7), False, self.time >= 12, {}


def plan(points, seeds=1, **settings):
    return grid.list_runs(grid.GridSweep(points, seeds, settings), api.make_settings)


def records(home: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in sorted(home.glob("*/facts.npz"))}


def test_a_grid_has_every_combination_with_every_seed():
    runs = plan({"gamma": [0.9, 0.99], "agent": ["ersac", "vanilla"]}, [5, 7], env="CartPole-v1")
    found = {
        (run.settings.agent.gamma, run.settings.agent_name, run.settings.run.seed) for run in runs
    }
    assert found == {(g, a, s) for g in (0.9, 0.99) for a in ("ersac", "vanilla") for s in (5, 7)}
    assert all(run.settings.run.seeds == 1 for run in runs)
    assert len({run.name for run in runs}) == 8
    assert runs[0].name.startswith("gym-CartPole-v1-ersac-gamma-0.9-seed-5-")


@pytest.mark.parametrize(
    ("points", "seeds", "settings", "words"),
    [
        ({"gama": [0.9]}, 1, {}, "unknown setting 'gama'; did you mean gamma?"),
        ({"gamma": [0.9, 2]}, 1, {}, "gamma must be a number between 0 and 1, not 2"),
        ({"gamma": 0.9}, 1, {}, "grid: gamma must be a list of values, not 0.9"),
        ({"gamma": "abc"}, 1, {}, "grid: gamma must be a list of values"),
        ({"gamma": []}, 1, {}, "grid: gamma must be a list of values"),
        ([0.9], 1, {}, "grid must be a dict of lists"),
        ({"gamma": [0.9]}, 0, {}, "seeds must be a number from 1 on or a list"),
        ({"gamma": [0.9]}, [1, 1], {}, "seeds must be a number from 1 on or a list of different"),
        ({"gamma": [0.9]}, True, {}, "seeds must be"),
        ({"gamma": [0.9]}, [[1]], {}, "seeds must be"),
        ({"gamma": [0.9]}, 1, {"gamma": 0.8}, "gamma is given twice"),
        ({"seed": [1, 2]}, 1, {}, "seed is not a setting of a sweep's runs"),
        ({"env": ["CartPole-v1", "Nope"]}, 1, {}, "unknown environment 'Nope'"),
    ],
)
def test_a_wrong_grid_is_refused_in_one_line_before_anything_runs(
    points, seeds, settings, words, tmp_path
):
    with pytest.raises(SettingsError) as error:
        ersac.sweep(points, seeds=seeds, out=tmp_path / "out", show=False, **settings)
    assert words in str(error.value)
    assert not (tmp_path / "out").exists()


def test_an_environment_that_does_not_exist_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(SettingsError, match="unknown environment 'CartPol-v1'"):
        ersac.sweep({"env": ["CartPole-v1", "CartPol-v1"]}, seeds=1, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_sweep_of_a_class_is_run_once_and_grows(tmp_path, monkeypatch):
    home = tmp_path / "out"
    sweep = lambda gammas: ersac.sweep(
        {"gamma": gammas}, seeds=2, env=Corridor, out=home, show=False, **SMALL
    )
    first = sweep([0.9])
    assert [path.is_dir() for path in first.runs] == [True, True]
    assert (first.failed, first.missing) == ({}, {})
    before = records(home)
    grown = sweep([0.9, 0.95])
    assert len(grown.runs) == 4
    assert before.items() < records(home).items()
    monkeypatch.setattr(api, "run_experiment", None)  # nothing is left to run
    assert sweep([0.9, 0.95]) == grown
    # What compare and export read; runs with other settings are not pooled.
    (pair,) = compare.compare_runs(grown.runs, print)
    assert (pair.agent, pair.other, pair.seeds) == ("ersac, gamma 0.9", "ersac, gamma 0.95", 2)
    policy = run_dir.read_settings(grown.runs[0])
    assert policy.agent.gamma in (0.9, 0.95)


def test_deep_sea_runs_are_those_of_the_runner_and_mix_with_others(tmp_path):
    points = {"env": ["deep-sea"], "tau0": [0.1, 0.2]}
    result = ersac.sweep(points, seeds=2, out=tmp_path / "out", show=False, **DEEP)
    assert len(result.runs) == 4
    settings = [run_dir.read_finished_run(path) for path in result.runs]
    assert {run.settings.agent.risk.tau0 for run in settings} == {0.1, 0.2}
    assert {run.settings.run.seed for run in settings} == {0, 1}
    assert all(len(run.seeds[0].goals) == 60 for run in settings)


FILE = """
env = "{env}"
seeds = [3, 4]
[settings]
steps = 20000
envs = 2
hidden = [8]
rollout = 8
lockstep = true
checkpoint_seconds = 0.0
[grid]
gamma = [0.9, 0.95]
"""


def run_file(path: Path, *argv: str) -> subprocess.Popen[str]:
    code = "from ersac.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "sweep", str(path), *argv],
        cwd=path.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_sweep_in_a_file_is_stopped_and_finished_by_the_same_command(tmp_path):
    """Runs on the device resume to the bit: nothing of their state is on the host."""
    pytest.importorskip("gymnax")
    path = tmp_path / "mine.toml"
    text = FILE.format(env="gymnax:CartPole-v1").replace("lockstep = true\n", "")
    path.write_text(text.replace("steps = 20000", "steps = 4000"))
    done = run_file(path, "--out", "whole", "--json")
    out, err = done.communicate(timeout=200)
    assert done.returncode == 0, err
    report = json.loads(out.splitlines()[-1])
    assert (report["ended"], report["wanted"], report["missing"]) == (4, 4, {})
    assert len([line for line in out.splitlines() if line.startswith("gamma 0.9")]) == 2

    stopped = run_file(path)
    home = tmp_path / "runs" / "sweeps" / "mine"
    while not list(home.glob("*-seed-*/checkpoints/*.npz")) and stopped.poll() is None:
        time.sleep(0.02)
    stopped.send_signal(signal.SIGTERM)
    _, err = stopped.communicate(timeout=100)
    assert stopped.returncode == 128 + signal.SIGTERM, err
    assert err.splitlines()[-1].endswith("; resume with the same command")
    assert len(records(home)) < 4
    again = run_file(path)
    _, err = again.communicate(timeout=200)
    assert again.returncode == 0, err
    assert records(home) == records(tmp_path / "whole")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("env = ", "is not TOML"),
        ('enviroment = "deep-sea"', "unknown entry of"),
        ('env = "deep-sea"\nseeds = 0', "seeds must be"),
        ('env = "deep-sea"\n[grid]\ngamma = 1', "grid: gamma must be a list"),
        ('env = "deep-sea"\nout = 5', "out must be text, not 5"),
        ('env = "deep-sea"\nengine = "rai"', "unknown engine 'rai'; did you mean ray?"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(text, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.toml").write_text(text)
    with pytest.raises(SystemExit) as stop:
        cli.main(["sweep", "x.toml"])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert words in err
    assert [path.name for path in tmp_path.iterdir()] == ["x.toml"]


def test_the_file_and_the_call_of_the_docs_are_the_same_sweep(tmp_path, monkeypatch):
    """The examples run, with fewer steps; the call finds that the file's runs have ended."""
    page = PAGE.read_text().partition("### Sweeps of your own")[2]
    file, code = (re.search(rf"```{kind}\n(.*?)```", page, re.S)[1] for kind in ("toml", "python"))
    assert "3000" in file
    assert "3000" in code
    monkeypatch.chdir(tmp_path)
    Path("pole.toml").write_text(file.replace("3000", "200").replace("seeds = 3", "seeds = 1"))
    with pytest.raises(SystemExit) as stop:
        cli.main(["sweep", "pole.toml", "--quiet"])
    assert stop.value.code == 0
    before = records(Path("runs/pole-sweep"))
    names: dict = {}
    exec(code.replace("3000", "200").replace("seeds=3", "seeds=1"), names)
    assert len(names["sweep"].runs) == len(before) == 4
    assert records(Path("runs/pole-sweep")) == before


def test_a_stopped_cell_resumes_to_the_bit(tmp_path):
    pytest.importorskip("gymnax")
    small = {"steps": 600, "envs": 2, "hidden": (8,), "rollout": 8, "chunk": 10}
    runs = plan({"gamma": [0.9, 0.95]}, env="gymnax:CartPole-v1", **small)
    api.run_grid(runs, tmp_path / "whole", engines.run_local, False)
    polls = iter([0] * 3 + [signal.SIGTERM] * 9)  # in the second chunk of the first run
    with pytest.raises(exits.Stopped, match=r"^stopped in gymnax-.*; resume with the same command"):
        api.run_grid(runs, tmp_path / "out", engines.run_local, False, lambda: next(polls))
    assert records(tmp_path / "out") == {}
    assert len(list((tmp_path / "out").glob("*/checkpoints/*.npz"))) == 1
    report = api.run_grid(runs, tmp_path / "out", engines.run_local, False)
    assert (report.ended, report.wanted) == (2, 2)
    assert records(tmp_path / "out") == records(tmp_path / "whole")


@pytest.mark.slow
def test_ray_gives_the_same_bits_as_one_process(tmp_path):
    pytest.importorskip("ray")
    path = tmp_path / "mine.toml"
    path.write_text(
        "seeds = 1\n[settings]\nsteps = 1000\nhidden = [8]\n"
        '[grid]\nenv = ["gymnax:CartPole-v1", "deep-sea"]\ngamma = [0.9, 0.95]\n'
    )
    for engine in ("local", "ray"):
        done = run_file(path, "--engine", engine, "--out", engine)
        _, err = done.communicate(timeout=280)
        assert done.returncode == 0, err
    assert len(records(tmp_path / "local")) == 4
    assert records(tmp_path / "local") == records(tmp_path / "ray")


def test_a_run_of_the_format_before_env_kwargs_is_still_read(tmp_path):
    settings = api.make_settings("CartPole-v1")
    run_dir.disk.make_directory(tmp_path / "run")
    run_dir.write_settings(tmp_path / "run", settings)
    path = tmp_path / "run" / "settings.json"
    data = json.loads(path.read_text())
    del data["env"]["env_kwargs"]
    path.write_text(json.dumps(data))
    assert run_dir.read_settings(tmp_path / "run") == settings
    flat = {
        ".".join(path): value
        for path, _, value in config.leaves(settings)
        if path[-1] not in run_dir.NOT_HASHED | run_dir.ADDED.keys()
    }
    assert run_dir.settings_hash(settings) == seal.json_digest(flat)[:12]  # as it was then
    other = config.check(config.override(settings, env_kwargs={"sutton_barto_reward": True}))
    assert run_dir.settings_hash(other) != run_dir.settings_hash(settings)
