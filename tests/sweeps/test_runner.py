"""A sweep is run: wanted minus present, in batches that never change, each run with a record of its own."""

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


def instance(line: str, agent: str = "ersac", depth: int = 5, seed: int = 0, **changes) -> Instance:
    return Instance(
        line, api.make_settings("deep-sea", agent, depth=depth, seed=seed, **(SMALL | changes))
    )


WANTED = [
    instance(f"lambda-{lam}", seed=seed, lam=lam) for lam in (0.5, 0.9) for seed in (0, 1)
] + [instance("shallow", depth=3)]


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    """Checkpoints after every chunk."""
    monkeypatch.setattr(checkpointer, "COST_SHARE", float("inf"))


class Shown:
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.seen: list[display.SweepStatus] = []

    def show(self, status: display.SweepStatus) -> None:
        self.seen.append(status)

    def close(self) -> None:
        pass


def run(
    home: Path, wanted=WANTED, poll: Callable[[], int] = lambda: 0, screen=None
) -> runner.Report:
    return runner.run_sweep(
        "a sweep", wanted, home, engines.run_local, screen or display.NullDisplay(), poll
    )


def after(asked: int) -> Callable[[], int]:
    """A signal that comes when it has been asked for so often."""
    times = itertools.count()
    return lambda: 2 if next(times) >= asked else 0


def left(home: Path, wanted=WANTED) -> dict[str, object]:
    """What is left of each run that has ended: its facts, and its verdicts without times and places."""
    found: dict[str, object] = {}
    for each in wanted:
        if (summary := run_dir.valid_summary(home / each.name, each.settings)) is not None:
            found[each.name] = {
                name: summary[name]
                for name in ("steps", "per_seed", "settings_hash", "departures", "facts_sha256")
            }
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, runner.Report, Shown]:
    """A sweep that was never disturbed."""
    home, screen = tmp_path_factory.mktemp("whole") / "sweep", Shown()
    return home, run(home, screen=screen), screen


def test_batches_share_a_program_and_are_the_same_whatever_is_there(tmp_path):
    many = [
        instance(f"gamma-{gamma}", seed=seed, gamma=gamma)
        for gamma in (0.9, 0.99)
        for seed in range(20)
    ]
    many += [
        instance("longer", episodes=61),
        instance("deeper", depth=6),
        instance("counts", uncertainty="counts"),
    ]
    found = runner.make_batches(tmp_path, many)
    assert [
        each for batch in found for each in batch.instances
    ] == many  # each once, in the order of the sweep
    assert all(
        len({device.static_device_settings(each.settings) for each in batch.instances}) == 1
        for batch in found
    )
    widest = runner.RUNS_PER_CORE * devices.visible_cores()
    assert max(len(batch.instances) for batch in found) <= widest
    sizes = [len(batch.instances) for batch in found[:-3]]
    assert len(sizes) == -(-40 // widest)
    assert max(sizes) - min(sizes) < len(sizes)  # even, so that most share a shape
    assert runner.plan_batches(tmp_path, many) == found
    assert len({batch.name for batch in found}) == len(found)


def test_a_batch_fits_into_half_of_the_memory(monkeypatch):
    settings = instance("big", depth=250).settings
    monkeypatch.setattr(
        runner.config, "memory_bytes", lambda: 6 * runner.config.bytes_needed(settings)
    )
    assert runner.max_batch_size(settings) == 3
    monkeypatch.setattr(runner.config, "memory_bytes", lambda: 1)
    assert runner.max_batch_size(settings) == 1


def test_a_sweep_ends_and_is_not_run_again(whole):
    home, report, _ = whole
    assert report == runner.Report(5, 5, {}, {})
    report.raise_if_incomplete(home)  # raises nothing
    assert len(left(home)) == 5
    assert runner.plan_batches(home, WANTED) == []
    assert disk.names(home / runner.BATCHES) == []  # checkpoints go when the records are there
    before = {
        path: path.stat().st_mtime_ns for path in home.rglob("*.*") if path.name != runner.SWEEP
    }
    assert run(home) == report
    assert {
        path: path.stat().st_mtime_ns for path in home.rglob("*.*") if path.name != runner.SWEEP
    } == before


def test_progress_only_grows_and_ends_at_the_end(whole):
    _, _, screen = whole
    steps = [status.steps for status in screen.seen]
    assert steps == sorted(steps)
    last = screen.seen[-1]
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


def test_a_run_of_a_batch_is_that_run(whole):
    """The same goals as alone; other numbers beside it do not matter."""
    home, _, _ = whole
    each = WANTED[3]
    alone, beside = (
        api.run_experiment(each.settings, None, display.NullDisplay()),
        api.read_result(home / each.name),
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
def test_stopped_and_continued_it_has_the_same_bits(whole, tmp_path, capsys, asked):
    with pytest.raises(exits.Stopped, match=r"^stopped; resume with the same command$"):
        run(tmp_path / "sweep", poll=after(asked))
    assert capsys.readouterr().err == ""  # nothing broke, not even where nothing had been done yet
    screen = Shown()
    assert run(tmp_path / "sweep", screen=screen) == whole[1]
    assert left(tmp_path / "sweep") == left(whole[0])
    assert screen.seen[-1].steps_here <= screen.seen[-1].steps_wanted
    assert (screen.seen[-1].steps_here < screen.seen[-1].steps_wanted) == (asked > 1)


def test_what_is_damaged_is_run_again_and_nothing_else(whole, tmp_path):
    home = tmp_path / "sweep"
    run(home)
    broken, *others = (home / each.name for each in WANTED[:4])
    (broken / "facts.npz").write_bytes(b"nothing")
    before = {path: (path / "summary.json").read_bytes() for path in others}
    assert [batch.instances for batch in runner.plan_batches(home, WANTED)] == [tuple(WANTED[:4])]
    run(home)
    assert left(home) == left(whole[0])
    assert {path: (path / "summary.json").read_bytes() for path in others} == before


@pytest.fixture
def spoiler(monkeypatch):
    """A house in which a run with 77 seconds between checkpoints gets a bad reward. Its programs are nobody else's."""

    def forget() -> None:
        device._compiled.cache_clear()

    def build(settings, whole=device.build):
        env, agent = whole(settings)

        def step(*args):
            told = env.step(*args)
            return told._replace(
                reward=jnp.where(settings.run.checkpoint_seconds == 77, jnp.nan, told.reward)
            )

        return env._replace(step=step), agent

    forget()
    monkeypatch.setattr(device, "build", build)
    yield
    forget()


def test_a_run_that_goes_bad_is_named_and_the_rest_end_as_they_would(
    whole, spoiler, tmp_path, capsys
):
    home, sick = tmp_path / "sweep", WANTED[1]
    wanted = [
        each if each != sick else instance("lambda-0.5", seed=1, lam=0.5, checkpoint_seconds=77.0)
        for each in WANTED
    ]
    reason = "reward is not finite at step 1 (rollout 1) of seed 1"
    with pytest.raises(exits.Stopped):
        run(home, wanted, poll=after(2))  # it has failed by now, and is saved among the others
    report = run(home, wanted)
    assert report == runner.Report(4, 5, {sick.name: reason}, {})
    assert capsys.readouterr().err == f"ersac: {sick.name} failed: {reason}\n"
    assert left(home) == {name: told for name, told in left(whole[0]).items() if name != sick.name}
    with pytest.raises(exits.NonFinite, match=r"^1 of 5 runs failed; ersac runs .* lists them$"):
        report.raise_if_incomplete(home)
    assert runner.plan_batches(home, wanted) == []  # it would only fail again
    assert run(home, wanted) == report
    rows = {Path(row.run).name: row for row in listing.find_runs(home)}
    assert rows[sick.name].describe_state() == f"failed: {reason}"
    assert sorted(row.state for row in rows.values()) == ["ended"] * 4 + ["failed"]


def test_a_batch_in_which_all_go_bad_ends_at_once(spoiler, tmp_path):
    wanted = [
        instance("bad", seed=seed, episodes=10**6, checkpoint_seconds=77.0) for seed in range(4)
    ]
    assert len(run(tmp_path / "sweep", wanted).failed) == 4


def test_a_batch_that_breaks_is_named_and_the_others_go_on(whole, tmp_path, monkeypatch, capsys):
    home = tmp_path / "sweep"

    def prepare(settings, variants, whole=device.prepare_device):
        if settings.env.depth == 5:
            raise RuntimeError("no room\non the device")
        return whole(settings, variants)

    with monkeypatch.context() as patch:
        patch.setattr(device, "DEVICE_LOOP", device.DEVICE_LOOP._replace(prepare=prepare))
        report = run(home)
    why = "RuntimeError: no room on the device"
    assert report == runner.Report(1, 5, {}, dict.fromkeys((each.name for each in WANTED[:4]), why))
    assert (
        capsys.readouterr().err == f"ersac: a batch of 4 runs from {WANTED[0].name} failed: {why}\n"
    )
    with pytest.raises(
        exits.Resumable, match=r"^4 of 5 runs are missing in .*; resume with the same command$"
    ):
        report.raise_if_incomplete(home)
    assert run(home) == whole[1]
    assert left(home) == left(whole[0])


def test_half_removed_checkpoints_are_nobodys(whole, tmp_path):
    """A crash while a batch is cleared away leaves it under a name that nothing reads."""
    home = tmp_path / "sweep"
    with pytest.raises(exits.Stopped):
        run(home, poll=after(3))
    batch = home / runner.BATCHES / disk.names(home / runner.BATCHES)[0]
    batch.rename(batch.with_name(batch.name + runner.REMOVED))
    next(batch.with_name(batch.name + runner.REMOVED).rglob("*.npz")).unlink()
    assert run(home) == whole[1]
    assert left(home) == left(whole[0])
    assert disk.names(home / runner.BATCHES) == []


def test_a_directory_belongs_to_one_sweep(whole, tmp_path):
    home, _, _ = whole
    with pytest.raises(SettingsError, match="holds another sweep: a sweep; choose another"):
        runner.run_sweep("another", WANTED, home, engines.run_local, display.NullDisplay())
    with disk.lock(home / run_dir.LOCK), pytest.raises(SettingsError, match="is in use by process"):
        run(home)
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(SettingsError, match="holds something that is not a sweep"):
        run(tmp_path)
    assert disk.names(tmp_path) == ["thesis.tex"]


def test_the_list_counts_a_sweep_and_what_is_under_way(whole, tmp_path):
    home = tmp_path / "sweep"
    rarely = [
        each._replace(settings=config.override(each.settings, checkpoint_seconds=1e6))
        for each in WANTED
    ]
    with pytest.raises(exits.Stopped):
        run(home, rarely, poll=after(3))  # saved because it was stopped, and for no other reason
    rows = list(listing.find_runs(tmp_path))
    assert [Path(row.run).name for row in rows] == [
        each.name for each in WANTED[:4]
    ]  # the fifth was never begun
    episodes = 2 * 5 * 20 // 5  # two chunks
    assert {row.describe_state() for row in rows} == {f"stopped at episode {episodes}"}
    batch = next((home / runner.BATCHES).iterdir())
    with disk.lock(batch / run_dir.LOCK):
        assert all(
            row.describe_state().startswith("running process ")
            for row in listing.find_runs(tmp_path)
        )
    told = json.loads(json.dumps(listing.listing_json(list(listing.find_runs(whole[0])))))
    assert told["sweeps"] == [
        {"directory": str(whole[0]), "sweep": "a sweep", "ended": 5, "failed": 0, "wanted": 5}
    ]
    assert (told["ended"], told["damaged"]) == (5, 0)
