"""One learner, two loops: a pure environment is the same run on the device and, stepped from the host, in lock-step.

In double precision, so that whatever is not equal to 1e-12 is another algorithm and not another order of sums.
"""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import api, config
from ersac.envs.base import Env, spec_of
from ersac.envs.make import make_env
from ersac.loops import actor_learner, on_device
from ersac.loops.rollout import Actor

SMALL = {"hidden": (8, 8), "seeds": 1, "seed": 3}
REPLAY = {"capacity": 7, "batch": 3, "updates": 2}  # rollouts are pushed out before the end
NOISY = config.Ensemble(members=3, noise_variance=0.01)
ROLLOUTS = 12


def double(tree):
    return jax.tree.map(lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, tree)


def at_sea(agent: str, **changes) -> config.Train:
    return api.make_settings("deep-sea", agent, **(SMALL | {"depth": 4, "rollout": 5} | changes))


def abroad(name: str, agent: str, **changes) -> config.Train:
    return api.make_settings(f"gymnax:{name}", agent, **(SMALL | {"envs": 3, "rollout": 20} | changes))


def with_noise(settings: config.Train) -> config.Train:
    return config.replace_at(settings, ("learner", "uncertainty"), NOISY)


CASES = {
    "a table, fresh": with_noise(at_sea("ersac")),
    "a table, replayed, every action": at_sea("ersac-replay", members=3, **REPLAY),
    "a member that acts through an episode": at_sea("boot-dqn", members=3, batch=4, replay=30, least_replay=6, rollout=1),
    "continuous actions, cut at 200, replayed": with_noise(abroad("Pendulum-v1", "vanilla-replay", **REPLAY)),
}


def on_the_host(settings: config.Train) -> config.Train:
    """The same settings, of an environment that is stepped from the host."""
    seen = config.PLAIN if isinstance(settings.env, config.DeepSea) else settings.env.seen
    env = config.Gym(envs=config.copies(settings.env), target=getattr(settings.env, "target", None), lockstep=True, seen=seen)
    return dataclasses.replace(settings, env=env)


def device_run(settings: config.Train, chunks: int):
    """The carry and the facts of one seed, as `on_device` runs it, but for the precision of its first numbers."""
    static, seed = on_device.program_of(settings), settings.run.seed
    env, agent = on_device.build(settings)
    world, learner = jax.tree.map(jnp.asarray, env.world(seed)), double(agent.init(np.random.default_rng(seed)))
    one = lambda tree: jax.tree.map(lambda x: x[None], tree)
    started = on_device._start(static, np.array([seed], np.uint32), one(world), one(learner))
    key, food, actor = jax.tree.map(lambda x: x[0], started)
    visits = jnp.zeros(env.n_states, jnp.int32) if isinstance(settings.env, config.DeepSea) else ()
    carry = on_device.Carry(learner, food, actor, jnp.zeros(env.envs), visits, jnp.zeros((), jnp.int32))
    step = jax.jit(lambda numbers, carry: on_device.chunk(config.with_floats(static, numbers), carry, world, key))
    brought = []
    for _ in range(chunks):
        carry, (facts, metrics, _) = step(config.floats(settings), carry)
        brought.append((facts, metrics))
    return carry, jax.tree.map(lambda *x: np.concatenate(x), *jax.device_get(brought))


def host_run(settings: config.Train, chunks: int):
    """The same of `actor_learner`, with the environment turned into a host one."""
    env = actor_learner.as_host(on_device.build(settings)[0], settings)
    settings, spec = on_the_host(settings), spec_of(env)
    carry = actor_learner.first_carry(settings, spec, settings.run.seed)
    place = actor_learner.Place(env, settings.run.seed, carry._replace(learner=double(carry.learner)))
    program = actor_learner.Program(settings, spec, (settings.run.seed,), [place], [place.carry], 0.0)
    got = [chunk for _, chunk in zip(range(chunks), actor_learner.run(program), strict=False)]
    joined = lambda *x: np.concatenate(x, axis=1)[0]
    return got[-1].carry[0], jax.tree.map(joined, *((chunk.facts, chunk.metrics) for chunk in got))


def in_double(settings) -> Env:
    """The environment that some settings describe, whose rewards and discounts are as precise as all else here."""
    env = make_env(settings)

    def step(world, state, action, key):
        step = env.step(world, state, action, key)
        return step._replace(reward=jnp.float64(step.reward), discount=jnp.float64(step.discount), mask=jnp.float64(step.mask))

    return env._replace(step=step)


@pytest.mark.parametrize("name", CASES)
def test_the_loops_agree(float64, monkeypatch, name):
    monkeypatch.setattr(on_device, "make_env", in_double)
    settings = config.override(CASES[name], chunk=ROLLOUTS // 3)
    (device, (facts, metrics)), (host, (host_facts, host_metrics)) = device_run(settings, 3), host_run(settings, 3)
    assert device.rollouts == host.rollouts == ROLLOUTS
    close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
    jax.tree.map(close, host.learner, device.learner)
    jax.tree.map(close, host.food, device.food)
    jax.tree.map(close, host_facts, facts)
    jax.tree.map(close, host_metrics, metrics)
    assert facts.ended.any()
    assert isinstance(device.actor, Actor)
    moved = jax.tree.map(
        lambda x, y: not np.array_equal(x, y), device.learner.params, on_device.build(settings)[1].init(np.random.default_rng(3)).params
    )
    assert any(jax.tree.leaves(moved))
