"""First visits in an episode, compared with a Python loop."""

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import numpy as jnp

from ersac.uncertainty.episodic import first_visits

STEPS = 24  # a fixed length: compiled once
found = jax.jit(first_visits)


def by_hand(codes: list[int], ended: list[bool]) -> list[float]:
    visits, met = [], set()
    for code, last in zip(codes, ended, strict=True):
        visits.append(float(code not in met))
        met = set() if last else met | {code}
    return visits


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=STEPS, max_size=STEPS),
    st.lists(st.sampled_from([True, False, False, False, False]), min_size=STEPS, max_size=STEPS),
)
def test_first_visits_are_those_of_a_loop(codes, ended):
    visits = found(jnp.array(codes), jnp.array(1 - np.float32(ended)))
    np.testing.assert_array_equal(visits, by_hand(codes, ended))


def test_an_episode_forgets_the_one_before_it_and_not_its_own_last_step():
    codes, discount = jnp.array([1, 1, 2, 1, 1, 2]), jnp.array([1.0, 1.0, 1.0, 0.0, 1.0, 1.0])
    np.testing.assert_array_equal(first_visits(codes, discount), [1, 0, 1, 0, 1, 1])


def test_a_time_limit_is_an_end_by_its_fake_step():
    """The last real step has discount 1; the fake step after it belongs to the old episode."""
    codes, discount = jnp.array([1, 2, 3, 1, 3]), jnp.array([1.0, 1.0, 0.0, 1.0, 1.0])
    np.testing.assert_array_equal(first_visits(codes, discount), [1, 1, 1, 1, 1])
    np.testing.assert_array_equal(first_visits(codes, jnp.ones(5)), [1, 1, 1, 0, 0])


def test_large_codes_stay_apart():
    """Neighbouring integers that are equal in single precision."""
    codes = jnp.array([2**25, 2**25 + 1, 2**25])
    np.testing.assert_array_equal(first_visits(codes, jnp.ones(3)), [1, 1, 0])


def test_each_rollout_of_a_batch_by_itself():
    codes = jnp.array([[1, 2, 1], [1, 1, 1]])
    visits = jax.vmap(first_visits)(codes, jnp.ones((2, 3)))
    np.testing.assert_array_equal(visits, [[1, 1, 0], [1, 0, 0]])
