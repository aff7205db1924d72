"""V-trace and Retrace against their definitions, V-trace against rlax, and the special cases."""

import warnings

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac.algorithm import returns

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import rlax


VTRACE, RETRACE = jax.jit(returns.vtrace_errors), jax.jit(returns.retrace_errors)


def draw(seed: int, steps: int = 23):
    rng = np.random.default_rng(seed)
    value, reward = rng.normal(size=steps + 1), rng.normal(size=steps)
    discount = 0.97 * (rng.random(steps) > 0.2)  # episodes end inside
    rho = np.minimum(1.0, rng.exponential(size=steps)) * (
        rng.random(steps) > 0.1
    )  # some steps masked
    return value, reward, discount, rho


def by_definition(value, reward, discount, rho, lam):
    """Return `v_s - V_s = sum_t (prod_{s <= i < t} lam gamma_i rho_i) delta_t` as a double sum."""
    steps = len(reward)
    delta = [rho[t] * (reward[t] + discount[t] * value[t + 1] - value[t]) for t in range(steps)]
    return np.array(
        [
            sum(
                np.prod([lam * discount[i] * rho[i] for i in range(s, t)]) * delta[t]
                for t in range(s, steps)
            )
            for s in range(steps)
        ]
    )


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_vtrace_equals_its_definition(float64, lam):
    for seed in range(20):
        inputs = draw(seed)
        np.testing.assert_allclose(
            VTRACE(*map(jnp.asarray, inputs), lam), by_definition(*inputs, lam), rtol=0, atol=1e-13
        )


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_targets_agree_with_rlax(float64, lam):
    value, reward, discount, rho = map(jnp.asarray, draw(7))
    target = returns.vtrace_targets(value, reward, jnp.zeros_like(reward), discount, rho, lam)
    oracle = rlax.vtrace_td_error_and_advantage(
        value[:-1], value[1:], reward, discount, rho, lambda_=lam
    )
    np.testing.assert_allclose(target.error, oracle.errors, atol=1e-12)
    np.testing.assert_allclose(
        rho * (target.action_value - value[:-1]), oracle.pg_advantage, atol=1e-12
    )


def test_vtrace_with_rho_one_is_td_lambda(float64):
    value, reward, discount, _ = map(jnp.asarray, draw(3))
    error = returns.vtrace_errors(value, reward, discount, jnp.ones_like(reward), 0.8)
    np.testing.assert_allclose(
        error + value[:-1], rlax.lambda_returns(reward, discount, value[1:], 0.8), atol=1e-12
    )


def test_action_value_contains_the_entropy_of_later_steps_only(float64):
    value, reward, discount, _ = map(jnp.asarray, draw(5))
    rho, entropy = jnp.ones_like(reward), jnp.linspace(0.1, 0.7, len(reward))
    action_value = lambda e: (
        returns.vtrace_targets(value, reward, e, discount, rho, 1.0).action_value
    )
    influence = np.asarray(jax.jacobian(action_value)(entropy))  # [T, T]
    assert np.all(influence[np.tril_indices(len(reward))] == 0)
    assert influence[3, 4] == pytest.approx(float(discount[3]))


def test_a_masked_step_has_no_error_and_cuts_the_trace(float64):
    value, reward, discount, rho = map(jnp.asarray, draw(11))
    rho = rho.at[9].set(0.0)
    before = returns.vtrace_errors(value, reward, discount, rho, 0.9)
    after = returns.vtrace_errors(
        value.at[10:].add(5.0), reward.at[9].add(100.0), discount, rho, 0.9
    )
    assert before[9] == 0
    np.testing.assert_array_equal(before[:9], after[:9])


def retrace_by_definition(predicted, j, reward, discount, rho, lam):
    """Return `sum_t (prod_{s < i <= t} gamma_(i-1) c_i) delta_t` with `c_i = lam rho_i`.

    Munos et al. 2016, eq. 3 and 4.
    """
    steps = len(reward)
    delta = [reward[t] + discount[t] * j[t + 1] - predicted[t] for t in range(steps)]
    trace = lambda s, t: np.prod([discount[i - 1] * lam * rho[i] for i in range(s + 1, t + 1)])
    return np.array([sum(trace(s, t) * delta[t] for t in range(s, steps)) for s in range(steps)])


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_retrace_equals_its_definition(float64, lam):
    """With masked steps, and with episodes that end inside."""
    for seed in range(20):
        j, reward, discount, rho = draw(seed)
        inputs = (
            np.random.default_rng(100 + seed).normal(size=len(reward)),
            j,
            reward,
            discount,
            rho,
        )
        got = RETRACE(*map(jnp.asarray, inputs), lam)
        np.testing.assert_allclose(got, retrace_by_definition(*inputs, lam), rtol=0, atol=1e-12)
        if lam == 0:
            np.testing.assert_array_equal(
                got, reward + discount * j[1:] - inputs[0]
            )  # the one-step error


def test_retrace_corrects_later_actions_only(float64):
    j, reward, discount, rho = map(jnp.asarray, draw(4))
    predicted = j[:-1] + 0.3
    influence = np.asarray(
        jax.jacobian(lambda rho: returns.retrace_errors(predicted, j, reward, discount, rho, 0.9))(
            rho
        )
    )  # [T, T]
    assert not np.diag(influence).any()
    assert np.any(influence[np.triu_indices(len(reward), 1)])
