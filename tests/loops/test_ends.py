"""A goal that ends the episode is reached although the episode then misses bonus and entropy."""

from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import api, config
from ersac.agents.build import make_agent, make_normaliser
from ersac.envs.base import Discrete, Env, Step, spec_of
from ersac.loops import device

LIMIT, GAMMA, ALPHA = 20, 0.9, 0.4
assert (
    ALPHA * np.log(2) / (1 - GAMMA) > 2
)  # the value of a uniform policy that never leaves; the goal pays 1


class Walk(NamedTuple):
    age: jax.Array


def gate() -> Env:
    """One state: one action pays 1 and terminates, the other stays; truncated after 20 steps."""

    def step(env_params, state, action, key):
        real = state.age < LIMIT
        left = real & (action == 0)
        return Step(
            Walk(state.age + 1),
            jnp.where(left, 1.0, 0.0),
            jnp.where(real & ~left, 1.0, 0.0),
            left,
            jnp.where(real, 1.0, 0.0),
        )

    reset = lambda env_params, key: Walk(jnp.zeros((), jnp.int32))
    return Env(
        "gate",
        Discrete(1),
        Discrete(2),
        lambda seed: np.zeros(()),
        reset,
        lambda env_params, state: jnp.zeros((), jnp.int32),
        step,
    )


def solution(lost_steps: float) -> float:
    """The probability of leaving under the Boltzmann policy [e-kpi], by value iteration.

    lost_steps: discounted steps that leaving is credited with, each worth the entropy of the state.
    """
    j, p = 0.0, 0.5
    for _ in range(2000):
        entropy = -p * np.log(p) - (1 - p) * np.log(1 - p)
        goal = 1 + lost_steps * ALPHA * entropy
        p = 0.9 * p + 0.1 / (
            1 + np.exp((GAMMA * j - goal) / ALPHA)
        )  # slowly: the credit is a running mean, too
        j = p * goal + (1 - p) * GAMMA * j + ALPHA * entropy
    return p


@pytest.mark.parametrize(
    "credit_early_ends", [True, False]
)  # the first is the default for environments
def test_a_goal_that_ends_an_episode_is_reached(monkeypatch, credit_early_ends):
    """With the credit for early ends; without it the goal is the less likely action."""
    monkeypatch.setattr(device, "make_env", lambda settings: gate())
    changes = {
        "envs": 1,
        "rollout": 10,
        "hidden": (64,),
        "members": 2,
        "alpha": ALPHA,
        "gamma": GAMMA,
    } | ({} if credit_early_ends else {"credit_early_ends": False})
    settings = config.replace_at(
        api.make_settings("gymnax:gate", "vanilla", **changes, chunk=5_000),
        ("env", "normalisation"),
        config.NO_NORMALISATION,
    )
    chunk = next(device.run_device(device.prepare_device(settings)))
    learner = jax.tree.map(lambda x: np.asarray(x)[0], chunk.carry.learner)
    normaliser = make_normaliser(settings.agent, spec_of(gate()), config.NO_NORMALISATION)
    lost_steps = float(normaliser.lost_steps(learner.memory.normaliser))
    assert lost_steps > 2 if credit_early_ends else lost_steps == 0
    _, logits = make_agent(settings.agent, spec_of(gate())).policy.act(
        learner, (), jnp.zeros((), jnp.int32), jnp.zeros(2)
    )
    to_leave = float(jax.nn.softmax(logits)[0])
    assert (to_leave > 0.5) == credit_early_ends
    assert abs(to_leave - solution(lost_steps)) < 0.07
