"""What a run leaves is what it was told, however it is kept."""

import numpy as np
import pytest

from ersac.study import records
from ersac.study.records import Metrics, SeedFacts

DRAW = np.random.default_rng(0)
FEW = DRAW.choice(np.float32([-0.0098, 0.9902, 0.0, np.nan, np.inf]), 1000)
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
