"""N games of the Arcade Learning Environment as a host environment.

Preprocessing is that of Gymnasium's AtariPreprocessing with FrameStackObservation: the maximum of
the last two of `frame_skip` frames, grey, 84 x 84 by area, the newest `frames` of them stacked. No
setting is left to a default of the emulator's: those differ between its interfaces.

Two implementations return the same observations and rewards: the emulator's own vector environment,
which has threads and whose state cannot be read, and with `lockstep` one emulator after the other,
whose state is part of a snapshot. The action that a sticky emulator would repeat is missing in its
own state, so with `lockstep` actions are repeated here: as often, but on other frames.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import ale_py
import cv2
import numpy as np

from ersac import config
from ersac.envs.base import Box, Discrete, HostEnv, HostStep
from ersac.types import Tree

SIDE = 84  # pixels of an observation
STATE_BYTES = 2**14  # of a serialised emulator, which has about 14,440
MAX_SEED = 2**31 - 2
BLOCK = 4096  # frames for which repeated actions are drawn at once


class GameSteps(NamedTuple):
    """The result of one step of N games."""

    obs: np.ndarray  # [N, 84, 84, frames] uint8
    reward: np.ndarray  # [N]
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    lives: np.ndarray  # [N]


class Games(NamedTuple):
    """N games that are stepped together."""

    n_actions: int
    reset: Callable[[np.ndarray], GameSteps]  # seeds [N]
    # actions, whether a new episode starts instead [N]
    step: Callable[[np.ndarray, np.ndarray], GameSteps]
    close: Callable[[], None]
    snapshot: Callable[[], Tree] | None = None
    restore: Callable[[Tree], None] | None = None


def atari_env(settings: config.Atari) -> HostEnv:
    """The games that the settings describe."""
    games = serial_games(settings) if settings.lockstep else vector_games(settings)
    envs = settings.envs
    ended, lives = np.zeros(envs, bool), np.zeros(envs, np.int32)

    def reset(seed: int) -> np.ndarray:
        nonlocal ended, lives
        first = games.reset(1 + (seed + np.arange(envs)) % MAX_SEED)
        ended, lives = np.zeros(envs, bool), first.lives
        return first.obs

    def step(actions: np.ndarray) -> HostStep:
        nonlocal ended, lives
        require_actions(actions, games.n_actions)
        fake, before = ended, lives
        result = games.step(actions.astype(np.int32), fake)
        ended, lives = (result.terminated | result.truncated) & ~fake, result.lives
        over = result.terminated | fake
        if settings.episodic_life:
            over = over | (lives < before)
        return HostStep(
            obs=result.obs,
            reward=np.where(fake, 0, result.reward).astype(np.float32),
            discount=(~over).astype(np.float32),
            mask=(~fake).astype(np.float32),
            ended=ended,
            goal=np.zeros(envs, bool),
        )

    def snapshot() -> Tree:
        assert games.snapshot is not None
        return {"games": games.snapshot(), "ended": ended, "lives": lives}

    def restore(state: Tree) -> None:
        nonlocal ended, lives
        assert games.restore is not None
        games.restore(state["games"])
        ended, lives = state["ended"], state["lives"]

    return HostEnv(
        name=config.env_name(settings),
        observations=Box((SIDE, SIDE, settings.frames), is_bytes=True, frames=settings.frames),
        actions=Discrete(games.n_actions),
        envs=envs,
        reset=reset,
        step=step,
        close=games.close,
        target=settings.target,
        snapshot=None if games.snapshot is None else snapshot,
        restore=None if games.restore is None else restore,
    )


def require_actions(actions: np.ndarray, n_actions: int) -> None:
    """AssertionError where an action is outside its range: the emulator would never return."""
    assert 0 <= actions.min() <= actions.max() < n_actions, (
        f"actions {actions} are not all from 0 to {n_actions - 1}"
    )


def vector_games(settings: config.Atari) -> Games:
    """N games in the emulator's vector environment, stepped by its threads."""
    env = ale_py.AtariVectorEnv(
        settings.id,
        settings.envs,
        batch_size=settings.envs,
        num_threads=settings.workers,
        max_num_frames_per_episode=settings.max_frames,
        repeat_action_probability=settings.sticky,
        full_action_space=settings.full_actions,
        continuous=False,
        autoreset_mode="NextStep",
        img_height=SIDE,
        img_width=SIDE,
        grayscale=True,
        stack_num=settings.frames,
        frameskip=settings.frame_skip,
        maxpool=True,
        noop_max=settings.noops,
        episodic_life=False,
        life_loss_info=False,
        reward_clipping=False,
        use_fire_reset=False,
    )

    age = np.zeros(settings.envs, int)  # observations of the current episodes before the newest

    def reset(seeds: np.ndarray) -> GameSteps:
        first: Any = env.reset(seed=seeds)
        obs, info = first
        age[:] = 0
        zeros = np.zeros(settings.envs, bool)
        return GameSteps(fill_stacks(obs, age), zeros, zeros, zeros, info["lives"])

    def step(actions: np.ndarray, starts: np.ndarray) -> GameSteps:
        """Step; the emulator itself starts an episode on the step after the last one."""
        stepped: Any = env.step(actions)
        obs, reward, terminated, truncated, info = stepped
        age[:] = np.where(starts, 0, age + 1)
        return GameSteps(fill_stacks(obs, age), reward, terminated, truncated, info["lives"])

    n_actions: Any = env.single_action_space
    return Games(int(n_actions.n), reset, step, close=env.close)


def fill_stacks(obs: np.ndarray, age: np.ndarray) -> np.ndarray:
    """Stacks of frames [N, frames, height, width] as images [N, height, width, frames].

    Before the first frame of an episode the emulator has zeros, Gymnasium copies of it.
    """
    newest = obs.shape[1] - 1
    for i in np.flatnonzero(age < newest):
        first = newest - age[i]
        obs[i, :first] = obs[i, first]
    return np.moveaxis(obs, 1, -1)


class Emulator:
    """One game with the preprocessing of a single observation, whose state can be stored."""

    def __init__(self, settings: config.Atari) -> None:
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.settings, self.ale = settings, ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", 0.0)  # see `_repeats`
        self.seed = self.episodes = self.frames = self.last = 0
        self.drawn, self.repeats = (-1, -1, -1), [False]  # whether to repeat, for BLOCK frames
        self._load()
        ale, full = self.ale, settings.full_actions
        self.actions = ale.getLegalActionSet() if full else ale.getMinimalActionSet()
        self.screens = np.zeros((2, *ale.getScreenDims()), np.uint8)  # the last two, newest first

    def _load(self) -> None:
        self.ale.setInt("random_seed", self.seed)
        path = ale_py.roms.get_rom_path(self.settings.id)
        assert path is not None  # the package has all 57
        self.ale.loadROM(path)

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start an episode; return its first frame [84, 84]."""
        if seed is not None:
            self.seed, self.episodes = seed, 0
            self._load()
        self.ale.reset_game()
        rng = np.random.default_rng((self.seed, self.episodes))
        for _ in range(rng.integers(self.settings.noops + 1)):
            self.ale.act(0)
            if self.ale.game_over():
                self.ale.reset_game()
        self.episodes, self.frames, self.last = self.episodes + 1, 0, 0
        self.ale.getScreenGrayscale(self.screens[0])
        self.screens[1] = 0
        return self._merge()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        """Repeat an action; return the frame [84, 84], the reward, terminated and truncated.

        As in Gymnasium, no screen is read after the end of an episode.
        """
        reward, terminated, truncated = 0.0, False, False
        for left in reversed(range(self.settings.frame_skip)):
            if not self._repeats():
                self.last = action
            reward += self.ale.act(self.actions[self.last])
            self.frames += 1
            terminated = self.ale.game_over()
            truncated = not terminated and self.frames >= self.settings.max_frames
            if terminated or truncated:
                break
            if left <= 1:
                self.ale.getScreenGrayscale(self.screens[left])
        return self._merge(), reward, terminated, truncated

    def _repeats(self) -> bool:
        """Whether the emulator repeats its last action in this frame instead of the new one."""
        block, index = divmod(self.frames, BLOCK)
        if self.drawn != (self.seed, self.episodes, block):
            self.drawn = (self.seed, self.episodes, block)
            draws = np.random.default_rng((*self.drawn, 1)).random(BLOCK)
            self.repeats = (draws < self.settings.sticky).tolist()
        return self.repeats[index]

    def _merge(self) -> np.ndarray:
        """The maximum of both screens in the size of an observation: the mean of every area."""
        newest, before = self.screens
        np.maximum(newest, before, out=newest)
        return cv2.resize(newest, (SIDE, SIDE), interpolation=cv2.INTER_AREA)

    def serialise(self) -> np.ndarray:
        """The state of the emulator with that of its random numbers, padded to STATE_BYTES."""
        state = self.ale.cloneState(include_rng=True).serialize()
        padded = np.zeros(STATE_BYTES, np.uint8)
        padded[: len(state)] = np.frombuffer(state, np.uint8)
        return padded

    def restore(self, state: np.ndarray) -> None:
        """Continue from what `serialise` returned; the padding is ignored."""
        self.ale.restoreState(ale_py.ALEState(state.tobytes()))


def serial_games(settings: config.Atari) -> Games:
    """N games in this thread, one after the other, with a state that can be stored."""
    emulators = [Emulator(settings) for _ in range(settings.envs)]
    window = np.zeros((settings.envs, SIDE, SIDE, settings.frames), np.uint8)
    lives = lambda: np.array([emulator.ale.lives() for emulator in emulators], np.int32)

    def reset(seeds: np.ndarray) -> GameSteps:
        nonlocal window
        pairs = zip(emulators, seeds.tolist(), strict=True)
        first = np.stack([emulator.reset(seed) for emulator, seed in pairs])
        window = np.repeat(first[..., None], settings.frames, axis=-1)
        zeros = np.zeros(settings.envs, bool)
        return GameSteps(window, zeros, zeros, zeros, lives())

    def step(actions: np.ndarray, starts: np.ndarray) -> GameSteps:
        nonlocal window
        frames, reward, terminated, truncated = zip(
            *(
                (emulator.reset(), 0.0, False, False) if start else emulator.step(action)
                for emulator, action, start in zip(emulators, actions, starts, strict=True)
            ),
            strict=True,
        )
        newest = np.stack(frames)[..., None]
        window = np.concatenate([window[..., 1:], newest], axis=-1)
        window[starts] = newest[starts]
        flags = np.array(terminated), np.array(truncated)
        return GameSteps(window, np.array(reward), *flags, lives())

    def snapshot() -> Tree:
        states = [emulator.serialise() for emulator in emulators]
        counts = [(e.seed, e.episodes, e.frames, e.last) for e in emulators]
        screens = np.stack([emulator.screens for emulator in emulators])
        state = {"states": np.stack(states), "counts": np.array(counts, np.int32)}
        return state | {"screens": screens, "window": window}

    def restore(state: Tree) -> None:
        nonlocal window
        window = state["window"]
        for i, emulator in enumerate(emulators):
            counts = state["counts"][i].tolist()
            emulator.seed, emulator.episodes, emulator.frames, emulator.last = counts
            emulator.screens = np.array(state["screens"][i])
            emulator.restore(state["states"][i])

    n_actions = len(emulators[0].actions)
    return Games(n_actions, reset, step, lambda: None, snapshot, restore)
