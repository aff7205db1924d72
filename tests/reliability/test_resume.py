"""A run that is stopped and resumed is bit-identical, or says in one line why it cannot be."""

import itertools
import json
import shlex
import shutil
import signal
import time

import jax
import numpy as np
import pytest

import ersac
from ersac import api, cli, config
from ersac.config import SettingsError, rollouts_per_chunk
from ersac.config.presets import PRESETS
from ersac.loops import device, devices
from ersac.loops.base import ChunkOutput, EpisodeSteps
from ersac.runs import checkpoint, checkpointer, disk, exits, run_dir, seal
from ersac.runs.recorder import Recorder

# test_kills has all presets; here are an on-policy one, and an estimator that none of them uses.
RARELY = tuple(agent for agent in PRESETS if agent != "ersac")
CASES = [
    *(
        pytest.param(agent, "preset", marks=[pytest.mark.slow] * (agent in RARELY))
        for agent in PRESETS
    ),
    ("ersac", "counts"),
]
ARGV = shlex.split(
    "--depth 6 --seeds 2 --hidden 8 8 --rollout 20 --chunk 5 --episodes 100 --no-stop-when-solved"
)


def after(chunks: int):
    """Return a poll function that gives a signal after some chunks."""
    polls = iter([0] * chunks)
    return lambda: next(polls, signal.SIGTERM)


def small_replay(learner) -> dict[str, int]:
    """Return a replay that is quick to save, and is stopped before and after it is full."""
    match learner:
        case config.BootDQN():
            return {"replay": 500}
        case config.ActorCritic(buffer=config.Replay()):
            return {"capacity": 12, "batch": 2, "updates": 2}
    return {}


@pytest.mark.parametrize(("agent", "uncertainty"), CASES)
def test_run_2n_is_run_n_save_load_run_n(train, left, tmp_path, agent, uncertainty):
    """Stopped by signals, or by a budget that is raised later: every final array is the same."""
    agent_settings = (
        {"agent": agent, "uncertainty": uncertainty}
        if uncertainty == "counts"
        else {"agent": agent}
    )
    agent_settings |= small_replay(PRESETS[agent])
    train(tmp_path / "whole", **agent_settings)
    with pytest.raises(exits.Stopped) as stop:
        train(tmp_path / "cut", poll=after(2), **agent_settings)
    assert stop.value.number == signal.SIGTERM
    assert str(tmp_path / "cut") in str(stop.value)
    assert checkpoint.checkpoint_numbers(tmp_path / "cut" / "checkpoints") == [5, 10]
    with pytest.raises(exits.Stopped):
        train(tmp_path / "cut", poll=after(1), **agent_settings)
    train(tmp_path / "cut", **agent_settings)
    train(tmp_path / "raised", episodes=40, **agent_settings)
    train(tmp_path / "raised", episodes=41, **agent_settings)  # within the last chunk
    result = train(tmp_path / "raised", **agent_settings)
    expected = left(tmp_path / "whole")
    assert len(expected) > 50
    assert left(tmp_path / "cut") == expected
    assert left(tmp_path / "raised") == expected
    assert result.environment_changes == []


def test_what_is_saved_without_waiting_for_its_time(train, left, tmp_path):
    """After a signal, and at the end."""
    train(tmp_path / "whole", checkpoint_seconds=1000)
    assert checkpoint.checkpoint_numbers(tmp_path / "whole" / "checkpoints") == [30]
    for chunks, saved in ((2, [10]), (1, [10, 15])):
        with pytest.raises(exits.Stopped):
            train(tmp_path / "cut", poll=after(chunks), checkpoint_seconds=1000)
        assert checkpoint.checkpoint_numbers(tmp_path / "cut" / "checkpoints") == saved
    train(tmp_path / "cut", checkpoint_seconds=1000)
    assert left(tmp_path / "cut") == left(tmp_path / "whole")


def test_checkpoints_cost_at_most_their_share(train, tmp_path, monkeypatch):
    """A slower checkpoint makes the interval to the next one longer."""
    monkeypatch.setattr(checkpointer, "COST_SHARE", 0.2)
    saves: list[tuple[float, float]] = []

    def slow(*args, original=checkpoint.save_checkpoint):
        started = time.monotonic()
        original(*args)
        time.sleep(0.02)
        saves.append((started, time.monotonic()))

    monkeypatch.setattr(checkpoint, "save_checkpoint", slow)
    train(tmp_path / "run", episodes=2000)
    assert len(saves) >= 3
    for (started, ended), (following, _) in itertools.pairwise(saves[:-1]):  # without the final one
        assert following - ended >= 4.9 * (ended - started)


def test_a_long_run_is_thinned_the_same_way(train, left, tmp_path, monkeypatch):
    """Which metrics and map snapshots are dropped does not depend on where the run was stopped."""
    monkeypatch.setattr("ersac.runs.recorder.METRIC_POINTS", 7)
    monkeypatch.setattr("ersac.runs.recorder.MAP_SNAPSHOTS", 4)
    monkeypatch.setattr(checkpointer, "COST_SHARE", 1e-9)  # only when it stops
    train(tmp_path / "whole", episodes=400)
    for chunks in (3, 1, 6, 9):
        with pytest.raises(exits.Stopped):
            train(tmp_path / "cut", poll=after(chunks), episodes=400)
    train(tmp_path / "cut", episodes=400)
    assert left(tmp_path / "cut") == left(tmp_path / "whole")


def test_no_saved_leaf_is_idle(train, left, tmp_path):
    """Any changed leaf of a checkpoint changes the result: all of it is used."""
    train(tmp_path / "whole")
    with pytest.raises(exits.Stopped):
        train(tmp_path / "half", poll=after(4))  # in the middle of an episode
    expected, directory = left(tmp_path / "whole"), tmp_path / "half" / "checkpoints"
    saved = checkpoint.load_checkpoint(
        directory, run_dir.run_hash(run_dir.read_settings(tmp_path / "half")), pytest.fail
    )
    assert len(saved.arrays) > 30
    idle = []
    for name, array in saved.arrays.items():
        # A running maximum that is zeroed may be reached again; a doubled one is not.
        for other in (np.zeros_like(array) if array.any() else np.ones_like(array), array * 2):
            run = tmp_path / "changed"
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(tmp_path / "half", run)
            rewrite(run / "checkpoints", saved, {**saved.arrays, name: other})
            train(run)
            if left(run) != expected:
                break
        else:
            idle.append(name)
    assert not idle


def rewrite(directory, saved, arrays) -> None:
    """Put other arrays into a checkpoint, with correct digests."""
    data = bytes(seal.npz_bytes(arrays))
    (directory / f"{saved.number:012d}.npz").write_bytes(data)
    path = directory / f"{saved.number:012d}.json"
    manifest = checkpoint.unseal_manifest(path.read_bytes())
    path.write_bytes(
        checkpoint.seal_manifest({**manifest, "bytes": len(data), "sha256": disk.digest(data)})
    )


@pytest.fixture
def half(train, tmp_path):
    """The directory of a run that was stopped."""
    with pytest.raises(exits.Stopped):
        train(tmp_path / "half", poll=after(2))
    return tmp_path / "half"


OTHERS = {
    "visible cores": 3,
    "jax": "0.1",
    "jaxlib": "0.1",
    "numpy": "1.0",
    "optax": "0.1",
    "ersac": "0.0",
    "machine": "abacus",
}
OTHERS |= {
    "system": "Plan 9",
    "python": "2.7",
    "xla flags": "--fast",
    "devices": "8 abacus",
    "seeds a device": 7,
    "jax options": "x64",
}


def test_every_field_of_the_fingerprint_is_named(train, half, tmp_path, capsys, monkeypatch):
    manifest = next(half.glob("checkpoints/*10.json"))
    now = checkpoint.unseal_manifest(manifest.read_bytes())["notes"]["fingerprint"]
    assert now.keys() == OTHERS.keys()
    for name, other in OTHERS.items():
        run = tmp_path / name.replace(" ", "-")
        shutil.copytree(half, run)
        path = run / "checkpoints" / manifest.name
        data = checkpoint.unseal_manifest(path.read_bytes())
        data["notes"]["fingerprint"][name] = other
        path.write_bytes(checkpoint.seal_manifest(data))
        with pytest.raises(SettingsError, match="cannot continue bit-exactly") as error:
            train(run, exact=True)
        change = f"{name} {other} -> {now[name] or 'none'}"
        assert f": {change} (" in str(error.value)
        assert capsys.readouterr().err == ""
        result = train(run)
        assert capsys.readouterr().err == f"ersac: continues, not bit-exact: {change}\n"
        assert result.environment_changes == [f"rollout 10: {change}"]
        assert (
            json.loads((run / "summary.json").read_text())["departures"]
            == result.environment_changes
        )


def test_a_refused_resume_changes_nothing(train, half, monkeypatch):
    """Also not the budget of a run that has ended."""
    train(half)
    before = {path.name: path.read_bytes() for path in half.iterdir() if path.is_file()}
    monkeypatch.setattr("platform.python_version", lambda: "2.7")
    with pytest.raises(SettingsError, match=r"cannot continue bit-exactly: python [\d.]+ -> 2.7"):
        train(half, exact=True, episodes=200)
    del before[run_dir.LOCK]  # it names this process
    assert all((half / name).read_bytes() == data for name, data in before.items())
    train(half, episodes=200)
    assert run_dir.read_settings(half).run.episodes == 200


def test_no_false_alarm(train, half, left, tmp_path, capsys):
    train(half, exact=True)
    train(tmp_path / "whole")
    assert capsys.readouterr().err == ""
    assert left(half) == left(tmp_path / "whole")


def test_cores_that_are_really_gone_are_named(half, monkeypatch, train, capsys):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3, 4})
    train(half)
    assert "continues, not bit-exact: visible cores " in capsys.readouterr().err


@pytest.mark.slow
def test_seeds_that_fill_up_a_core_are_not_saved(train, left, tmp_path, capsys, monkeypatch):
    """Three seeds on two cores are padded to four; the fourth is never saved."""
    if len(jax.local_devices()) == 1:
        pytest.skip("one core")
    train(tmp_path / "whole", seeds=3)
    for run in ("same", "fewer"):
        with pytest.raises(exits.Stopped):
            train(tmp_path / run, poll=after(4), seeds=3)
    train(tmp_path / "same", seeds=3, exact=True)
    assert left(tmp_path / "same") == left(tmp_path / "whole")
    monkeypatch.setattr(
        devices,
        "mesh",
        lambda seeds: jax.sharding.Mesh(jax.local_devices()[:1], (devices.MESH_AXIS,)),
    )
    result = train(tmp_path / "fewer", seeds=3)
    assert (
        capsys.readouterr().err
        == "ersac: continues, not bit-exact: devices 2 cpu -> 1 cpu, seeds a device 2 -> 3\n"
    )
    expected = api.read_result(tmp_path / "whole").seeds
    for stats, other in zip(result.seeds, expected, strict=True):
        np.testing.assert_array_equal(stats.goals[:60], other.goals[:60])  # before the stop
        assert len(stats.goals) == 100


def test_a_damaged_checkpoint_is_named_and_the_run_ends_the_same(
    train, half, left, tmp_path, capsys
):
    train(tmp_path / "whole")
    newest = half / "checkpoints" / "000000000010.npz"
    newest.write_bytes(newest.read_bytes()[:-1])
    train(half)
    assert capsys.readouterr().err.startswith(
        f"ersac: checkpoint {newest.with_suffix('.json')} is damaged (its arrays have "
    )
    assert left(half) == left(tmp_path / "whole")


def command(capsys, *argv: str) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as stop:
        cli.main(list(argv))
    output = capsys.readouterr()
    return int(stop.value.code or 0), output.out, output.err


def test_the_commands(quick, left, tmp_path, capsys, monkeypatch):
    """train, train --resume and resume, what they refuse, and a run that has ended."""
    monkeypatch.chdir(tmp_path)
    go = lambda *argv: command(capsys, *argv, "--quiet")
    train_argv = ("train", "deep-sea", *ARGV, "--checkpoint-seconds", "0")
    assert go(*train_argv, "--out", "whole") == (0, "", "")
    term = after(2)
    monkeypatch.setattr(exits.SignalWatcher, "poll", lambda self: term())
    code, out, err = go(*train_argv, "--out", "cut", "--resume")  # nothing there yet: it starts
    assert (code, out, err) == (143, "", "ersac: stopped; resume with: ersac resume cut\n")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    for argv, words in [
        ((*train_argv, "--out", "cut"), "--out cut already exists"),
        (
            (*train_argv, "--out", "cut", "--resume", "--depth", "7"),
            "cut holds a run with other settings: --depth 6 -> 7; choose",
        ),
        (
            ("resume", "cut", "--episodes", "99"),
            "--episodes can be raised when a run is resumed, not lowered: 100 -> 99",
        ),
        (
            ("resume", "cut", "--episodes", "0"),
            "--episodes must be a whole number between 1 and 1000000000, not 0",
        ),
        (("resume", "cut", "--depth", "7"), "unknown option --depth of resume"),
        (("resume",), "which run?"),
        (("resume", "checkpoints"), ""),
        (("resume", "."), ". holds no run"),
    ]:
        code, out, err = go(*argv)
        assert (code, out) == (2 if words else 74, ""), err
        assert err.startswith("ersac: ")
        assert words in err
        assert err.count("\n") == 1
    assert go("resume", "cut", "--exact")[0] == 0
    assert left(tmp_path / "cut") == left(tmp_path / "whole")
    before = (tmp_path / "cut" / "facts.npz").stat().st_mtime_ns
    for argv in (("resume", "cut"), (*train_argv, "--out", "cut", "--resume")):
        code, out, err = go(*argv, "--json")
        assert (code, err) == (0, "ersac: cut has already ended; --episodes can raise its budget\n")
        assert json.loads(out)["episodes"] == 100
    assert (tmp_path / "cut" / "facts.npz").stat().st_mtime_ns == before
    assert go("resume", "cut", "--episodes", "130")[0] == 0
    assert run_dir.read_settings(tmp_path / "cut").run.episodes == 130
    assert json.loads((tmp_path / "cut" / "summary.json").read_text())["episodes"] == 130


def test_resume_without_a_directory_finds_its_run(quick, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train_argv = ("train", "deep-sea", *ARGV, "--quiet")
    assert command(capsys, *train_argv, "--resume")[0] == 0
    assert command(capsys, *train_argv, "--resume", "--episodes", "120")[0] == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["deep-sea-6-ersac-seed0"]
    assert command(capsys, *train_argv)[0] == 0
    assert command(capsys, *train_argv, "--gamma", "0.9", "--resume")[0] == 0
    assert len(list((tmp_path / "runs").iterdir())) == 3


@pytest.mark.parametrize("lost", ["summary.json", "facts.npz", "picture.png and summary.json"])
def test_results_that_were_lost_are_written_again(train, left, tmp_path, lost):
    train(tmp_path / "run")
    before = left(tmp_path / "run")
    for name in lost.split(" and "):
        (tmp_path / "run" / name).write_bytes(b"")
    train(tmp_path / "run")
    assert left(tmp_path / "run") == before
    assert (
        api.read_result(tmp_path / "run").summary()["settings_hash"]
        == json.loads((tmp_path / "run" / "summary.json").read_text())["settings_hash"]
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t[:50],
        lambda t: t.replace('"depth": 6', '"depth": 5'),
        lambda t: t.replace("Seeking", "check"),
        lambda t: "",
    ],
)
def test_damaged_settings_are_one_line(train, tmp_path, capsys, change):
    train(tmp_path / "run", episodes=10)
    path = tmp_path / "run" / "settings.json"
    path.write_text(change(path.read_text()))
    assert command(capsys, "resume", str(tmp_path / "run")) == (
        74,
        "",
        f"ersac: {path} is damaged: it is not what a run wrote\n",
    )


def test_a_run_that_breaks_can_be_resumed(train, left, tmp_path, monkeypatch, capsys):
    """Exit code 75, the reason and how to resume."""

    def fail_later(*args, original=device.run_device):
        for number, chunk in enumerate(original(*args)):
            if number == 3:
                raise RuntimeError("the device\nis gone")
            yield chunk

    train(tmp_path / "whole")
    monkeypatch.setattr(device, "DEVICE_LOOP", device.DEVICE_LOOP._replace(run=fail_later))
    train_argv = (
        "train",
        "deep-sea",
        *ARGV,
        "--checkpoint-seconds",
        "0",
        "--out",
        str(tmp_path / "run"),
        "--quiet",
    )
    code, _, err = command(capsys, *train_argv)
    assert (code, err) == (
        75,
        f"ersac: RuntimeError: the device is gone; resume with: ersac resume {tmp_path / 'run'}\n",
    )
    with pytest.raises(exits.Resumable):
        cli.main([*train_argv, "--out", str(tmp_path / "other"), "--debug"])
    monkeypatch.undo()
    assert command(capsys, "resume", str(tmp_path / "run"))[0] == 0
    assert left(tmp_path / "run") == left(tmp_path / "whole")


def test_from_python(quick, small, tmp_path):
    settings = small | {"show": False}
    first = ersac.train(out=tmp_path / "run", **settings)
    again = ersac.train(out=tmp_path / "run", resume=True, **settings)
    stored = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert again.summary() == {
        name: value for name, value in stored.items() if not name.endswith("sha256")
    }
    assert (first.steps, first.environment_changes) == (again.steps, again.environment_changes)


def test_a_recorder_comes_back_as_it_was():
    settings = api.make_settings(depth=3, seeds=2, rollout=4, chunk=2, episodes=9)
    rng, recorder = np.random.default_rng(0), Recorder(settings)
    for _ in range(30):
        ended = rng.random((2, 2, 4)) < 0.4
        episodes = EpisodeSteps(
            ended, rng.random((2, 2, 4)) < 0.9, rng.normal(size=(2, 2, 4)).astype(np.float32)
        )
        metrics = {name: rng.random((2, 2), np.float32) for name in ("tau", "entropy", "sigma2")}
        recorder.add(ChunkOutput(episodes, metrics, None, 0.1))
        recorder.add_map_snapshot(
            recorder.make_map_snapshot(
                np.ones(9, np.int32), rng.random(9, np.float32), rng.random(9) < 0.5
            )
        )
    again = Recorder.from_state(settings, recorder.state())
    for name in ("episodes", "solved_at", "steps", "chunks", "map_halvings", "recent_goals"):
        assert repr(getattr(again, name)) == repr(getattr(recorder, name)), name
    assert {k: v.tobytes() for k, v in again.state().items()} == {
        k: v.tobytes() for k, v in recorder.state().items()
    }
    assert len(again.episode_stats()[0].goals) == 9


def test_what_ends_after_the_budget_of_steps_does_not_count():
    """A run ends with a chunk (here 16 steps), which may end after the budget."""
    settings = api.make_settings(
        "gymnax:CartPole-v1", envs=2, rollout=4, steps=25, seeds=1, chunk=2
    )
    ended = np.zeros((1, 2, 2, 4), bool)
    ended[0, :, 0, 3] = True  # one episode a rollout
    metrics = {name: np.zeros((1, 2), np.float32) for name in ("tau", "entropy", "sigma2")}
    recorder = Recorder(settings)
    while not recorder.is_finished():
        recorder.add(
            ChunkOutput(EpisodeSteps(ended, ended, np.ones(ended.shape)), metrics, None, 0.1)
        )
    (stats,) = Recorder.from_state(settings, recorder.state()).episode_stats()
    assert (recorder.steps, stats.steps.tolist(), len(stats.goals)) == (32, [8, 16, 24], 3)
    deep_sea = api.make_settings(depth=5, rollout=5, steps=12, seeds=1, chunk=3)
    recorder = Recorder(deep_sea)
    ended = (np.arange(15) % 5 == 4).reshape(1, 3, 1, 5)
    metrics = {name: np.zeros((1, 3), np.float32) for name in metrics}
    recorder.add(ChunkOutput(EpisodeSteps(ended, ended, np.ones(ended.shape)), metrics, None, 0.1))
    recorder.add_map_snapshot(
        recorder.make_map_snapshot(
            np.ones(25, np.int32), np.ones(25, np.float32), np.ones(25, bool)
        )
    )
    (stats,) = Recorder.from_state(deep_sea, recorder.state()).episode_stats()
    assert (recorder.is_finished(), len(stats.goals)) == (True, 2)


def test_a_chunk_is_short_and_decided_by_the_settings():
    length = lambda **changes: rollouts_per_chunk(api.make_settings(**changes))
    assert (length(), length(chunk=7), length(seeds=1000), length(seeds=10_000, rollout=1000)) == (
        100,
        7,
        2,
        1,
    )
    for seeds in (1, 16, 20, 21, 500):
        assert seeds * 50 * length(seeds=seeds) / 50_000 <= 2
