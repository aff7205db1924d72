"""Trackers show every recorded point once, however often a run was stopped."""

import json
import os
import shlex
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ersac import api, cli, config, display
from ersac.analysis import picture
from ersac.runs import exits, trackers

SMALL = {
    "depth": 5,
    "seeds": 2,
    "seed": 7,
    "hidden": (8, 8),
    "rollout": 20,
    "chunk": 5,
    "episodes": 250,
    "stop_when_solved": False,
}
BOTH = config.Track(tensorboard=True, wandb=True)
Shown = dict[int, dict[str, list[tuple[int, float]]]]  # seed -> tag -> (step or episode, value)


class Crash(BaseException):
    """A crash: nothing is saved on the way out."""


def run(out: Path, track=BOTH, poll=lambda: 0, **changes) -> api.Result:
    settings = api.make_settings(**(SMALL | {"checkpoint_seconds": 1000} | changes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picture, "draw_picture", lambda *_: None)
        patch.setattr(picture, "picture_png", lambda _: b"a picture")
        return api.run_experiment(
            settings, out, display.NullDisplay(), resume=True, poll=poll, track=track
        )


def after(chunks: int, end=signal.SIGTERM):
    """Return a poll function that gives a signal, or crashes, after some chunks."""
    polls = iter([0] * chunks)

    def poll() -> int:
        number = next(polls, end)
        if number is Crash:
            raise Crash
        return number

    return poll


def tensorboard(out: Path) -> Shown:
    """Return what TensorBoard reads in a run directory."""
    shown: Shown = {}
    for home in sorted((out / "tensorboard").iterdir()):
        found = EventAccumulator(str(home), size_guidance={"scalars": 0}).Reload()
        series = {
            name: [(event.step, event.value) for event in found.Scalars(name)]
            for name in found.Tags()["scalars"]
        }
        shown[int(home.name.removeprefix("seed "))] = series
    return shown


def wandb(out: Path) -> Shown:
    """Return what the offline files of Weights & Biases hold; every checksum is checked."""
    from wandb.proto import wandb_internal_pb2

    shown: Shown = {}
    for path in sorted((out / "wandb").glob("offline-run-*/*.wandb")):
        series = shown.setdefault(int(path.stem.rpartition("-")[2]), {})
        for record in finished_log(path, wandb_internal_pb2.Record.FromString):
            if record.WhichOneof("record_type") == "history":
                row = {
                    "/".join([item.key, *item.nested_key]).strip("/"): json.loads(item.value_json)
                    for item in record.history.item
                }
                axis = next(axis for axis in (trackers.STEP, trackers.EPISODE) if axis in row)
                for name in row:
                    if name.startswith(axis + "/"):
                        series.setdefault(name, []).append((row[axis], row[name]))
    return shown


def finished_log(path: Path, parse: Callable[[bytes], Any]) -> list[Any]:
    """Return the records of a log once it has the last one.

    wandb's own process writes the file, some milliseconds after `finish` has returned.
    """
    deadline = time.monotonic() + 10
    while True:
        records = [parse(data) for data in wandb_records(path.read_bytes())]
        if records and records[-1].WhichOneof("record_type") == "exit":
            return records
        assert time.monotonic() < deadline, f"{path} is incomplete"
        time.sleep(0.01)


def wandb_records(data: bytes) -> list[bytes]:
    """Return the records of a log in blocks of 32 KiB; a record has one or more pieces."""
    found, piece, offset = [], b"", 7
    while offset + 7 <= len(data):
        if (left := 32768 - offset % 32768) < 7:
            offset += left
            continue
        check, length, piece_type = struct.unpack("<IHB", data[offset : offset + 7])
        body = data[offset + 7 : offset + 7 + length]
        if len(body) < length:
            break  # still being written
        assert zlib.crc32(bytes([piece_type]) + body) == check
        piece, offset = piece + body, offset + 7 + length
        if piece_type in (1, 4):  # complete, or the last piece
            found.append(piece)
            piece = b""
    return found


def expected(result: api.Result) -> Shown:
    """Return what trackers must show of a run."""
    shown: Shown = {}
    for i, stats in enumerate(result.seeds):
        metrics = {name: column[i] for name, column in result.metrics.values.items()}
        assert metrics.keys() == {"tau", "entropy", "sigma2", "payoff", "critic", "reward"} | {
            "value",
            "goal_share",
        }
        series = {
            f"by step/{name}": list(zip(result.metrics.step.tolist(), column, strict=True))
            for name, column in metrics.items()
        }
        blocks = len(stats.goals) // 100
        for name, column in (("goal share", stats.goals), ("mean return", stats.returns)):
            means = column[: blocks * 100].reshape(blocks, 100).mean(axis=1, dtype=float)
            series[f"by episode/{name}"] = [
                (100 * (block + 1), mean) for block, mean in enumerate(means)
            ]
        shown[stats.seed] = series
    return shown


def assert_same(shown: Shown, wanted: Shown) -> None:
    assert shown.keys() == wanted.keys()
    for seed, series in wanted.items():
        paces = shown[seed].pop("by step/steps_per_second")  # the only one that may differ
        # That of an earlier session is not stored: a checkpoint depends on no clock.
        assert [at for at, _ in paces] == [at for at, _ in series["by step/tau"]][-len(paces) :]
        assert min(pace for _, pace in paces) > 0
        assert shown[seed].keys() == series.keys()
        for name, points in series.items():
            assert [at for at, _ in shown[seed][name]] == [at for at, _ in points], (seed, name)
            np.testing.assert_array_equal(
                np.float32([v for _, v in shown[seed][name]]), np.float32([v for _, v in points])
            )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """An undisturbed run with both trackers, and its directory."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    return run(out), out


def test_trackers_show_the_facts(undisturbed):
    result, out = undisturbed
    wanted = expected(result)
    assert [len(points) for points in wanted[8].values()] == [13] * 8 + [2] * 2
    assert_same(tensorboard(out), wanted)
    assert_same(wandb(out), wanted)


def test_nothing_lost_and_nothing_twice_after_a_signal_a_crash_and_a_torn_write(
    undisturbed, tmp_path
):
    out = tmp_path / "run"
    with pytest.raises(exits.Stopped):
        run(out, poll=after(7))
    with pytest.raises(Crash):
        run(out, poll=after(4, Crash))  # four chunks were shown and never saved
    path = out / "tensorboard" / "seed 7" / trackers.FILE
    assert len(tensorboard(out)[7]["by step/tau"]) == 11
    path.write_bytes(
        path.read_bytes()
        + trackers.encode_event(trackers.Point(trackers.STEP, 1200, {"tau": 1.0}))[:-5]
    )
    assert len(tensorboard(out)[7]["by step/tau"]) == 11  # still readable
    run(out)
    assert_same(tensorboard(out), expected(undisturbed[0]))
    assert_same(wandb(out), expected(undisturbed[0]))


def test_a_tracker_that_comes_late_is_told_everything(undisturbed, tmp_path):
    with pytest.raises(exits.Stopped):
        run(tmp_path / "run", poll=after(10), track=config.UNTRACKED)
    assert not (tmp_path / "run" / "tensorboard").exists()
    run(tmp_path / "run", track=config.Track(tensorboard=True))
    assert_same(tensorboard(tmp_path / "run"), expected(undisturbed[0]))
    assert not (tmp_path / "run" / "wandb").exists()


def test_damage_in_the_middle_is_made_good_from_the_records(undisturbed, tmp_path):
    tensorboard_only = config.Track(tensorboard=True)
    with pytest.raises(exits.Stopped):
        run(tmp_path / "run", poll=after(10), track=tensorboard_only)
    path = tmp_path / "run" / "tensorboard" / "seed 8" / trackers.FILE
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    run(tmp_path / "run", track=tensorboard_only)
    assert_same(tensorboard(tmp_path / "run"), expected(undisturbed[0]))


@pytest.mark.slow
def test_tensorboard_reads_what_sigkill_left(tmp_path):
    code = "from ersac.cli import main; main()"
    argv = shlex.split(
        "train deep-sea --tensorboard --quiet --out run --episodes 1000000 --no-stop-when-solved "
        "--depth 5 --seeds 2 --seed 7 --hidden 8 8 --rollout 20 --chunk 5"
    )
    with subprocess.Popen([sys.executable, "-c", code, *argv], cwd=tmp_path) as process:
        path = tmp_path / "run" / "tensorboard" / "seed 8" / trackers.FILE
        until = time.monotonic() + 120
        while not path.exists() or path.stat().st_size < 20_000:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        process.kill()
    for series in tensorboard(tmp_path / "run").values():
        steps = [at for at, _ in series["by step/tau"]]
        assert steps == [100 * (n + 1) for n in range(len(steps))]
        assert len(steps) > 50


@pytest.mark.parametrize(
    ("option", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")]
)
def test_a_missing_package_is_one_line_before_jax(tmp_path, option, package):
    code = f"import sys; sys.modules.update(jax=None, {package}=None); "
    code += "from ersac.cli import main; main()"
    argv = ["train", "deep-sea", f"--{option}", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-c", code, *argv],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    install = 'pip install ".[track]" in a checkout of ersac'
    assert done.stderr == f"ersac: --{option} needs {package}: {install}\n"
    assert not os.listdir(tmp_path)


def test_a_tracker_needs_a_directory():
    words = "wandb needs a directory for the run: give it one with out"
    with pytest.raises(config.SettingsError, match=words):
        api.train(wandb=True, show=False, **SMALL)


def test_resume_has_the_options_too(undisturbed, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["resume", str(undisturbed[1]), "--tensorboard", "--quiet"])
    assert stop.value.code == 0
    assert "has already ended" in capsys.readouterr().err
