"""Runs that have not ended are read up to their last checkpoint, and no file changes."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import ersac
from ersac import cli
from ersac.analysis import compare
from ersac.runs import disk, recorder, run_dir

pytest.importorskip("gymnasium")
SMALL = {"hidden": (8,), "rollout": 10, "chunk": 5, "show": False}
POLE = SMALL | {"env": "gym:CartPole-v1", "envs": 2, "steps": 600, "seeds": 2, "lockstep": True}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """An ended run of each of two agents, and one that was stopped after 300 of 600 steps."""
    home = tmp_path_factory.mktemp("runs")
    ersac.train(**POLE, out=home / "ended")
    ersac.train(**POLE, agent="vanilla", out=home / "vanilla")
    ersac.train(**POLE, out=home / "stopped", on_chunk=lambda progress: progress.steps >= 300)
    return home


def files(directory: Path) -> dict[str, bytes]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in found if path.name != run_dir.LOCK}


def command(capsys, *argv) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        cli.main([str(word) for word in argv])
    return (stop.value.code, *capsys.readouterr())


STOPPED = "was stopped: its checkpoint after 300 steps; resume with: ersac resume"
RUNNING = "is under way: its checkpoint after 300 steps"


@pytest.mark.parametrize("is_running", [False, True], ids=["stopped", "under way"])
def test_eval_load_read_compare_and_export_take_a_run_that_has_not_ended(
    home, capsys, tmp_path, is_running
):
    run, before = home / "stopped", files(home / "stopped")
    said = RUNNING if is_running else STOPPED
    with disk.lock(run / run_dir.LOCK) if is_running else pytest.MonkeyPatch.context():
        code, out, err = command(capsys, "eval", run, "--episodes", 2, "--seed", 1, "--json")
        assert (code, said in err) == (0, True)
        assert json.loads(out.splitlines()[-1])["seed"] == 1
        policy = ersac.load(run, seed=1)
        assert said in capsys.readouterr().err
        result = ersac.read(str(run))
        assert said in capsys.readouterr().err
        assert result.state == ("running" if is_running else "stopped")
        code, out, err = command(capsys, "compare", run, home / "vanilla", "--json")
        assert (code, said in err) == (0, True)
        (pair,) = json.loads(out.splitlines()[-1])["comparisons"]
        assert pair["steps"] <= 300
        table = tmp_path / "table.csv"
        code, out, err = command(capsys, "export", run, "--to", table)
        assert (code, said in err) == (0, True)
    assert policy.seed == 1
    assert len(table.read_text().splitlines()) == 1 + sum(map(len, result.returns.values()))
    assert files(run) == before


def test_a_stopped_run_has_the_first_episodes_of_the_whole_one(home, capsys):
    """Up to its checkpoint: then the host starts new episodes."""
    whole, part = ersac.read(home / "ended"), ersac.read(home / "stopped")
    assert (whole.state, whole.stopped, part.stopped) == ("ended", False, True)
    for seed in (0, 1):
        count = len(part.returns[seed])
        assert 0 < count < len(whole.returns[seed])
        for name in ("returns", "goals", "lengths", "end_steps"):
            one, other = getattr(part, name)[seed], getattr(whole, name)[seed]
            np.testing.assert_array_equal(one, other[:count], err_msg=name)
        # CartPole pays 1 a step, and its lengths are those of whole episodes.
        np.testing.assert_array_equal(whole.returns[seed], whole.lengths[seed])
    assert part.metrics.step.tolist() == [100, 200, 300]


def test_a_run_without_a_checkpoint_says_so(home, tmp_path, capsys):
    shutil.copytree(home / "stopped", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(ersac.SettingsError, match="before its first checkpoint; resume with"):
        ersac.read(tmp_path / "run")
    with (
        disk.lock(tmp_path / "run" / run_dir.LOCK),
        pytest.raises(ersac.SettingsError, match="under way and has written no checkpoint yet"),
    ):
        ersac.load(tmp_path / "run")


def test_the_command_to_resume_a_stopped_run_can_be_pasted(home, tmp_path, capsys):
    run = tmp_path / "a run;reboot"
    shutil.copytree(home / "stopped", run)
    ersac.read(run)
    said = capsys.readouterr().err
    assert shlex.split(said.partition("resume with: ")[2]) == ["ersac", "resume", str(run)]
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ersac.SettingsError) as refusal:
        ersac.read(run)
    said = str(refusal.value)
    assert shlex.split(said.partition("resume with: ")[2]) == ["ersac", "resume", str(run)]


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_read(home, tmp_path, capsys):
    shutil.copytree(home / "stopped", tmp_path / "run")
    settings = run_dir.read_settings(tmp_path / "run")
    ersac.train(  # a second checkpoint, after 500 steps
        **POLE, out=tmp_path / "run", resume=True, on_chunk=lambda progress: progress.steps >= 500
    )
    first, newest = sorted((tmp_path / "run" / "checkpoints").glob("*.npz"))
    newest.write_bytes(b"x")
    capsys.readouterr()
    assert ersac.read(tmp_path / "run").steps_per_seed == 300
    assert "is damaged" in capsys.readouterr().err
    assert ersac.load(tmp_path / "run").settings == settings
    first.write_bytes(b"x")
    with pytest.raises(disk.DiskError, match="is damaged"):
        ersac.read(tmp_path / "run")
    assert newest.exists()


def test_read_takes_text_and_says_what_is_no_run(home, tmp_path):
    assert ersac.read(str(home / "ended")).settings.agent_name == "ersac"
    with pytest.raises(ersac.SettingsError, match="holds no run"):
        ersac.read(tmp_path)


# More budget


def test_resume_raises_the_budget_of_steps(home, tmp_path, capsys):
    shutil.copytree(home / "ended", tmp_path / "run")
    code, _, err = command(capsys, "resume", tmp_path / "run", "--quiet")
    assert (code, "has already ended; --steps can raise its budget" in err) == (0, True)
    code, _, err = command(capsys, "resume", tmp_path / "run", "--steps", "8e2", "--quiet")
    assert code == 0
    result = ersac.read(tmp_path / "run")
    assert (result.stopped, result.steps) == (False, 2 * 800)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (
            ("--steps", "500"),
            "--steps can be raised when a run is resumed, not lowered: 600 -> 500",
        ),
        (("--episodes", "400"), "-> 400; this run has a budget of --steps"),
    ],
)
def test_a_refused_resume_changes_no_file(home, capsys, option, said):
    before = files(home / "ended")
    code, _, err = command(capsys, "resume", home / "ended", *option)
    assert (code, said in err) == (2, True), err
    assert files(home / "ended") == before


def test_a_resume_that_is_refused_late_changes_no_file(tmp_path, capsys):
    """An estimator of one's own is missed only when the agent is built."""
    from ersac.uncertainty.counts import visit_counts

    def own(spec, n_actions):
        return visit_counts(spec.observations.n, n_actions, 0.1)

    settings = SMALL | {"env": "deep-sea", "depth": 4, "seeds": 1, "stop_when_solved": False}
    ersac.train(**settings, episodes=20, uncertainty=own, out=tmp_path / "run")
    before = (tmp_path / "run" / "settings.json").read_bytes()
    code, _, err = command(capsys, "resume", tmp_path / "run", "--episodes", "400")
    assert code == 2, err
    assert (tmp_path / "run" / "settings.json").read_bytes() == before
    assert ersac.read(tmp_path / "run").state == "ended"


# Sweep directories


def test_compare_takes_a_sweep_and_skips_what_is_no_run(home, tmp_path, capsys):
    for name in ("ended", "vanilla"):
        shutil.copytree(home / name, tmp_path / "sweep" / name)
    (tmp_path / "sweep" / "sweep.json").write_text("{}")
    (tmp_path / "sweep" / "lock").touch()
    (tmp_path / "sweep" / "batches").mkdir()
    wanted = list(compare.expand_sweeps([home / "ended", home / "vanilla"]))
    assert [path.name for path in wanted] == ["ended", "vanilla"]
    by_name = command(capsys, "compare", tmp_path / "sweep", "--json")
    assert by_name[0] == 0
    assert by_name[2] == ""
    by_pattern = command(capsys, "compare", *sorted((tmp_path / "sweep").iterdir()), "--json")
    assert by_pattern == by_name


# Lengths


def test_lengths_do_not_count_fake_steps_and_go_on_over_chunks():
    rng = np.random.default_rng(0)
    envs, rollouts, length = 3, 7, 5
    ended = rng.random((4, rollouts, envs, length)) < 0.2
    is_real = ~(ended & (rng.random(ended.shape) < 0.5))  # half of the ends are truncations
    expected, current = [], np.zeros(envs, int)
    for chunk in range(4):
        by_place = np.zeros(ended.shape[1:], int)
        for n in range(envs):
            for r in range(rollouts):
                for t in range(length):
                    current[n] += is_real[chunk, r, n, t]
                    if ended[chunk, r, n, t]:
                        by_place[r, n, t], current[n] = current[n], 0
        expected.append(by_place[ended[chunk]])
    unfinished = np.zeros(envs, np.int32)
    for chunk in range(4):
        unfinished, found = recorder.episode_lengths(unfinished, ended[chunk], is_real[chunk])
        np.testing.assert_array_equal(found, expected[chunk])
    np.testing.assert_array_equal(unfinished, current)
