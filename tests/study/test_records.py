"""What a run leaves is what it was told, however it is kept."""

import dataclasses
import json

import numpy as np
import pytest

from ersac import api, config, display
from ersac.agents.presets import TABLE_PRESETS
from ersac.study import records
from ersac.study.records import Metrics, SeedFacts

DRAW = np.random.default_rng(0)
FEW = DRAW.choice(np.float32([-0.0098, 0.9902, 0.0, -0.0, np.nan, np.inf]), 1000)
MANY = DRAW.normal(size=1000).astype(np.float32)


@pytest.mark.parametrize("returns", [FEW, MANY, MANY[:256], MANY[:257], FEW[:0]], ids=["few", "many", "256", "257", "none"])
def test_returns_are_kept_to_the_last_bit(tmp_path, returns):
    """As they are, or as a number for each value that they take: of a sea there are few, and its records stay small."""
    facts = SeedFacts(3, DRAW.random(len(returns)) < 0.5, returns)
    records.write_results(tmp_path, [facts], Metrics(np.arange(2), {"tau": np.ones((1, 2))}), [], None, {})
    (found,), _, _ = records.read_facts(tmp_path)
    assert found.returns.dtype == np.float32
    assert found.returns.tobytes() == returns.tobytes()
    np.testing.assert_array_equal(found.goals, facts.goals)
    with np.load(tmp_path / records.FACTS) as file:
        assert (file["seed/3/returns"].dtype == np.uint8) == (len(np.unique(returns)) <= 256)


def test_a_run_that_is_refused_late_leaves_nothing(tmp_path):
    """Whether an estimator fits is known once the environment was made; whatever a run has saved stays."""
    with pytest.raises(config.SettingsError, match="does not fit the observations"):
        api.run(api.make_settings("gymnax:CartPole-v1", uncertainty="counts"), tmp_path / "run", display.choose(False))
    assert not (tmp_path / "run").exists()

    def refused_with_something_to_show() -> None:
        with records.hold(tmp_path / "run", config.Train(), resume=False):
            (tmp_path / "run" / records.FACTS).touch()
            raise config.SettingsError("late")

    with pytest.raises(config.SettingsError, match="late"):
        refused_with_something_to_show()
    assert (tmp_path / "run" / records.SETTINGS).exists()


def test_a_run_that_is_to_go_on_is_never_forgotten(tmp_path):
    """It was stopped before its first checkpoint, and is refused now: what it was to be is all there is of it."""
    with records.hold(tmp_path / "run", config.Train(), resume=False):
        pass

    def refused() -> None:
        with records.hold(tmp_path / "run", config.Train(), resume=True):
            raise config.SettingsError("refused")

    with pytest.raises(config.SettingsError, match="refused"):
        refused()
    assert records.read_settings(tmp_path / "run") == config.Train()


def test_a_record_from_before_there_were_networks_is_read_as_what_it_was(tmp_path):
    """The hash is that of results/solve-time-table-paper/ersac-depth-10-seed-1000-37a00273, whose file has none of the settings since."""
    settings = config.Train(config.DeepSea(10), "ersac", TABLE_PRESETS["ersac-sampled"], config.Run(1, 1000, 100_000, True))
    of_then = lambda told: {name: of_then(value) if isinstance(value, dict) else value for name, value in told.items() if kept(name)}
    kept = lambda name: name not in records.ADDED
    (tmp_path / records.SETTINGS).write_text(json.dumps(of_then(records.as_json(settings)) | {"hash": "37a002732ddf"}))
    assert records.read_settings(tmp_path) == settings
    for changed in ({"network": "mlp"}, {"passes": 2}, {"first_visit": True}, {"spread_decay": 0.5}):
        assert records.settings_hash(config.override(settings, **changed)) != "37a002732ddf"


@pytest.mark.parametrize("kind", [config.ActorCritic, config.Fresh, config.Rnd, config.Gym, config.Run])
def test_a_setting_that_a_record_has_not_is_read_as_the_value_it_had(kind):
    defaults = {field.name: field.default for field in dataclasses.fields(kind) if field.name in records.ADDED}
    assert defaults
    assert defaults == {name: records.ADDED[name] for name in defaults}
