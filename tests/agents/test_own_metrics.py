"""Numbers that an estimator or a torso of one's own reports are recorded."""

import numpy as np
import pytest
from jax import numpy as jnp

import ersac
from ersac.uncertainty.hashed import hashed_counts

pytest.importorskip("gymnasium")
SMALL = {"envs": 2, "steps": 200, "rollout": 10, "chunk": 5, "lockstep": True, "show": False}


def plain(spec, n_actions):
    return hashed_counts(spec.observations.shape[0], n_actions, 4, 0.1)


def reporting(spec, n_actions):
    def metrics(params, memory, obs, features, t):
        return {"visits": jnp.sum(t.mask), "actions": t.action.astype(jnp.float32)}

    return plain(spec, n_actions)._replace(metrics=metrics)


def test_an_estimator_reports_numbers_and_trains_as_without_them():
    result = ersac.train("gym:CartPole-v1", uncertainty=reporting, hidden=(8,), **SMALL)
    found = result.metrics.values
    assert found["uncertainty.visits"].shape == (1, 2)
    assert (found["uncertainty.visits"] <= 10).all()
    assert (found["uncertainty.visits"] > 8).all()
    assert ((found["uncertainty.actions"] > 0) & (found["uncertainty.actions"] < 1)).all()
    without = ersac.train("gym:CartPole-v1", uncertainty=plain, hidden=(8,), **SMALL)
    for name, values in without.metrics.values.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)


def test_a_torso_sows_numbers():
    linen = pytest.importorskip("flax.linen")

    class Torso(linen.Module):
        @linen.compact
        def __call__(self, x):
            features = linen.relu(linen.Dense(8)(x))
            self.sow("intermediates", "dead", jnp.mean((features == 0).astype(jnp.float32)))
            return features

    result = ersac.train("gym:CartPole-v1", torso=Torso(), **SMALL)
    dead = result.metrics.values["torso.dead"]
    assert dead.shape == (1, 2)
    assert ((dead > 0) & (dead < 1)).all()
    assert "torso.dead" in result.metrics.values
