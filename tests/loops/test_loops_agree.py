"""Both loops give the same run of a pure environment: on the device, and in lock-step on the host.

In double precision, so that a difference above 1e-12 is not one of rounding.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import api, config
from ersac.envs.base import Box, Discrete, Env, MultiDiscrete, PackedSpace, Step, spec_of
from ersac.envs.make import make_env
from ersac.loops import device, host
from ersac.loops.host_env import to_host_env
from ersac.loops.host_state import SeedState

SMALL = {"hidden": (8,), "seeds": 1, "seed": 3, "rollout": 5}
REPLAY = {"capacity": 7, "batch": 3, "updates": 2}  # small enough to be overwritten
ROLLOUTS = 12
slow = pytest.mark.slow


def deep_sea(agent: str, **changes) -> config.Experiment:
    return api.make_settings("deep-sea", agent, **(SMALL | {"depth": 4} | changes))


def gymnax(agent: str, name: str = "tiny", **changes) -> config.Experiment:
    return api.make_settings(f"gymnax:{name}", agent, **(SMALL | {"envs": 3} | changes))


def noisy(settings: config.Experiment) -> config.Experiment:
    return config.replace_at(
        settings, ("agent", "uncertainty"), config.Ensemble(members=3, noise_variance=0.01)
    )


BOOT = {"members": 3, "batch": 4, "replay": 30, "least_replay": 6}
CASES = [
    pytest.param(noisy(deep_sea("ersac")), id="table, on-policy"),
    pytest.param(
        deep_sea("ersac-replay", members=3, **REPLAY),
        id="table, replay, all actions",
        marks=slow,
    ),
    pytest.param(deep_sea("boot-dqn", **BOOT, rollout=1), id="boot-dqn, table", marks=slow),
    pytest.param(
        gymnax("boot-dqn", "counted", **BOOT), id="boot-dqn, vectors, truncated", marks=slow
    ),
    pytest.param(
        gymnax("ersac", uncertainty="rnd", outputs=2),
        id="vectors, truncated, on-policy",
        marks=slow,
    ),
    pytest.param(noisy(gymnax("vanilla-replay", **REPLAY)), id="vectors, truncated, replay"),
    pytest.param(noisy(gymnax("vanilla-replay", "masked", **REPLAY)), id="masked product, replay"),
    pytest.param(
        gymnax("ersac-replay", "masked", members=3, **REPLAY),
        id="masked product, all actions",
        marks=slow,
    ),
]


class PointState(NamedTuple):
    """The state of `tiny`."""

    position: jax.Array
    age: jax.Array


def tiny() -> Env:
    """A point moved by continuous actions and noise; ends far right, truncated after 6 steps."""

    def step(env_params, state, action, key):
        position = 0.8 * state.position + action + jax.random.uniform(key, (2,))
        real, ends = state.age < 6, position[0] > 2
        discount = jnp.where(real & ~ends, 1.0, 0.0)
        return Step(
            PointState(position, state.age + 1),
            real * position[1],
            discount,
            real & ends,
            real * 1.0,
        )

    reset = lambda env_params, key: PointState(
        jax.random.uniform(key, (2,)), jnp.zeros((), jnp.int32)
    )
    actions = Box((2,), low=(-1.0, -0.5), high=(1.0, 0.75))
    return Env(
        "tiny",
        Box((2,)),
        actions,
        lambda seed: (),
        reset,
        lambda env_params, state: 3 * state.position + 1,
        step,
        envs=3,
    )


def counted() -> Env:
    """The same point with two actions, forward and back."""
    env = tiny()
    step = lambda env_params, state, action, key: env.step(env_params, state, action - 0.5, key)
    return env._replace(name="counted", actions=Discrete(2), step=step)


def masked() -> Env:
    """The same point with two factors of actions, and a mask that depends on the position."""
    env = tiny()
    step = lambda env_params, state, action, key: env.step(
        env_params, state, action / jnp.array([1.0, 2.0]) - 0.5, key
    )

    def observe(env_params, state):
        obs = env.observe(env_params, state).astype(jnp.float32)
        forward, middle = obs > 1.5
        allowed = jnp.stack([True, forward, ~middle, True, middle])
        data = jax.lax.bitcast_convert_type(obs, jnp.uint8).reshape(-1)
        return jnp.concatenate([data, allowed.astype(jnp.uint8)])

    return env._replace(
        name="masked",
        observations=PackedSpace((Box((2,)),), choices=5),
        actions=MultiDiscrete((2, 3)),
        observe=observe,
        step=step,
    )


ENVS = {"tiny": tiny, "counted": counted, "masked": masked}


def make_double_env(settings: config.Environment) -> Env:
    """An environment with rewards and discounts in double precision."""
    env = ENVS[settings.id]() if isinstance(settings, config.Gymnax) else make_env(settings)

    def step(env_params, state, action, key):
        step = env.step(env_params, state, action, key)
        return step._replace(
            reward=jnp.float64(step.reward),
            discount=jnp.float64(step.discount),
            mask=jnp.float64(step.mask),
        )

    return env._replace(step=step, unroll=1)  # no influence on results, and faster to compile


def double(tree):
    return jax.tree.map(
        lambda x: x.astype(np.float64) if x.dtype == np.float32 else x,
        jax.tree.map(np.asarray, tree),
    )


def on_the_host(settings: config.Experiment) -> config.Experiment:
    """The same settings for an environment on the host."""
    normalisation = settings.env.normalisation
    env = config.Gym(
        envs=settings.env.envs,
        target=getattr(settings.env, "target", None),
        lockstep=True,
        normalisation=normalisation,
    )
    return dataclasses.replace(settings, env=env)


def device_run(settings: config.Experiment, chunks: int):
    """The carry and the outputs of one seed of the device loop, in double precision."""
    static, seed = device.static_device_settings(settings), settings.run.seed
    env, agent = device.build(settings)
    env_params, learner = (
        jax.tree.map(jnp.asarray, env.env_params(seed)),
        double(agent.init(np.random.default_rng(seed))),
    )
    one = lambda tree: jax.tree.map(lambda x: x[None], tree)
    initial = device._init_seeds(static, np.array([seed], np.uint32), one(env_params), one(learner))
    key, buffer_state, actor = jax.tree.map(lambda x: x[0], initial)
    visits = jnp.zeros(env.n_states, jnp.int32) if settings.env.has_maps else ()
    carry = device.DeviceCarry(
        learner, buffer_state, actor, jnp.zeros(env.envs), visits, jnp.zeros((), jnp.int32)
    )
    step = jax.jit(
        lambda floats, carry: device.chunk(
            config.with_floats(static, floats), carry, env_params, key
        )
    )
    outputs = []
    for _ in range(chunks):
        carry, (episodes, metrics, _) = step(config.floats(settings), carry)
        outputs.append((episodes, metrics))
    return carry, jax.tree.map(lambda *x: np.concatenate(x), *jax.device_get(outputs))


def host_run(settings: config.Experiment, chunks: int):
    """The same of the host loop, with the environment converted."""
    env = to_host_env(device.build(settings)[0], settings)
    settings, spec = on_the_host(settings), spec_of(env)
    carry = host.init_carry(settings, spec, settings.run.seed)
    seed_state = SeedState(env, settings.run.seed, carry._replace(learner=double(carry.learner)))
    program = host.assemble(settings, spec, [seed_state])
    chunk_outputs = [chunk for _, chunk in zip(range(chunks), host.run_host(program), strict=False)]
    joined = lambda *x: np.concatenate(x, axis=1)[0]
    return chunk_outputs[-1].carry[0], jax.tree.map(
        joined, *((chunk.episodes, chunk.metrics) for chunk in chunk_outputs)
    )


@pytest.mark.parametrize("settings", CASES)
def test_the_loops_agree(float64, monkeypatch, settings):
    monkeypatch.setattr(device, "make_env", make_double_env)
    settings = config.override(settings, chunk=ROLLOUTS // 3)
    (on_device, (episodes, metrics)), (on_host, (host_episodes, host_metrics)) = (
        device_run(settings, 3),
        host_run(settings, 3),
    )
    assert on_device.rollouts == on_host.rollouts == ROLLOUTS
    close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
    jax.tree.map(close, on_host.learner, on_device.learner)
    jax.tree.map(close, on_host.buffer_state, on_device.buffer_state)
    jax.tree.map(close, host_episodes, episodes)
    jax.tree.map(
        close, {name: host_metrics[name] for name in metrics}, metrics
    )  # the host loop also reports staleness
    assert 0 < episodes.ended.mean() < 1
    before = device.build(settings)[1].init(np.random.default_rng(settings.run.seed))
    assert not all(
        np.allclose(x, y)
        for x, y in zip(*map(jax.tree.leaves, (before.params, on_host.learner.params)), strict=True)
    )
