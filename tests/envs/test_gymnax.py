"""Adapted environments against gymnax's own `step`; truncation is written out by hand."""

import gymnax
import jax
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment, spaces
from jax import numpy as jnp

from ersac import api
from ersac.agents.build import make_buffer
from ersac.config import SettingsError
from ersac.envs.base import Box, Discrete
from ersac.envs.gymnax import convert_space, gymnax_env
from ersac.types import Trajectory

STEPS = 200


@pytest.fixture(autouse=True)
def lenient():
    """gymnax promotes ranks."""
    with jax.numpy_rank_promotion("allow"):
        yield


def play_both(name: str):
    """Random steps of our environment and of gymnax's, from equal states with equal keys."""
    ours = gymnax_env(name, 1)
    theirs, params = gymnax.make(name)
    first = jax.random.key(1)

    def step(states, key):
        our_state, their_state = states
        key_action, key_step = jax.random.split(key)
        action = jax.random.randint(key_action, (), 0, ours.n_actions)
        key_own, key_reset = jax.random.split(key_step)  # as gymnax's step splits it
        result = ours.step((), our_state, action, key_own)
        obs, their_state, reward, terminated, truncated, info = theirs.step(
            key_step, their_state, action, params
        )
        last = ours.observe((), result.state)
        ended = result.discount == 0
        following = jax.tree.map(
            lambda new, old: jnp.where(ended, new, old), ours.reset((), key_reset), result.state
        )
        flat = lambda obs: jnp.ravel(jnp.asarray(obs, jnp.float32))
        observed = (
            flat(last),
            flat(info["final_observation"]),
            flat(ours.observe((), following)),
            flat(obs),
        )
        return (following, their_state), (
            observed,
            (result.reward, jnp.float32(reward)),
            (ended, terminated),
            truncated,
            result.mask,
        )

    start = (ours.reset((), first), theirs.reset_env(first, params)[1])
    return jax.device_get(
        jax.jit(lambda: jax.lax.scan(step, start, jax.random.split(jax.random.key(2), STEPS))[1])()
    )


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "Breakout-MinAtar", "Catch-bsuite", "FrozenLake-misc"]
)
def test_two_hundred_random_steps_match_gymnax(name):
    (
        (last, their_last, following, their_following),
        (reward, their_reward),
        (ended, terminated),
        truncated,
        mask,
    ) = play_both(name)
    np.testing.assert_array_equal(last, their_last)
    np.testing.assert_array_equal(following, their_following)
    np.testing.assert_allclose(reward, their_reward, rtol=1e-6)
    np.testing.assert_array_equal(ended, terminated)
    assert ended.sum() > 2
    assert not truncated.any()  # they end long before their limits
    assert mask.all()


MINATAR = [name for name in gymnax.registered_envs if name.endswith("MinAtar")]


@pytest.mark.parametrize("name", MINATAR)
def test_observations_of_minatar_are_bits(name):
    """A replay stores them as such."""
    env = gymnax_env(name, 1)
    assert env.observations.stored_as == "bits"

    def step(state, key):
        action = jax.random.randint(key, (), 0, env.n_actions)
        state = env.step((), state, action, key).state
        return state, env.observe((), state)

    keys = jax.random.split(jax.random.key(0), STEPS)
    start = env.reset((), jax.random.key(1))
    obs = jax.jit(lambda: jax.lax.scan(step, start, keys)[1])()
    assert set(np.unique(obs)) == {0.0, 1.0}


def test_a_full_minatar_replay_fits_into_a_small_checkpoint():
    settings = api.make_settings("gymnax:Breakout-MinAtar", "ersac-replay")
    env = gymnax_env("Breakout-MinAtar", 1)
    length, one = settings.agent.rollout, np.zeros
    example = Trajectory(
        obs=one((length + 1, *env.observations.shape), np.float32),
        **{name: one(length, np.float32) for name in Trajectory._fields[1:-1]},
        noise=one((length, settings.agent.uncertainty.members), np.float32),
    )
    buffer = make_buffer(settings.agent, env.envs, env.observations)
    ring = jax.eval_shape(buffer.init, example)
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(ring)) < 30e6


class Clock(environment.Environment):
    """Returns the time; terminates at 3 if the first action is 1, truncated at 5."""

    def step_env(self, key, state, action, params):
        early = state.early | ((state.time == 0) & (action == 1))
        state = State(time=state.time + 1, early=early)
        return (
            jnp.float32(state.time)[None],
            state,
            jnp.float32(state.time),
            early & (state.time >= 3),
            {},
        )

    def reset_env(self, key, params):
        return jnp.zeros(1), State(time=jnp.int32(0), early=jnp.bool_(False))

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=5)

    def observation_space(self, params):
        return spaces.Box(0, 9, (1,))

    def action_space(self, params=None):
        return spaces.Discrete(2)


@struct.dataclass
class State(environment.EnvState):
    time: jax.Array
    early: jax.Array


def test_truncation_leads_to_the_last_observation_and_a_fake_step_follows(monkeypatch):
    monkeypatch.setattr(gymnax, "registered_envs", [*gymnax.registered_envs, "Clock"])
    monkeypatch.setattr(gymnax, "make", lambda name: (Clock(), Clock().default_params))
    env, key = gymnax_env("Clock", 1), jax.random.key(0)
    rows = []
    state = env.reset((), key)
    for action in [0, 0, 0, 0, 0, 1, 1, 0, 0, 0]:
        result = env.step((), state, jnp.int32(action), key)
        rows.append(
            [
                float(x)
                for x in (
                    env.observe((), result.state)[0],
                    result.reward,
                    result.discount,
                    result.mask,
                )
            ]
        )
        state = env.reset((), key) if result.discount == 0 else result.state
    cut = [[1, 1, 1, 1], [2, 2, 1, 1], [3, 3, 1, 1], [4, 4, 1, 1], [5, 5, 1, 1]]
    np.testing.assert_array_equal(rows[:5], cut)  # the last one bootstraps from observation 5
    assert rows[5][1:] == [
        0,
        0,
        0,
    ]  # the action of a fake step is ignored, also by the next episode
    np.testing.assert_array_equal(rows[6:9], [[1, 1, 1, 1], [2, 2, 1, 1], [3, 3, 0, 1]])
    assert rows[9] == [1, 1, 1, 1]


@pytest.mark.parametrize("name", gymnax.registered_envs)
def test_every_environment_of_gymnax_is_built_or_raises_one_line(name):
    """States keep their shapes, and observations and actions are those of the spaces."""
    try:
        env = gymnax_env(name, 1)
    except SettingsError as error:
        refusal = str(error)
    else:
        refusal = None
    if refusal is not None:
        assert name == "MNISTBandit-bsuite"  # it downloads its data
        assert refusal.startswith(f"{name} cannot be created: ")
        assert "\n" not in refusal
        return
    key = jax.random.key(0)
    state = jax.eval_shape(lambda: env.reset((), key))
    action = (
        jnp.zeros((), jnp.int32)
        if isinstance(env.actions, Discrete)
        else jnp.zeros(env.actions.shape)
    )
    result = jax.eval_shape(lambda state: env.step((), state, action, key), state)
    expected = jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), result.state) == expected
    assert {
        field.shape for field in (result.reward, result.discount, result.goal, result.mask)
    } == {()}
    assert jax.eval_shape(lambda state: env.observe((), state), state).shape == getattr(
        env.observations, "shape", ()
    )
    if isinstance(env.actions, Box):
        assert np.isfinite(env.actions.low + env.actions.high).all()


def test_an_unknown_name_and_an_unsupported_space_raise_one_line():
    with pytest.raises(SettingsError, match="CartPole-v1"):
        gymnax_env("CartPol-v1", 1)
    with pytest.raises(SettingsError, match="Odd has a Tuple space, which is not supported"):
        convert_space("Odd", spaces.Tuple((spaces.Discrete(2),)))


def test_a_dict_is_one_vector():
    assert convert_space(
        "Two", spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(0, 1, (2, 2))})
    ) == Box((5,))
