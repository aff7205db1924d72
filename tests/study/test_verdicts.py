"""When a run counts as solved, by hand and against the rule read aloud."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ersac.study import verdicts


def test_by_hand():
    goals = np.zeros(1000, bool)
    assert (verdicts.first_goal(goals), verdicts.solved_bsuite(goals), verdicts.solved_reliable(goals)) == (None, None, None)
    goals[500:] = True
    assert verdicts.first_goal(goals) == 501
    assert verdicts.solved_reliable(goals) == 580  # 20 failures and 80 goals
    assert verdicts.solved_bsuite(goals) == 556  # 500 / 556 < 0.9 <= 500 / 555
    assert verdicts.solved_reliable(np.ones(99, bool)) is None
    assert verdicts.solved_reliable(np.ones(100, bool)) == 100
    assert verdicts.solved_bsuite(np.ones(100, bool), stochastic=True) == 100


@given(st.lists(st.booleans(), max_size=400), st.booleans())
def test_read_aloud(bits, stochastic):
    goals = np.array(bits, bool)
    share, least = (0.8, 100) if stochastic else (0.9, 1)
    bsuite = (n for n in range(least, len(bits) + 1) if bits[:n].count(False) < share * n)
    reliable = (n for n in range(100, len(bits) + 1) if sum(bits[n - 100 : n]) >= 80)
    assert verdicts.first_goal(goals) == next((n for n in range(1, len(bits) + 1) if bits[n - 1]), None)
    assert verdicts.solved_bsuite(goals, stochastic) == next(bsuite, None)
    assert verdicts.solved_reliable(goals) == next(reliable, None)
