"""Adapted environments are gymnax's: its own `step` is the oracle; what comes at a time limit is written out by hand."""

import gymnax
import jax
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment, spaces
from jax import numpy as jnp

from ersac.config import SettingsError
from ersac.envs.base import Box, Discrete
from ersac.envs.gymnax import convert_space, gymnax_env

STEPS = 200


@pytest.fixture(autouse=True)
def lenient():
    """What others wrote may promote ranks."""
    with jax.numpy_rank_promotion("allow"):
        yield


def walked(name: str):
    """Random steps of ours and of gymnax's from the same states, with the same keys; each goes on where its own state led."""
    ours = gymnax_env(name, 1)
    theirs, params = gymnax.make(name)
    first = jax.random.key(1)

    def step(states, key):
        mine, its = states
        key_action, key_step = jax.random.split(key)
        action = jax.random.randint(key_action, (), 0, ours.n_actions)
        key_own, key_reset = jax.random.split(key_step)  # as gymnax's step splits it
        answer = ours.step((), mine, action, key_own)
        obs, its, reward, terminated, truncated, info = theirs.step(key_step, its, action, params)
        seen = ours.observe((), answer.state)
        ended = answer.discount == 0
        following = jax.tree.map(
            lambda new, old: jnp.where(ended, new, old), ours.reset((), key_reset), answer.state
        )
        flat = lambda obs: jnp.ravel(jnp.asarray(obs, jnp.float32))
        shown = (
            flat(seen),
            flat(info["final_observation"]),
            flat(ours.observe((), following)),
            flat(obs),
        )
        return (following, its), (
            shown,
            (answer.reward, jnp.float32(reward)),
            (ended, terminated),
            truncated,
            answer.mask,
        )

    start = (ours.reset((), first), theirs.reset_env(first, params)[1])
    return jax.device_get(
        jax.jit(lambda: jax.lax.scan(step, start, jax.random.split(jax.random.key(2), STEPS))[1])()
    )


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "Breakout-MinAtar", "Catch-bsuite", "FrozenLake-misc"]
)
def test_two_hundred_random_steps_are_gymnaxes(name):
    (seen, last, following, afresh), (reward, wanted), (ended, terminated), truncated, mask = (
        walked(name)
    )
    np.testing.assert_array_equal(seen, last)
    np.testing.assert_array_equal(following, afresh)
    np.testing.assert_allclose(reward, wanted, rtol=1e-6)
    np.testing.assert_array_equal(ended, terminated)
    assert ended.sum() > 2
    assert not truncated.any()  # they end long before their limits
    assert mask.all()


class Clock(environment.Environment):
    """Shows the time and pays it; ends at 3 after a first action of 1, and is cut at 5."""

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


def test_a_cut_shows_the_true_end_and_a_fake_step_follows(monkeypatch):
    monkeypatch.setattr(gymnax, "registered_envs", [*gymnax.registered_envs, "Clock"])
    monkeypatch.setattr(gymnax, "make", lambda name: (Clock(), Clock().default_params))
    env, key = gymnax_env("Clock", 1), jax.random.key(0)
    told = []
    state = env.reset((), key)
    for action in [0, 0, 0, 0, 0, 1, 1, 0, 0, 0]:
        answer = env.step((), state, jnp.int32(action), key)
        told.append(
            [
                float(x)
                for x in (
                    env.observe((), answer.state)[0],
                    answer.reward,
                    answer.discount,
                    answer.mask,
                )
            ]
        )
        state = env.reset((), key) if answer.discount == 0 else answer.state
    cut = [[1, 1, 1, 1], [2, 2, 1, 1], [3, 3, 1, 1], [4, 4, 1, 1], [5, 5, 1, 1]]
    np.testing.assert_array_equal(
        told[:5], cut
    )  # the last one of them leads to the true end, which is worth something
    assert told[5][1:] == [0, 0, 0]  # whatever the action, and the next episode does not know of it
    np.testing.assert_array_equal(
        told[6:9], [[1, 1, 1, 1], [2, 2, 1, 1], [3, 3, 0, 1]]
    )  # an end is an end
    assert told[9] == [1, 1, 1, 1]


@pytest.mark.parametrize("name", gymnax.registered_envs)
def test_every_one_can_be_built_or_is_refused_in_one_line(name):
    """Its states keep their shapes, and its observations and actions are as it says."""
    try:
        env = gymnax_env(name, 1)
    except SettingsError as error:
        refusal = str(error)
    else:
        refusal = None
    if refusal is not None:
        assert (
            name == "MNISTBandit-bsuite"
        )  # it downloads its data, which is not there for everybody
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
    answer = jax.eval_shape(lambda state: env.step((), state, action, key), state)
    as_it_was = jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), answer.state) == as_it_was
    assert {
        field.shape for field in (answer.reward, answer.discount, answer.goal, answer.mask)
    } == {()}
    assert jax.eval_shape(lambda state: env.observe((), state), state).shape == getattr(
        env.observations, "shape", ()
    )
    if isinstance(env.actions, Box):
        assert np.isfinite(env.actions.low + env.actions.high).all()


def test_what_is_unknown_or_not_served_is_refused_in_one_line():
    with pytest.raises(SettingsError, match="CartPole-v1"):
        gymnax_env("CartPol-v1", 1)
    with pytest.raises(SettingsError, match="Odd has a Tuple space, which is not supported"):
        convert_space("Odd", spaces.Tuple((spaces.Discrete(2),)))


def test_a_dictionary_is_one_vector():
    assert convert_space(
        "Two", spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(0, 1, (2, 2))})
    ) == Box((5,))
