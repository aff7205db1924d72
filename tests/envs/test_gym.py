"""Vectorised environments against single Gymnasium environments, which are the oracle."""

import itertools
import math
import multiprocessing
import os
import signal
import sys

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from jax import numpy as jnp

from ersac.config import SettingsError
from ersac.envs.base import Box, Discrete, HostStep, MultiDiscrete, PackedSpace
from ersac.envs.gym.make import env_factory, host_env
from ersac.envs.gym.spaces import (
    action_codec,
    observation_codec,
    read_mask,
    space_from_json,
    space_json,
    to_choices,
)
from ersac.nets.packed import unpack
from ersac.runs.exits import Resumable

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a worker cannot import a test
GRID = "MiniGrid-DoorKey-5x5-v0"
REAL = [
    "CartPole-v1",
    "FrozenLake8x8-v1",
    "CliffWalking-v1",
    "Blackjack-v1",
    "MountainCar-v0",
    "Pendulum-v1",
    GRID,
]


class Counter(gymnasium.Env):
    """Counts its steps, which are also its rewards. The is_success of a reset must be ignored."""

    observation_space = spaces.Box(0, 9, (1,))
    action_space = spaces.Discrete(2, start=5)

    def __init__(self, terminates: int = 99, truncates: int = 99):
        self.terminates, self.truncates = terminates, truncates

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.count_array(), {"is_success": True}

    def step(self, action):
        assert self.action_space.contains(action), f"{action} is not in the space\na second line"
        self.count += 1
        ends = self.count == self.terminates
        return (
            self.count_array(),
            float(self.count),
            ends,
            self.count == self.truncates,
            {"is_success": ends},
        )

    def count_array(self):
        return np.array([self.count], np.float32)


def make_in_turn(*makes):
    """A factory that calls the given ones in turn."""
    remaining = iter(makes)
    return lambda: next(remaining)()


def arrays(step: HostStep) -> list[np.ndarray]:
    """Return the fields of a step, without `lost` where no worker died."""
    return [field for field in step if field is not None]


def play(env, seed, actions):
    """The first observations, and the steps stacked along time."""
    first = env.reset(seed)
    steps = [env.step(action) for action in actions]
    return first, HostStep(*(np.stack(field) for field in zip(*map(arrays, steps), strict=True)))


def random_actions(env, steps, seed=0):
    """Random actions [steps, N, ...]."""
    rng = np.random.default_rng(seed)
    if isinstance(env.actions, Discrete):
        return rng.integers(env.actions.n, size=(steps, env.envs)).astype(np.int32)
    return rng.uniform(
        env.actions.low, env.actions.high, (steps, env.envs, env.actions.size)
    ).astype(np.float32)


def batch(space, items):
    """Observations, batched as in Gymnasium's vector environments."""
    return concatenate(space, items, create_empty_array(space, len(items)))


def test_termination_and_truncation_side_by_side():
    """One environment terminates at 3, the other is truncated at 4."""
    env = host_env(
        make_in_turn(lambda: Counter(terminates=3), lambda: Counter(truncates=4)), "counter", 2
    )
    first, steps = play(env, 0, np.zeros((10, 2), np.int32))
    np.testing.assert_array_equal(first, [[0], [0]])
    ends, cut = (HostStep(*(field[:, i] for field in arrays(steps))) for i in range(2))

    np.testing.assert_array_equal(ends.obs[:, 0], [1, 2, 3, 0, 1, 2, 3, 0, 1, 2])
    np.testing.assert_array_equal(ends.reward, [1, 2, 3, 0, 1, 2, 3, 0, 1, 2])
    np.testing.assert_array_equal(ends.discount, [1, 1, 0, 0, 1, 1, 0, 0, 1, 1])
    np.testing.assert_array_equal(ends.mask, [1, 1, 1, 0, 1, 1, 1, 0, 1, 1])
    np.testing.assert_array_equal(ends.ended, [0, 0, 1, 0, 0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(ends.goal, [0, 0, 1, 0, 0, 0, 1, 0, 0, 0])

    np.testing.assert_array_equal(cut.obs[:, 0], [1, 2, 3, 4, 0, 1, 2, 3, 4, 0])
    np.testing.assert_array_equal(cut.reward, [1, 2, 3, 4, 0, 1, 2, 3, 4, 0])
    np.testing.assert_array_equal(cut.discount, [1, 1, 1, 1, 0, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(cut.mask, [1, 1, 1, 1, 0, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(cut.ended, [0, 0, 0, 1, 0, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(cut.goal, [0] * 10)

    assert [field.dtype for field in arrays(steps)] == [np.float32] * 4 + [bool] * 2


def test_termination_at_the_time_limit_is_termination():
    _, steps = play(
        host_env(lambda: Counter(terminates=2, truncates=2), "counter", 1),
        0,
        np.zeros((3, 1), np.int32),
    )
    np.testing.assert_array_equal(steps.discount[:, 0], [1, 0, 0])
    np.testing.assert_array_equal(steps.mask[:, 0], [1, 1, 0])


def test_frame_stacks_restart_at_a_truncation_and_at_a_reset():
    """The stack of the other environment, which is inside an episode, is not changed."""
    env = host_env(
        make_in_turn(lambda: Counter(truncates=3), lambda: Counter(truncates=5)),
        "counter",
        2,
        frames=3,
    )
    assert env.observations == Box((3,), frames=3)
    for _ in range(2):
        first, steps = play(env, 0, np.zeros((6, 2), np.int32))
        np.testing.assert_array_equal(first, np.zeros((2, 3)))
        np.testing.assert_array_equal(
            steps.obs[:, 0], [[0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 0], [0, 0, 1], [0, 1, 2]]
        )
        np.testing.assert_array_equal(
            steps.obs[:, 1], [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [0, 0, 0]]
        )


def test_frames_of_images_are_stacked_along_the_channels():
    class Pictures(Counter):
        observation_space = spaces.Box(0, 255, (2, 6, 5), np.uint8)  # channels first

        def count_array(self):
            return np.stack(
                [np.full((6, 5), self.count, np.uint8), np.full((6, 5), 100 + self.count, np.uint8)]
            )

    env = host_env(Pictures, "pictures", 1, frames=2)
    assert env.observations == Box((6, 5, 4), is_bytes=True, frames=2)
    first, steps = play(env, 0, np.zeros((2, 1), np.int32))
    assert first.dtype == steps.obs.dtype == np.uint8
    np.testing.assert_array_equal(first[0, 3, 3], [0, 100, 0, 100])
    np.testing.assert_array_equal(steps.obs[1, 0, 5, 4], [1, 101, 2, 102])


def test_discrete_observations_cannot_be_stacked():
    with pytest.raises(SettingsError, match="set frames to 1"):
        host_env(env_factory("Taxi-v4"), "Taxi-v4", 1, frames=2)


class Doors(gymnasium.Env):
    """Two factors; what is allowed follows from the observation, and anything else raises."""

    observation_space = spaces.Box(0.0, 9.0, (2,))
    action_space = spaces.MultiDiscrete([2, 3])

    @staticmethod
    def mask(age, number):
        return [bool(age % 2), not age % 2, *(int(number) % 3 != i for i in range(3))]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self.observe()

    def observe(self):
        self.obs = np.array([self.age, self.np_random.integers(9)], np.float32)
        return self.obs, {"action_mask": np.array(self.mask(*self.obs), np.int8)}

    def step(self, action):
        allowed = self.mask(*self.obs)
        assert allowed[action[0]]
        assert allowed[2 + action[1]]
        self.age += 1
        return (obs := self.observe())[0], float(action[1]), self.age == 4, False, obs[1]


@pytest.mark.parametrize("name", REAL)
def test_each_of_n_environments_is_identical_to_a_single_one(name):
    """Environment i is seeded by seed + i once; later episodes continue its random numbers."""
    steps, envs, seed = 230, 2, 7
    make = env_factory(name)
    env = host_env(make, name, envs)
    actions = random_actions(env, steps)
    first, answers = play(env, seed, actions)
    first_again, answers_again = play(env, seed, actions)
    np.testing.assert_array_equal(first, first_again)
    for one, other in zip(answers, answers_again, strict=True):
        np.testing.assert_array_equal(one, other)

    shape, dtype = (
        ((), np.int32)
        if isinstance(env.observations, Discrete)
        else (env.observations.shape, np.float32)
    )
    assert answers.obs.shape == (steps, envs, *shape)
    assert answers.obs.dtype == first.dtype == dtype
    for i in range(envs):
        oracle = make()
        encode = observation_codec(oracle.observation_space)[1]
        alone = lambda obs, space=oracle.observation_space, encode=encode: encode(
            batch(space, [obs])
        )[0]
        obs, _ = oracle.reset(seed=seed + i)
        np.testing.assert_array_equal(first[i], alone(obs))
        over = False
        for t in range(steps):
            step = HostStep(*(field[t, i] for field in arrays(answers)))
            if over:
                obs, _ = oracle.reset()
                over = False
                assert step[1:6] == (0, 0, 0, False, False)
            else:
                obs, reward, terminated, truncated, _ = oracle.step(actions[t, i])
                over = terminated or truncated
                assert step[1:6] == (np.float32(reward), not terminated, 1, over, False)
            np.testing.assert_array_equal(step.obs, alone(obs))


def test_the_action_space_of_each_environment_is_seeded():
    class Wilful(Counter):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.Discrete(10**9)

        def count_array(self):
            return np.array([self.action_space.sample()], np.float32)

    first, other = (
        play(host_env(Wilful, "wilful", 2), seed, np.zeros((3, 2), np.int32)) for seed in (4, 4)
    )
    np.testing.assert_array_equal(first[1].obs, other[1].obs)
    assert len(np.unique(first[1].obs)) == 6


def test_mountain_car_is_truncated_and_never_terminates():
    env = host_env(env_factory("MountainCar-v0"), "MountainCar-v0", 1)
    _, steps = play(env, 0, np.ones((201, 1), np.int32))
    assert np.flatnonzero(steps.ended).tolist() == [199]
    assert (
        np.flatnonzero(steps.discount == 0).tolist()
        == np.flatnonzero(steps.mask == 0).tolist()
        == [200]
    )


def test_the_spaces_of_registered_environments():
    spaces_of = lambda name: host_env(env_factory(name), name, 1)[1:3]
    assert spaces_of("CartPole-v1") == (Box((4,)), Discrete(2))
    assert spaces_of("Taxi-v4") == (PackedSpace((Discrete(500),), choices=6), Discrete(6))
    assert spaces_of("Blackjack-v1") == (Box((32 + 11 + 2,)), Discrete(2))
    assert spaces_of("Pendulum-v1") == (Box((3,)), Box((1,), low=(-2.0,), high=(2.0,)))
    assert spaces_of(GRID) == (Box((4 + 7 * 7 * (11 + 6 + 3),)), Discrete(7))


def test_a_grid_is_encoded_as_by_minigrids_one_hot_wrapper():
    wrappers = pytest.importorskip("minigrid.wrappers")
    oracle = wrappers.OneHotPartialObsWrapper(gymnasium.make(GRID))
    env = host_env(env_factory(GRID), GRID, 1)
    first, steps = play(env, 3, random_actions(env, 20))
    theirs = [oracle.reset(seed=3)[0]] + [
        oracle.step(int(action))[0] for action in random_actions(env, 20)[:, 0]
    ]
    for ours, obs in zip([first[0], *steps.obs[:, 0]], theirs, strict=True):
        np.testing.assert_array_equal(
            ours, np.concatenate([np.eye(4)[obs["direction"]], obs["image"].ravel()])
        )


class TestObservationCodec:
    def check(self, space, items, expected_space, expected):
        found, encode = observation_codec(space)
        before = batch(space, items)
        values = encode(before)
        assert found == expected_space
        np.testing.assert_array_equal(values, expected)
        return values

    def test_discrete_starts_at_zero(self):
        assert (
            self.check(spaces.Discrete(5, start=-2), [-2, 2], Discrete(5), [0, 4]).dtype == np.int32
        )

    def test_a_small_multidiscrete_is_one_index(self):
        space = spaces.MultiDiscrete([3, 4, 5], start=[0, 1, -1])
        items = [
            np.array([a, b, c]) + space.start for a in range(3) for b in range(4) for c in range(5)
        ]
        assert self.check(space, items, Discrete(60), np.arange(60)).dtype == np.int32
        grid = spaces.MultiDiscrete([[3, 4], [5, 2]])
        self.check(
            grid, [np.array([[1, 2], [3, 1]])], Discrete(120), [((1 * 4 + 2) * 5 + 3) * 2 + 1]
        )

    def test_a_large_multidiscrete_is_one_hot(self):
        space = spaces.MultiDiscrete([70_000, 2], start=[10, 0], seed=1)
        items = [space.sample() for _ in range(3)]
        flat = [np.concatenate([np.eye(1, 70_000, a - 10)[0], np.eye(2)[b]]) for a, b in items]
        assert self.check(space, items, Box((70_002,)), flat).dtype == np.float32

    def test_a_hundred_thousand_states_are_still_a_table(self):
        assert observation_codec(spaces.MultiDiscrete([50_000, 2]))[0] == Discrete(100_000)

    def test_bits_are_floats(self):
        assert (
            self.check(
                spaces.MultiBinary(3),
                [np.array([1, 0, 1], np.int8)],
                Box((3,), stored_as="bits"),
                [[1, 0, 1]],
            ).dtype
            == np.float32
        )

    def test_integers_that_are_no_image_are_floats(self):
        assert (
            self.check(
                spaces.Box(0, 255, (2,), np.uint8),
                [np.array([7, 200], np.uint8)],
                Box((2,), stored_as="bytes"),
                [[7, 200]],
            ).dtype
            == np.float32
        )
        assert observation_codec(spaces.Box(-9, 9, (4, 5, 6), np.int64))[0] == Box((4, 5, 6))
        self.check(spaces.Box(0, 1, ()), [np.float32(0.5)], Box((1,)), [[0.5]])

    @pytest.mark.parametrize(
        ("shape", "encoded"),
        [
            ((6, 7), (6, 7, 1)),
            ((6, 7, 3), (6, 7, 3)),
            ((3, 6, 7), (6, 7, 3)),
            ((1, 6, 7), (6, 7, 1)),
            ((4, 5, 3), (4, 5, 3)),
        ],
    )
    def test_images_stay_bytes_with_their_channels_last(self, shape, encoded):
        image = np.arange(math.prod(shape), dtype=np.uint8).reshape(shape)
        moved = np.transpose(image, (1, 2, 0)) if shape[0] != encoded[0] else image.reshape(encoded)
        values = self.check(
            spaces.Box(0, 255, shape, np.uint8),
            [image, image + 1],
            Box(encoded, is_bytes=True),
            [moved, moved + 1],
        )
        assert values.dtype == np.uint8

    def test_a_dict_is_the_vector_of_its_numeric_entries(self):
        space = spaces.Dict(
            {
                "word": spaces.Text(9),
                "pose": spaces.Box(-1, 1, (2, 2)),
                "kind": spaces.Discrete(3, start=1),
                "look": spaces.Box(0, 255, (1, 2), np.uint8),
                "pair": spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3])]),
            }
        )
        item = {
            "word": "hello",
            "pose": np.array([[0.5, -0.5], [0.25, 1]], np.float32),
            "kind": 3,
            "look": np.array([[51, 255]], np.uint8),
            "pair": (np.array([0, 1], np.int8), np.array([1, 0])),
        }
        kind_codes, look, pair, pose = (
            [0, 0, 1],
            [np.float32(51) / np.float32(255), 1],
            [0, 1, 0, 1, 1, 0, 0],
            [0.5, -0.5, 0.25, 1],
        )
        expected = np.array(
            [[*kind_codes, *look, *pair, *pose]], np.float32
        )  # in the order of their names
        assert self.check(space, [item], Box((16,)), expected).dtype == np.float32

    @pytest.mark.parametrize(
        "space",
        [
            spaces.Text(3),
            spaces.Dict({"word": spaces.Text(3)}),
            spaces.Graph(spaces.Discrete(2), None),
        ],
    )
    def test_a_space_without_numbers_raises(self, space):
        with pytest.raises(SettingsError, match="is not supported"):
            observation_codec(space)

    @pytest.mark.parametrize("shape", [(2,), (6, 6), (1, 6, 6), (6, 6, 3)])
    def test_encoded_observations_are_copies(self, shape):
        """Gymnasium overwrites the last observations with the next ones."""
        space = spaces.Box(0, 1, shape) if len(shape) == 1 else spaces.Box(0, 255, shape, np.uint8)
        obs = batch(space, [space.sample()])
        assert not np.shares_memory(obs, observation_codec(space)[1](obs))


class TestActionCodec:
    def test_the_start_of_a_discrete_space_is_added(self):
        space, decode = action_codec(spaces.Discrete(3, start=4))
        assert space == Discrete(3)
        np.testing.assert_array_equal(decode(np.array([0, 2])), [4, 6])

    @pytest.mark.parametrize("wrong", [-1, 3])
    def test_an_action_outside_the_space_never_reaches_an_environment(self, wrong):
        with pytest.raises(AssertionError, match="not all from 0 to 2"):
            action_codec(spaces.Discrete(3))[1](np.array([1, wrong]))

    def test_actions_get_the_shape_of_their_box(self):
        box = spaces.Box(np.array([[-1, -2]] * 2), np.array([[3, 4]] * 2), dtype=np.float64)
        space, decode = action_codec(box)
        assert space == Box((2, 2), low=(-1, -2, -1, -2), high=(3, 4, 3, 4))
        actions = decode(np.array([[0, 1, 2, 3]], np.float32))
        assert box.contains(actions[0])
        np.testing.assert_array_equal(actions, [[[0, 1], [2, 3]]])

    @pytest.mark.parametrize(
        "space",
        [
            spaces.Box(-np.inf, 1, (2,)),
            spaces.Box(0, 9, (2,), np.int32),
            spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (1,)))),
        ],
    )
    def test_an_unsupported_action_space_raises(self, space):
        with pytest.raises(SettingsError, match=r"^action space"):
            action_codec(space)


FACTORS = [
    (spaces.MultiDiscrete([3, 4, 2], start=[0, 5, 1]), (3, 4, 2)),
    (spaces.MultiDiscrete([[2, 3], [4, 5]]), (2, 3, 4, 5)),
    (spaces.MultiBinary(3), (2, 2, 2)),
    (spaces.MultiBinary((2, 2)), (2, 2, 2, 2)),
    (spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary(2))), (3, 2, 2)),
    (spaces.Dict(a=spaces.Discrete(4), b=spaces.MultiDiscrete([2, 3])), (4, 2, 3)),
]


class TestFactors:
    """Actions of several factors, and their masks."""

    @pytest.mark.parametrize(("space", "sizes"), FACTORS)
    def test_every_choice_is_an_action_of_the_space_and_back(self, space, sizes):
        encoded, decode = action_codec(space_from_json(space_json(space)))
        assert encoded == MultiDiscrete(sizes)
        choices = np.array(list(itertools.product(*map(range, sizes))))
        actions = decode(choices)
        assert all(space.contains(action) for action in actions)
        assert [to_choices(space, action) for action in actions] == choices.tolist()
        assert to_choices(space, space.sample()) in choices.tolist()
        with pytest.raises(AssertionError, match="not all in"):
            decode(np.array([sizes]))

    def test_a_single_factor_is_one_discrete_action(self):
        space = spaces.MultiDiscrete([4], start=[2])
        encoded, decode = action_codec(space)
        assert encoded == Discrete(4)
        np.testing.assert_array_equal(decode(np.array([0, 3])), [[2], [5]])

    @pytest.mark.parametrize(
        "mask",
        [
            np.array([1, 0, 1, 1, 0], np.int8),
            (np.array([True, False]), [1, 1, 0]),
            [1, 0, 1, 1, 0],
        ],
    )
    def test_a_mask_is_one_array_or_one_for_each_factor(self, mask):
        read = read_mask({"action_mask": mask}, (2, 3))
        assert read.tolist() == [True, False, True, True, False]

    @pytest.mark.parametrize(
        ("mask", "words"),
        [
            (None, "info has no action_mask"),
            ([1, 1, 1], "has 3 entries, but the action space 5 choices"),
            ([1, 2, 1, 1, 1], "must be 0 or 1"),
            ([1, 1, 0, 0, 0], "allows no choice of factor 1"),
        ],
    )
    def test_a_wrong_mask_is_one_line(self, mask, words):
        with pytest.raises(ValueError, match=words) as raised:
            read_mask({"action_mask": mask}, (2, 3))
        assert "\n" not in str(raised.value)

    @pytest.mark.parametrize("mask", [None, [0, 0, 0, 0, 0]])
    def test_at_the_end_of_an_episode_no_mask_is_needed(self, mask):
        assert read_mask({"action_mask": mask}, (2, 3), at_end=True).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_masks_travel_with_their_observations(workers):
    """Also through worker processes, and when an environment is reset between two steps."""
    env = host_env(Doors, "doors", envs=2, workers=workers)
    try:
        assert env.observations == PackedSpace((Box((2,)),), choices=5)
        obs = env.reset(3)
        for _ in range(9):
            seen, allowed = unpack(env.observations, jnp.asarray(obs))
            seen, allowed = np.asarray(seen), np.asarray(allowed)
            np.testing.assert_array_equal(allowed, [Doors.mask(*row) for row in seen])
            choices = np.stack([allowed[:, :2].argmax(1), allowed[:, 2:].argmax(1)], axis=1)
            obs = env.step(choices).obs
    finally:
        env.close()


class TestIds:
    def test_a_misspelt_id_suggests_similar_ones(self):
        with pytest.raises(
            SettingsError, match=r"unknown environment 'CartPol-v1'; did you mean CartPole-v1 or "
        ):
            env_factory("CartPol-v1")

    def test_an_id_without_its_version_is_unknown(self):
        with pytest.raises(SettingsError, match=r"did you mean Taxi-v4\?"):
            env_factory("Taxi")

    def test_an_unknown_id_says_how_to_import_its_package(self):
        with pytest.raises(SettingsError, match=r"write package\.module:Id-v0"):
            env_factory("zzzzzzzz")

    def test_a_module_is_imported_first(self, tmp_path, monkeypatch):
        (tmp_path / "ersac_test_envs.py").write_text(
            "import gymnasium\n"
            "entry_point = 'gymnasium.envs.classic_control:CartPoleEnv'\n"
            "gymnasium.register('Far-v0', entry_point, max_episode_steps=3)\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        try:
            env = env_factory("ersac_test_envs:Far-v0")()
            assert env.spec.max_episode_steps == 3
        finally:
            gymnasium.registry.pop("Far-v0", None)

    def test_a_module_that_is_missing_or_broken_is_one_line(self, tmp_path, monkeypatch):
        with pytest.raises(
            SettingsError, match=r"ersac_nowhere cannot be imported: ModuleNotFoundError: No module"
        ):
            env_factory("ersac_nowhere:Far-v0")
        (tmp_path / "ersac_test_broken.py").write_text("raise ValueError('one\\ntwo')\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(SettingsError, match=r"cannot be imported: ValueError: one$"):
            env_factory("ersac_test_broken:Far-v0")

    def test_a_missing_minigrid_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "minigrid", None)
        with pytest.raises(SettingsError, match=r'needs minigrid: pip install "\.\[gym\]"'):
            env_factory(GRID)


class TestFailures:
    def test_an_environment_that_cannot_be_created_is_a_settings_error(self):
        def make():
            raise gymnasium.error.DependencyNotInstalled("install this\nor that")

        with pytest.raises(
            SettingsError,
            match=r"^odd cannot be created: DependencyNotInstalled: install this \(test_gym.py",
        ):
            host_env(make, "odd", 2)

    def test_an_exception_of_an_environment_is_one_line(self):
        class Fragile(Counter):
            def step(self, action):
                raise ZeroDivisionError("no\nmore")

            def reset(self, *, seed=None, options=None):
                if seed == 13:
                    raise OSError("unlucky")
                return super().reset(seed=seed)

        env = host_env(Fragile, "fragile", 2)
        env.reset(0)
        with pytest.raises(
            Resumable,
            match=r"^fragile failed in step\(\): ZeroDivisionError: no \(test",
        ):
            env.step(np.zeros(2, np.int32))
        with pytest.raises(Resumable, match=r"^fragile failed in reset\(\): OSError: unlucky \("):
            env.reset(12)
        env.close()


class TestWorkers:
    def test_workers_change_no_bit_ignore_signals_and_are_replaced(self, capfd):
        """Three environments on two workers; signals to the process group reach them too."""
        make = env_factory("CartPole-v1")
        near, far = (host_env(make, "CartPole-v1", 3, workers, frames=2) for workers in (0, 2))
        try:
            assert far[:4] == near[:4]
            actions = random_actions(near, 60)
            workers = [
                process
                for process in multiprocessing.active_children()
                if process.name == "ersac-CartPole-v1"
            ]
            assert len(workers) == 2
            workers.sort(key=lambda process: process.pid)  # in the order of their start
            for process in workers:
                for number in (signal.SIGINT, signal.SIGTERM):
                    os.kill(process.pid, number)
            for _ in range(2):
                (first, ours), (other, theirs) = play(near, 11, actions), play(far, 11, actions)
                np.testing.assert_array_equal(first, other)
                for one, another in zip(arrays(ours), arrays(theirs), strict=True):
                    assert one.dtype == another.dtype
                    np.testing.assert_array_equal(one, another)
                assert ours.ended.any(axis=0).all()
                for process in workers:
                    os.kill(process.pid, signal.SIGTERM)
            workers[1].kill()
            workers[1].join()
            replaced = far.step(actions[0])
            assert replaced.lost.tolist() == [False, True, True]
            assert replaced.mask.tolist() == [1, 0, 0]
            assert replaced.discount[1:].tolist() == [0, 0]
            following = far.step(actions[1])
            assert following.lost is None
            assert following.mask.tolist() == [1, 1, 1]
            assert (following.obs[1:] != replaced.obs[1:]).any()
            assert "a worker died (exit code -9); it is replaced" in capfd.readouterr().err
        finally:
            far.close()
        assert not any(process.is_alive() for process in workers)
        far.close()

    def test_an_exception_in_a_worker_is_raised_here(self):
        """The environment is not registered: its class is sent to the worker."""

        class Cursed(Counter):
            def step(self, action):
                raise KeyError("gone")

        env = host_env(Cursed, "cursed", 1, workers=4)
        try:
            np.testing.assert_array_equal(env.reset(0), [[0]])
            with pytest.raises(
                Resumable,
                match=r"^cursed failed in step\(\): KeyError: 'gone' \(test",
            ):
                env.step(np.zeros(1, np.int32))
        finally:
            env.close()

    def test_an_environment_that_cannot_be_pickled_is_a_settings_error(self):
        stuck = (make() for make in [Counter] * 5)  # a generator cannot be pickled
        with pytest.raises(
            SettingsError,
            match=r"^counter cannot be sent to a worker: TypeError: .*; set workers to 0",
        ):
            host_env(lambda: next(stuck), "counter", 2, workers=1)


class Answers(Counter):
    """Answers an observation or a reward of one's choice in its second step."""

    def __init__(self, space, good, bad, reward=0.0):
        super().__init__()
        self.observation_space, self.good, self.bad, self.reward = space, good, bad, reward

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.good, {}

    def step(self, action):
        self.steps += 1
        late = self.steps == 2
        obs = self.bad if late else self.good
        return obs, self.reward if late else 0.0, False, False, {}


DIGITS = spaces.MultiDiscrete([3, 4])
BOTH = spaces.Dict({"here": spaces.Discrete(3), "there": spaces.Tuple([spaces.Discrete(4)])})


@pytest.mark.parametrize(
    ("space", "good", "bad", "line"),
    [
        (spaces.Discrete(5), 4, 5, "observation is 5, but its space is from 0 to 4"),
        (spaces.Discrete(5, start=-1), -1, 4, "observation is 4, but its space is from -1 to 3"),
        (spaces.Discrete(5), 4, 2.5, "an observation is float64, but its space is int64"),
        (DIGITS, [2, 3], [0, 4], r"observation\[1\] is 4, but its space is from 0 to 3"),
        (spaces.MultiBinary(2), [0, 1], [0, 2], r"observation\[1\] is 2, .* from 0 to 1"),
        (
            BOTH,
            {"here": 0, "there": (0,)},
            {"here": 3, "there": (0,)},
            r"observation\['here'\] is 3, but its space is from 0 to 2",
        ),
        (
            BOTH,
            {"here": 0, "there": (0,)},
            {"here": 0, "there": (-1,)},
            r"observation\['there'\]\[0\] is -1, but its space is from 0 to 3",
        ),
    ],
)
def test_integers_are_checked_in_every_step(space, good, bad, line):
    env = host_env(lambda: Answers(space, good, bad), "odd", 2)
    env.reset(0)
    env.step(np.zeros(2, np.int32))
    with pytest.raises(Resumable, match=rf"^odd failed in step\(\): ValueError: {line}"):
        env.step(np.zeros(2, np.int32))


@pytest.mark.parametrize("reward", [[0.0, 1.0], None, "much", np.zeros(2)])
def test_a_late_reward_that_is_a_list(reward):
    env = host_env(lambda: Answers(spaces.Discrete(2), 0, 0, reward), "odd", 2)
    env.reset(0)
    env.step(np.zeros(2, np.int32))
    with pytest.raises(Resumable, match=r"^odd failed in step\(\): ValueError: "):
        env.step(np.zeros(2, np.int32))
