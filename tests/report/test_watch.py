"""`ersac watch`: runs that have ended, were stopped, or go on elsewhere."""

import json
import shutil
import threading
import time

import pytest

import ersac
from ersac.cli import main
from ersac.cli.watch import WatchOptions, follow_run
from ersac.runs import disk, exits, run_dir


def watch(capsys, *argv: str) -> tuple[int, list[str]]:
    with pytest.raises(SystemExit) as ended:
        main(["watch", *argv])
    return ended.value.code, capsys.readouterr().out.splitlines()


def test_an_ended_run_shows_its_results(runs, capsys):
    code, lines = watch(capsys, str(runs.first), "--json")
    assert code == 0
    assert lines[0] == f"{runs.first} has ended"
    shown = json.loads(lines[-1])
    assert shown["state"] == "ended"
    assert shown["summary"]["per_seed"] == ersac.read(runs.first).summary()["per_seed"]


def test_a_stopped_run_says_how_to_resume(runs, capsys):
    code, lines = watch(capsys, str(runs.stopped), "--json")
    stopped = ersac.read(runs.stopped)
    shown = json.loads(lines[-1])
    assert code == 0
    assert lines[-2].startswith(f"{runs.stopped} was stopped: its checkpoint of ")
    assert lines[-2].endswith(f"ago; resume with: ersac resume {runs.stopped}")
    assert shown["state"] == "stopped"
    assert shown["resume"] == f"ersac resume {runs.stopped}"
    assert shown["steps"] == stopped.steps_per_seed
    assert shown["episodes"] == min(len(stats.goals) for stats in stopped.seeds)
    assert 0 <= shown["checkpoint_age_seconds"] < 3600


def test_a_damaged_run_says_why(runs, capsys):
    code, lines = watch(capsys, str(runs.damaged))
    assert code == exits.IO  # a script that waits for the run must not go on
    assert f"{runs.damaged} is damaged: facts.npz" in lines[-1]


def test_once_shows_a_run_under_way_and_ends(runs, capsys):
    with disk.lock(runs.stopped / run_dir.LOCK):
        code, lines = watch(capsys, str(runs.stopped), "--once", "--json")
    assert code == 0
    assert json.loads(lines[-1])["state"] == "running"
    assert "is under way (process" in lines[-2]
    assert "eta" in lines[0]


def test_a_run_before_its_first_checkpoint_is_named(runs, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    for name in (run_dir.SETTINGS, run_dir.FINGERPRINT):
        shutil.copy(runs.first / name, run)
    with disk.lock(run / run_dir.LOCK):
        _, lines = watch(capsys, str(run), "--once")
    assert lines[-1].endswith("it has written no checkpoint yet")


def test_it_follows_a_run_until_it_ends(runs, tmp_path, capsys):
    """The run's lock is released, and its summary appears, while it is watched."""
    run = tmp_path / "run"
    shutil.copytree(runs.first, run)
    summary = (run / run_dir.SUMMARY).read_bytes()
    (run / run_dir.SUMMARY).unlink()
    locked, done = threading.Event(), threading.Event()

    def finish() -> None:
        with disk.lock(run / run_dir.LOCK):
            locked.set()
            time.sleep(0.5)
            (run / run_dir.SUMMARY).write_bytes(summary)
        done.set()

    thread = threading.Thread(target=finish)
    thread.start()
    locked.wait()
    options = WatchOptions(run, every=0.1)
    view = follow_run(run, run_dir.read_settings(run), options)
    thread.join()
    assert done.is_set()
    assert view.state == "ended"
    assert "episode 300/300" in capsys.readouterr().out


def test_what_is_no_run_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["watch", str(tmp_path)])
    assert ended.value.code == 2
    assert "holds no run" in capsys.readouterr().err
