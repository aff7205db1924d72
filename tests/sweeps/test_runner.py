"""Sweeps run what is missing, in batches that never change, with a record for every run."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from jax import numpy as jnp

from ersac import api, config, display
from ersac.config import SettingsError
from ersac.loops import device, devices
from ersac.runs import checkpointer, disk, exits, run_dir
from ersac.sweeps import engines, listing, runner
from ersac.sweeps.catalogue import Instance

devices.claim_cores()
SMALL = {
    "seeds": 1,
    "hidden": (8, 8),
    "rollout": 20,
    "chunk": 5,
    "episodes": 60,
    "stop_when_solved": False,
    "checkpoint_seconds": 0.0,
}


def make_instance(
    line: str, agent: str = "ersac", depth: int = 5, seed: int = 0, **changes
) -> Instance:
    return Instance(
        line, api.make_settings("deep-sea", agent, depth=depth, seed=seed, **(SMALL | changes))
    )


WANTED = [
    make_instance(f"lambda-{lam}", seed=seed, lam=lam) for lam in (0.5, 0.9) for seed in (0, 1)
] + [make_instance("shallow", depth=3)]


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    """Checkpoints after every chunk."""
    monkeypatch.setattr(checkpointer, "COST_SHARE", float("inf"))


class RecordingDisplay:
    """Stores every status that it is shown."""

    def __init__(self) -> None:
        self.statuses: list[display.SweepStatus] = []

    def show(self, status: display.SweepStatus) -> None:
        self.statuses.append(status)

    def close(self) -> None:
        pass


def run(
    home: Path, wanted=WANTED, poll: Callable[[], int] = lambda: 0, screen=None
) -> runner.Report:
    return runner.run_sweep(
        "a sweep", wanted, home, engines.run_local, screen or display.NullDisplay(), poll
    )


def signal_after(asked: int) -> Callable[[], int]:
    """A poll function that returns a signal after so many calls."""
    times = itertools.count()
    return lambda: 2 if next(times) >= asked else 0


def summaries(home: Path, wanted=WANTED) -> dict[str, object]:
    """The summary of every ended run, without times and paths."""
    found: dict[str, object] = {}
    for instance in wanted:
        if (summary := run_dir.valid_summary(home / instance.name, instance.settings)) is not None:
            found[instance.name] = {
                name: summary[name]
                for name in ("steps", "per_seed", "settings_hash", "departures", "facts_sha256")
            }
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[Path, runner.Report, RecordingDisplay]:
    """A sweep that was run without interruption."""
    home, screen = tmp_path_factory.mktemp("undisturbed") / "sweep", RecordingDisplay()
    return home, run(home, screen=screen), screen


def test_batches_share_a_program_and_do_not_depend_on_existing_runs(tmp_path):
    many = [
        make_instance(f"gamma-{gamma}", seed=seed, gamma=gamma)
        for gamma in (0.9, 0.99)
        for seed in range(20)
    ]
    many += [
        make_instance("longer", episodes=61),
        make_instance("deeper", depth=6),
        make_instance("counts", uncertainty="counts"),
    ]
    found = runner.make_batches(tmp_path, many)
    assert [
        instance for batch in found for instance in batch.instances
    ] == many  # each once, in the order of the sweep
    assert all(
        len({device.static_device_settings(instance.settings) for instance in batch.instances}) == 1
        for batch in found
    )
    widest = runner.RUNS_PER_CORE * devices.visible_cores()
    assert max(len(batch.instances) for batch in found) <= widest
    sizes = [len(batch.instances) for batch in found[:-3]]
    assert len(sizes) == -(-40 // widest)
    assert max(sizes) - min(sizes) < len(sizes)  # even, so that most share a shape
    assert runner.unfinished(runner.make_batches(tmp_path, many)) == found
    assert len({batch.name for batch in found}) == len(found)


def test_parts_are_of_nearly_equal_size():
    """On any number of cores: 4, 4, 3, not 5, 5, 1."""
    assert [len(part) for part in runner._even_parts(list(range(11)), 5)] == [4, 4, 3]


def test_a_batch_fits_into_half_of_the_memory(monkeypatch):
    settings = make_instance("big", depth=250).settings
    monkeypatch.setattr(
        runner.config, "memory_bytes", lambda: 6 * runner.config.bytes_needed(settings)
    )
    assert runner.max_batch_size(settings) == 3
    monkeypatch.setattr(runner.config, "memory_bytes", lambda: 1)
    assert runner.max_batch_size(settings) == 1


def test_a_sweep_ends_and_is_not_run_again(undisturbed):
    home, report, _ = undisturbed
    assert report == runner.Report(5, 5, {}, {})
    report.raise_if_incomplete(home)  # raises nothing
    assert len(summaries(home)) == 5
    assert runner.unfinished(runner.make_batches(home, WANTED)) == []
    assert disk.names(home / runner.BATCHES) == []  # checkpoints go when the records are there
    before = {
        path: path.stat().st_mtime_ns for path in home.rglob("*.*") if path.name != runner.SWEEP
    }
    assert run(home) == report
    assert {
        path: path.stat().st_mtime_ns for path in home.rglob("*.*") if path.name != runner.SWEEP
    } == before


def test_progress_increases_to_the_total(undisturbed):
    _, _, screen = undisturbed
    steps = [status.steps for status in screen.statuses]
    assert steps == sorted(steps)
    last = screen.statuses[-1]
    assert last.steps == last.steps_wanted == last.steps_here == 60 * (4 * 5 + 3)
    assert (last.batches, last.batches_wanted, last.runs, last.runs_wanted, last.failed) == (
        2,
        2,
        5,
        5,
        0,
    )
    assert (
        display.format_sweep_status(last)
        == "100% of 1,380 steps  eta 0 s  batches 2/2  runs 5/5  failed 0"
    )


def test_a_run_in_a_batch_equals_the_run_alone(undisturbed):
    """The same goals as alone; other numbers beside it do not matter."""
    home, _, _ = undisturbed
    instance = WANTED[3]
    alone, beside = (
        api.run_experiment(instance.settings, None, display.NullDisplay()),
        api.read_result(home / instance.name),
    )
    np.testing.assert_array_equal(alone.seeds[0].goals, beside.seeds[0].goals)
    np.testing.assert_allclose(alone.metrics.values["tau"], beside.metrics.values["tau"], rtol=1e-4)
    assert (alone.steps, alone.summary()["settings_hash"]) == (
        beside.steps,
        beside.summary()["settings_hash"],
    )
    assert beside.picture() is not None
    other = api.read_result(home / WANTED[1].name)  # the same seed with another lambda
    assert not np.allclose(other.metrics.values["tau"], beside.metrics.values["tau"], rtol=1e-4)


@pytest.mark.parametrize("asked", [1, 2, 4, 6])
def test_an_interrupted_sweep_has_the_same_bits(undisturbed, tmp_path, capsys, asked):
    with pytest.raises(exits.Stopped, match=r"^stopped; resume with the same command$"):
        run(tmp_path / "sweep", poll=signal_after(asked))
    assert capsys.readouterr().err == ""  # nothing broke, not even where nothing had been done yet
    screen = RecordingDisplay()
    assert run(tmp_path / "sweep", screen=screen) == undisturbed[1]
    assert summaries(tmp_path / "sweep") == summaries(undisturbed[0])
    assert screen.statuses[-1].steps_here <= screen.statuses[-1].steps_wanted
    assert (screen.statuses[-1].steps_here < screen.statuses[-1].steps_wanted) == (asked > 1)


def test_only_damaged_runs_are_run_again(undisturbed, tmp_path):
    home = tmp_path / "sweep"
    run(home)
    broken, *others = (home / instance.name for instance in WANTED[:4])
    (broken / "facts.npz").write_bytes(b"nothing")
    before = {path: (path / "summary.json").read_bytes() for path in others}
    assert [batch.instances for batch in runner.unfinished(runner.make_batches(home, WANTED))] == [
        tuple(WANTED[:4])
    ]
    run(home)
    assert summaries(home) == summaries(undisturbed[0])
    assert {path: (path / "summary.json").read_bytes() for path in others} == before


@pytest.fixture
def nan_reward(monkeypatch):
    """Rewards are nan in runs with 77 seconds between checkpoints; clears compiled programs."""

    def forget() -> None:
        device._compiled.cache_clear()

    def build(settings, original=device.build):
        env, agent = original(settings)

        def step(*args):
            output = env.step(*args)
            return output._replace(
                reward=jnp.where(settings.run.checkpoint_seconds == 77, jnp.nan, output.reward)
            )

        return env._replace(step=step), agent

    forget()
    monkeypatch.setattr(device, "build", build)
    yield
    forget()


def test_a_run_with_nan_fails_and_the_others_are_unchanged(
    undisturbed, nan_reward, tmp_path, capsys
):
    home, failing = tmp_path / "sweep", WANTED[1]
    wanted = [
        instance
        if instance != failing
        else make_instance("lambda-0.5", seed=1, lam=0.5, checkpoint_seconds=77.0)
        for instance in WANTED
    ]
    reason = "reward is not finite at step 1 (rollout 1) of seed 1"
    with pytest.raises(exits.Stopped):
        run(home, wanted, poll=signal_after(2))  # after it has failed
    report = run(home, wanted)
    assert report == runner.Report(4, 5, {failing.name: reason}, {})
    assert capsys.readouterr().err == f"ersac: {failing.name} failed: {reason}\n"
    assert summaries(home) == {
        name: summary for name, summary in summaries(undisturbed[0]).items() if name != failing.name
    }
    with pytest.raises(exits.NonFinite, match=r"^1 of 5 runs failed; ersac runs .* lists them$"):
        report.raise_if_incomplete(home)
    assert runner.unfinished(runner.make_batches(home, wanted)) == []  # it would only fail again
    assert run(home, wanted) == report
    rows = {Path(row.run).name: row for row in listing.find_runs(home)}
    assert rows[failing.name].describe_state() == f"failed: {reason}"
    assert sorted(row.state for row in rows.values()) == ["ended"] * 4 + ["failed"]


def test_a_batch_whose_runs_all_fail_ends_at_once(nan_reward, tmp_path):
    wanted = [
        make_instance("bad", seed=seed, episodes=10**6, checkpoint_seconds=77.0)
        for seed in range(4)
    ]
    assert len(run(tmp_path / "sweep", wanted).failed) == 4


def test_a_batch_with_an_error_is_reported_and_the_others_run(
    undisturbed, tmp_path, monkeypatch, capsys
):
    home = tmp_path / "sweep"

    def prepare(settings, variants, original=device.prepare_device):
        if settings.env.depth == 5:
            raise RuntimeError("no room\non the device")
        return original(settings, variants)

    with monkeypatch.context() as patch:
        patch.setattr(device, "DEVICE_LOOP", device.DEVICE_LOOP._replace(prepare=prepare))
        report = run(home)
    why = "RuntimeError: no room on the device"
    assert report == runner.Report(
        1, 5, {}, dict.fromkeys((instance.name for instance in WANTED[:4]), why)
    )
    assert (
        capsys.readouterr().err == f"ersac: a batch of 4 runs from {WANTED[0].name} failed: {why}\n"
    )
    with pytest.raises(
        exits.Resumable, match=r"^4 of 5 runs are missing in .*; resume with the same command$"
    ):
        report.raise_if_incomplete(home)
    assert run(home) == undisturbed[1]
    assert summaries(home) == summaries(undisturbed[0])


def test_half_removed_checkpoints_are_ignored(undisturbed, tmp_path):
    """A crash while a batch is removed leaves it under a name that is not read."""
    home = tmp_path / "sweep"
    with pytest.raises(exits.Stopped):
        run(home, poll=signal_after(3))
    batch = home / runner.BATCHES / disk.names(home / runner.BATCHES)[0]
    batch.rename(batch.with_name(batch.name + runner.REMOVED))
    next(batch.with_name(batch.name + runner.REMOVED).rglob("*.npz")).unlink()
    assert run(home) == undisturbed[1]
    assert summaries(home) == summaries(undisturbed[0])
    assert disk.names(home / runner.BATCHES) == []


def test_a_directory_holds_one_sweep(undisturbed, tmp_path):
    home, _, _ = undisturbed
    with pytest.raises(SettingsError, match="holds another sweep: a sweep; choose another"):
        runner.run_sweep("another", WANTED, home, engines.run_local, display.NullDisplay())
    with disk.lock(home / run_dir.LOCK), pytest.raises(SettingsError, match="is in use by process"):
        run(home)
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(SettingsError, match="holds something that is not a sweep"):
        run(tmp_path)
    assert disk.names(tmp_path) == ["thesis.tex"]


def test_ersac_runs_counts_a_sweep_and_its_unfinished_runs(undisturbed, tmp_path):
    home = tmp_path / "sweep"
    rarely = [
        instance._replace(settings=config.override(instance.settings, checkpoint_seconds=1e6))
        for instance in WANTED
    ]
    with pytest.raises(exits.Stopped):
        run(home, rarely, poll=signal_after(3))  # saved only because it was stopped
    rows = list(listing.find_runs(tmp_path))
    assert [Path(row.run).name for row in rows] == [
        instance.name for instance in WANTED[:4]
    ]  # the fifth was never begun
    episodes = 2 * 5 * 20 // 5  # two chunks
    assert {row.describe_state() for row in rows} == {f"stopped at episode {episodes}"}
    batch = next((home / runner.BATCHES).iterdir())
    with disk.lock(batch / run_dir.LOCK):
        assert all(
            row.describe_state().startswith("running process ")
            for row in listing.find_runs(tmp_path)
        )
    data = json.loads(json.dumps(listing.listing_json(list(listing.find_runs(undisturbed[0])))))
    assert data["sweeps"] == [
        {"directory": str(undisturbed[0]), "sweep": "a sweep", "ended": 5, "failed": 0, "wanted": 5}
    ]
    assert (data["ended"], data["damaged"]) == (5, 0)
