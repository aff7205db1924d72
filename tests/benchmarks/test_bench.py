"""How the benchmark measures and what it prints, without waiting for what it measures."""

import functools
import itertools
import json
import os

import pytest
from benchmarks.measure import Finding, Plan

import benchmarks
from benchmarks import __main__ as command
from benchmarks import contestants, growth, measure, suite

PLAN = Plan(quick=True, repeats=3, seconds=1.0, seeds=2)
FINDING = Finding("dense/depth_100", "ours / theirs", [20.0, 60.0, 30.0], [2.0, 2.0, 1.0])


def steady(steps: int, seconds: float, log: list[str], name: str):
    """A contestant of a known pace that says when it was asked."""
    while True:
        log.append(name)
        yield steps, seconds


def test_sides_take_turns_for_as_long_as_was_planned():
    log: list[str] = []
    paces = measure.alternate(
        {"a": steady(10, 0.5, log, "a"), "b": steady(3, 2.0, log, "b")}, PLAN, lambda text: None
    )
    assert paces == {"a": [20.0] * 3, "b": [1.5] * 3}
    assert "".join(log) == "aab" * 3


def test_a_ratio_is_taken_repeat_by_repeat():
    assert measure.ratio(FINDING) == (30.0, 10.0, 30.0, 3)
    slow_minute = FINDING._replace(
        above=[20.0, 2.0], below=[2.0, 0.2]
    )  # hits both sides, and so neither
    assert measure.ratio(slow_minute)[:3] == pytest.approx((10, 10, 10))


def count_up(start: int):
    for number in itertools.count(start):
        yield number, os.getpid()


def vanish():
    os._exit(3)


def test_a_contestant_may_live_in_a_process_of_its_own():
    contestants = measure.prepared(
        {"here": lambda: count_up(1), "there": functools.partial(measure.resident, count_up, 5)},
        print,
    )
    (here, ours), (there, theirs) = next(contestants["here"]), next(contestants["there"])
    assert (here, there) == (2, 6)  # past the first chunk, in which it compiled
    assert ours != theirs
    contestants["there"].close()
    with pytest.raises(ProcessLookupError):
        os.kill(theirs, 0)


@pytest.mark.parametrize(
    ("function", "message"), [(len, "exactly one argument"), (vanish, "code 3")]
)
def test_a_process_that_fails_is_an_error_here(function, message):
    with pytest.raises(RuntimeError, match=message):
        next(measure.resident(function))


@pytest.fixture
def instant(monkeypatch):
    """The command, with a suite that knows its answers."""
    monkeypatch.setattr(
        suite,
        "SUITE",
        {name: lambda plan, tell: [] for name in command.NAMES}
        | {"dense": lambda plan, tell: [FINDING]},
    )


def test_json_is_the_last_line(instant, capsys):
    assert benchmarks.main(["--json", "--only", "dense", "numba"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["ratios"] == {
        "dense/depth_100": {"median": 30.0, "low": 10.0, "high": 30.0, "repeats": 3}
    }
    assert told["measured"]["dense/depth_100"] == {"above": 30.0, "below": 2.0, "unit": "steps/s"}
    assert told["machine"]["cores"] == os.cpu_count()
    assert told["date"][:2] == "20"


def test_the_tables_show_ratio_spread_and_promise(instant, capsys):
    benchmarks.main(["--markdown"])
    assert "| ours / theirs | 30x | 10 to 30 | >= 10: yes |" in capsys.readouterr().out
    benchmarks.main([])
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("30x", "10 to 30", ">= 10: yes", "30 / 2 steps/s"))


@pytest.mark.parametrize(
    "argv", [["--only", "nothing"], ["--repeats", "0"], ["--seeds", "few"], ["--fast"]]
)
def test_options_are_refused_before_anything_is_measured(argv, monkeypatch, capsys):
    monkeypatch.setattr(command, "measure", lambda options: pytest.fail("measured"))
    with pytest.raises(SystemExit) as stop:
        benchmarks.main(argv)
    assert stop.value.code == 2


def test_names_are_those_of_the_suite():
    assert tuple(suite.SUITE) == command.NAMES
    assert {name.split("/")[0] for name in suite.WANTED} <= set(command.NAMES)


@pytest.mark.slow
def test_bsuite_runs_as_published():
    episodes = contestants.bsuite_chunks("actor_critic", depth=4, first=2, then=3)
    assert [steps for steps, _ in itertools.islice(episodes, 3)] == [8, 12, 12]


def test_memory_is_this_process_s_own():
    before = growth.peak_resident_bytes()
    room = bytearray(64 * 2**20)
    room[:: 2**10] = bytes([1]) * len(room[:: 2**10])
    assert growth.peak_resident_bytes() - before > 32 * 2**20
