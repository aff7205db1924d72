"""Run directories: what is read is what was written."""

import json
import platform
import re
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from ersac import api, config, display
from ersac.config.presets import PRESETS
from ersac.runs import checkpoint, disk, fingerprint, run_dir
from ersac.runs.run_dir import EpisodeStats, Metrics

DRAW = np.random.default_rng(0)
FEW = DRAW.choice(np.float32([-0.0098, 0.9902, 0.0, -0.0, np.nan, np.inf]), 1000)
MANY = DRAW.normal(size=1000).astype(np.float32)


@pytest.mark.parametrize(
    "returns",
    [FEW, MANY, MANY[:256], MANY[:257], FEW[:0]],
    ids=["few", "many", "256", "257", "none"],
)
def test_returns_are_kept_to_the_last_bit(tmp_path, returns):
    """As floats or, if there are few different ones as in DeepSea, as codes."""
    stats = EpisodeStats(3, DRAW.random(len(returns)) < 0.5, returns)
    run_dir.write_results(
        tmp_path, [stats], Metrics(np.arange(2), {"tau": np.ones((1, 2))}), [], None, {}
    )
    (found,), _, _ = run_dir.read_results(tmp_path)
    assert found.returns.dtype == np.float32
    assert found.returns.tobytes() == returns.tobytes()
    np.testing.assert_array_equal(found.goals, stats.goals)
    with np.load(tmp_path / run_dir.RESULTS) as file:  # codes cannot be mistaken for returns
        are_coded = len(np.unique(returns)) <= 256
        assert ("seed/3/return_codes" in file) == are_coded
        assert ("seed/3/returns" in file) == (not are_coded)


def test_the_page_names_every_array_of_a_record(tmp_path):
    """Returns that are codes, steps and lengths: nobody has to guess what an array is."""
    count = 3
    stats = EpisodeStats(3, np.ones(count, bool), FEW[:count], np.arange(count), np.arange(count))
    other = EpisodeStats(4, np.ones(len(MANY), bool), MANY)
    maps = run_dir.MapSnapshot(1, *np.ones((3, 2, 2)))
    metrics = Metrics(np.arange(2), {"tau": np.ones((2, 2))})
    run_dir.write_results(tmp_path, [stats, other], metrics, [maps], None, {})
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    with np.load(tmp_path / run_dir.RESULTS) as file:
        names = {re.sub(r"^seed/\d+", "seed/N", name) for name in file.files}
    names = {name.replace("metric/tau", "metric/NAME") for name in names}
    assert "seed/N/lengths" in names
    assert [name for name in names if f"`{name}`" not in page] == []


def test_a_run_that_is_refused_late_leaves_nothing(tmp_path):
    """An estimator is checked once the environment exists; a run's results are never removed."""
    with pytest.raises(config.SettingsError, match="does not fit the observations"):
        api.run_experiment(
            api.make_settings("gymnax:CartPole-v1", uncertainty="counts"),
            tmp_path / "run",
            display.make_display(False),
        )
    assert not (tmp_path / "run").exists()

    def refused_with_something_to_show() -> None:
        with run_dir.hold_run(tmp_path / "run", config.Experiment(), resume=False):
            (tmp_path / "run" / run_dir.RESULTS).touch()
            raise config.SettingsError("late")

    with pytest.raises(config.SettingsError, match="late"):
        refused_with_something_to_show()
    assert (tmp_path / "run" / run_dir.SETTINGS).exists()


def estimator_at_another_address():
    """A function with the same name each time, as an imported one has in every process."""

    def own(*args):
        return None

    return own


def test_an_estimator_of_ones_own_is_compared_by_its_name(tmp_path):
    """Not by its address in memory, which changes with every process."""
    make = lambda estimator: api.make_settings("gymnax:CartPole-v1", uncertainty=estimator)
    run_dir.write_settings(tmp_path, make(estimator_at_another_address()))
    assert " at 0x" not in (tmp_path / run_dir.SETTINGS).read_text()
    stored = run_dir.read_settings(tmp_path)
    assert run_dir.differences(stored, make(estimator_at_another_address())) == []
    changes = run_dir.differences(stored, make(test_returns_are_kept_to_the_last_bit))
    assert any(line.startswith("--estimator ") for line in changes)
    assert all("test_returns_are_kept" in line for line in changes)


def test_the_packages_that_step_an_environment_are_recorded():
    fields = fingerprint.exactness_fields(config.Gymnax())
    assert fields["gymnax"] == metadata.version("gymnax")
    assert fields["python"] == platform.python_version()
    assert "gymnax" not in fingerprint.exactness_fields(config.DeepSea())
    pytest.importorskip("minigrid")
    grid = fingerprint.exactness_fields(config.Gym("minigrid:MiniGrid-Empty-5x5-v0"))
    assert grid["minigrid"] == metadata.version("minigrid")
    assert grid["gymnasium"] == metadata.version("gymnasium")


def test_a_field_that_an_older_version_did_not_record_is_not_a_change():
    changes = checkpoint.fingerprint_changes({"jax": "1"}, {"jax": "2", "gymnax": "1"})
    assert changes == ["jax 1 -> 2"]


def test_a_run_that_is_to_go_on_is_never_forgotten(tmp_path):
    """A run that was stopped before its first checkpoint keeps its settings if it is refused."""
    with run_dir.hold_run(tmp_path / "run", config.Experiment(), resume=False):
        pass

    def refused() -> None:
        with run_dir.hold_run(tmp_path / "run", config.Experiment(), resume=True):
            raise config.SettingsError("refused")

    with pytest.raises(config.SettingsError, match="refused"):
        refused()
    assert run_dir.read_settings(tmp_path / "run") == config.Experiment()


@pytest.mark.parametrize("agent", PRESETS)
def test_settings_are_read_as_they_were_written(tmp_path, agent):
    """All of them: an added, missing or changed field is damage."""
    settings = config.check(config.Experiment(config.DeepSea(10), agent, PRESETS[agent]))
    run_dir.write_settings(tmp_path, settings)
    assert run_dir.read_settings(tmp_path) == settings
    written = json.loads((tmp_path / run_dir.SETTINGS).read_text())
    for changed in ({"chunk": 7}, {"colour": 7}):
        other = written | {"run": written["run"] | changed}
        (tmp_path / run_dir.SETTINGS).write_text(json.dumps(other))
        with pytest.raises(disk.DiskError, match="is damaged"):
            run_dir.read_settings(tmp_path)
    del written["env"]["depth"]  # which has a default
    (tmp_path / run_dir.SETTINGS).write_text(json.dumps(written))
    with pytest.raises(disk.DiskError, match="is damaged"):
        run_dir.read_settings(tmp_path)


@pytest.mark.parametrize(("family", "model"), [("25", "1"), ("26", "2")])
def test_processors_of_one_name_are_told_apart(tmp_path, family, model):
    """A virtual machine shows only a family's name, and a model rounds differently."""
    cpu = f"vendor_id\t: AMD\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: AMD EPYC\n"
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{cpu}\nprocessor\t: 1\n{cpu}\n")
    name = fingerprint.processor_name(tmp_path / "cpuinfo")
    assert name == f"AMD EPYC cpu family {family} model {model}"
    assert fingerprint.processor_name(tmp_path / "none") == ""
