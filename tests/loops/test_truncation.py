"""A truncation is not a termination: with a reward of 1 forever every value is 1 / (1 - gamma)."""

import itertools
from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import api, config
from ersac.agents.build import make_optimisers, make_parts
from ersac.envs.base import Box, Discrete, Env, Step, spec_of
from ersac.loops import device, host
from ersac.loops.host_env import to_host_env

GAMMA, LIMIT, STATES, ROLLOUTS = 0.9, 6, 3, 150
VALUE = 1 / (1 - GAMMA)
# By seed: the mask of the fake step and the discount at the time limit: correct first, then each
# of them wrong.
ENV_PARAMS = np.array([[0, 1], [1, 1], [0, 0]], np.float32)
RAW, SCALED = config.NO_NORMALISATION, config.Normalise()


class Walk(NamedTuple):
    age: jax.Array


def endless(observations) -> Env:
    """A cycle through three states with one action; every real step has reward 1."""
    corner = jnp.array([[0.0, 1.0], [0.9, -0.5], [-0.9, -0.5]])

    def observe(env_params, state):
        index = state.age % STATES
        return index if isinstance(observations, Discrete) else corner[index]

    def step(env_params, state, action, key):
        fake_mask, discount_at_cut = env_params
        real, cut = state.age < LIMIT, state.age == LIMIT - 1
        discount = jnp.where(real, jnp.where(cut, discount_at_cut, 1.0), 0.0)
        return Step(
            Walk(state.age + 1),
            jnp.where(real, 1.0, 0.0),
            discount,
            jnp.bool_(False),
            jnp.where(real, 1.0, fake_mask),
        )

    reset = lambda env_params, key: Walk(jnp.zeros((), jnp.int32))
    return Env(
        "endless", observations, Discrete(1), lambda seed: ENV_PARAMS[seed], reset, observe, step
    )


def state_values(
    settings: config.Experiment, env: Env, normalisation: config.Normalise, learner
) -> np.ndarray:
    """The critic's values of all states, in the environment's rewards."""
    parts, obs = (
        make_parts(settings.agent, spec_of(env), normalisation),
        jax.vmap(lambda age: env.observe((), Walk(age)))(jnp.arange(STATES)),
    )
    rows = make_optimisers(settings.agent, parts, 0.0).rows.look_up(learner.params.rows, obs)
    dense, obs = learner.params.dense, parts.normaliser.obs(learner.memory.normaliser, obs)
    features = parts.torso.apply(dense["torso"], rows["torso"], obs)
    values = parts.value.apply(dense["value"], rows["value"], obs, features)[:, 0]
    return np.asarray(values / parts.normaliser.reward(learner.memory.normaliser, 1.0))


def on_the_device(settings: config.Experiment, env: Env) -> list:
    program = device.prepare_device(settings)
    chunk = next(device.run_device(program))
    return [
        jax.tree.map(lambda x, seed=seed: np.asarray(x)[seed], chunk.carry.learner)
        for seed in range(len(ENV_PARAMS))
    ]


def on_the_host(settings: config.Experiment, env: Env) -> list:
    seeds = itertools.count()
    make = lambda: to_host_env(env, config.override(settings, seed=next(seeds)))
    chunk = next(host.run_host(host.prepare_host(settings, make=make)))
    return [carry.learner for carry in chunk.carry]


@pytest.mark.parametrize(
    ("observations", "normalisation", "loop"),
    [
        pytest.param(Discrete(STATES), RAW, on_the_device, id="tables-device"),
        pytest.param(Box((2,)), SCALED, on_the_host, id="layers-host"),
        pytest.param(Box((2,)), SCALED, on_the_device, id="layers-device", marks=pytest.mark.slow),
        pytest.param(Discrete(STATES), RAW, on_the_host, id="tables-host", marks=pytest.mark.slow),
    ],
)
def test_a_truncation_is_not_a_termination(monkeypatch, observations, normalisation, loop):
    env = endless(observations)
    monkeypatch.setattr(device, "make_env", lambda settings: env)
    package = "gymnax" if loop is on_the_device else "gym"
    changes = {
        "envs": 1,
        "rollout": 5,
        "hidden": (8,),
        "members": 2,
        "alpha": 1.0,
        "gamma": GAMMA,
        "learning_rate": 0.03,
    }
    settings = api.make_settings(
        f"{package}:endless-{observations}",
        "vanilla",
        **changes,
        seeds=len(ENV_PARAMS),
        chunk=ROLLOUTS,
    )
    settings = config.replace_at(settings, ("env", "normalisation"), normalisation)
    if package == "gym":
        settings = config.override(settings, lockstep=True)
    right, unmasked, ended = (
        state_values(settings, env, normalisation, learner) for learner in loop(settings, env)
    )
    np.testing.assert_allclose(right, VALUE, rtol=0.02)
    assert unmasked.max() < 0.8 * VALUE
    assert ended.max() < 0.8 * VALUE
