"""How `ersac bench` measures and what it prints, with workloads that take no time."""

import functools
import itertools
import json
import os

import numpy as np
import pytest
from benchmarks.measure import Comparison, Plan

import benchmarks
from benchmarks import __main__ as command
from benchmarks import growth, kernel, measure, suite, workloads
from ersac import api

PLAN = Plan(quick=True, repeats=3, seconds=1.0, seeds=2)
COMPARISON = Comparison("dense/depth_100", "ours / theirs", [20.0, 60.0, 30.0], [2.0, 2.0, 1.0])


def steady(steps: int, seconds: float, log: list[str], name: str):
    """A workload of a known pace that logs each call."""
    while True:
        log.append(name)
        yield steps, seconds


def test_workloads_take_turns_of_the_planned_length():
    log: list[str] = []
    paces = measure.measure_paces(
        {"a": steady(10, 0.5, log, "a"), "b": steady(3, 2.0, log, "b")}, PLAN, lambda text: None
    )
    assert paces == {"a": [20.0] * 3, "b": [1.5] * 3}
    assert "".join(log) == "aab" * 3


def test_ratios_are_taken_per_repeat():
    assert measure.ratio(COMPARISON) == (30.0, 10.0, 30.0, 3)
    slow_minute = COMPARISON._replace(above=[20.0, 2.0], below=[2.0, 0.2])  # of both sides
    assert measure.ratio(slow_minute)[:3] == pytest.approx((10, 10, 10))


def count_up(start: int):
    for number in itertools.count(start):
        yield number, os.getpid()


def exit_with_code_3():
    os._exit(3)


def test_a_workload_in_a_subprocess():
    makers = {
        "local": lambda: count_up(1),
        "child": functools.partial(measure.in_subprocess, count_up, 5),
    }
    warm = measure.warm_up(makers, print)
    (local, pid), (child, child_pid) = next(warm["local"]), next(warm["child"])
    assert (local, child) == (2, 6)  # the first value was taken by the warm-up
    assert pid != child_pid
    warm["child"].close()
    with pytest.raises(ProcessLookupError):
        os.kill(child_pid, 0)


@pytest.mark.parametrize(
    ("function", "message"), [(len, "exactly one argument"), (exit_with_code_3, "code 3")]
)
def test_a_failing_subprocess_raises(function, message):
    with pytest.raises(RuntimeError, match=message):
        next(measure.in_subprocess(function))


@pytest.fixture
def instant(monkeypatch):
    """A suite that measures nothing."""
    monkeypatch.setattr(
        suite,
        "SUITE",
        {name: lambda plan, on_progress: [] for name in command.NAMES}
        | {"dense": lambda plan, on_progress: [COMPARISON]},
    )


def test_json_is_the_last_line(instant, capsys):
    assert benchmarks.main(["--json", "--only", "dense", "numba"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["ratios"] == {
        "dense/depth_100": {"median": 30.0, "low": 10.0, "high": 30.0, "repeats": 3}
    }
    assert report["measured"]["dense/depth_100"] == {"above": 30.0, "below": 2.0, "unit": "steps/s"}
    assert report["machine"]["cores"] == os.cpu_count()
    assert report["date"][:2] == "20"


def test_the_tables_show_ratio_spread_and_target(instant, capsys):
    benchmarks.main(["--markdown"])
    assert "| ours / theirs | 30x | 10 to 30 | >= 10: yes |" in capsys.readouterr().out
    benchmarks.main([])
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("30x", "10 to 30", ">= 10: yes", "30 / 2 steps/s"))


@pytest.mark.parametrize(
    "argv", [["--only", "nothing"], ["--repeats", "0"], ["--seeds", "few"], ["--fast"]]
)
def test_bad_options_are_refused_before_measuring(argv, monkeypatch, capsys):
    monkeypatch.setattr(command, "measure", lambda options: pytest.fail("measured"))
    with pytest.raises(SystemExit) as stop:
        benchmarks.main(argv)
    assert stop.value.code == 2


def test_names_are_those_of_the_suite():
    assert tuple(suite.SUITE) == command.NAMES
    assert {name.split("/")[0] for name in suite.TARGETS} <= set(command.NAMES)


def test_the_dense_agent_and_the_kernel_accept_the_table_settings():
    settings = api.make_settings(depth=5, seeds=1, shared_reward_heads=True, **workloads.TABLE)
    kernel.make_constants(settings.agent, 5, np.float32)
    assert isinstance(next(workloads.ersac(5, chunk=1, rollout=5, **workloads.TABLE))[0], int)


@pytest.mark.slow
def test_bsuite_runs_as_published():
    episodes = workloads.bsuite_chunks("actor_critic", depth=4, first=2, then=3)
    assert [steps for steps, _ in itertools.islice(episodes, 3)] == [8, 12, 12]


def allocate_64_megabytes():
    before = growth.peak_resident_bytes()
    memory = bytearray(64 * 2**20)
    memory[:: 2**10] = bytes([1]) * len(memory[:: 2**10])
    yield before, growth.peak_resident_bytes()


def test_peak_memory_is_that_of_one_process():
    """In a new process: this one may have had a higher peak before."""
    before, after = next(measure.in_subprocess(allocate_64_megabytes))
    assert after - before > 32 * 2**20
