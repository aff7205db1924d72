"""Trained policies: act on one observation after another, save, load, evaluate, record a video.

A policy needs the learner and the codec of its environment's spaces, but not the environment.
"""

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console

from ersac import __version__, config, display
from ersac.config import Experiment, SettingsError
from ersac.envs.base import Discrete, Spec, size_of
from ersac.policy import zoo
from ersac.policy.codec import codec_from_json, take_observation
from ersac.policy.evaluate import (
    Evaluation,
    evaluate_policy,
    evaluation_seed,
    sampling_note,
    select_rows,
)
from ersac.policy.trained import (
    TrainedAgent,
    act_batch,
    init_episodes,
    learner_from_arrays,
    make_trained,
    require_stored_settings,
    run_learner_arrays,
    trained_from_arrays,
)
from ersac.policy.video import film
from ersac.runs import disk, run_dir, seal
from ersac.runs.checkpoint import flatten
from ersac.types import Tree

FORMAT = 1
SAMPLED = 25  # episodes with sampled actions beside those with the most probable ones
MAX_ENTRIES = 1 << 26  # of an observation or action in a policy file
ABOUT = "about"  # the member of a policy file that describes the arrays of the learner


class BatchState(NamedTuple):
    """What a policy keeps between two steps of n episodes."""

    window: np.ndarray  # [n, ...]   the latest observations, encoded
    episode_state: Tree  # [n, ...]


class Policy:
    """A trained policy: call it with a raw observation, and it returns a raw action."""

    def __init__(self, trained: TrainedAgent) -> None:
        self._trained = trained
        self._rng = np.random.default_rng(trained.seed)
        self.reset()

    @property
    def trained(self) -> TrainedAgent:
        """The learner and its settings."""
        return self._trained

    @property
    def settings(self) -> Experiment:
        """The settings of the run that trained it."""
        return self._trained.settings

    @property
    def seed(self) -> int:
        """The seed of the run that trained it."""
        return self._trained.seed

    def __repr__(self) -> str:
        """What it was trained on, and its spaces."""
        spec, settings = self._trained.codec.spec, self.settings
        name = f"{settings.agent_name} on {config.env_name(settings.env)}, seed {self.seed}"
        return f"<Policy of {name}: {spec.observations} -> {spec.actions}>"

    def reset(self) -> None:
        """Start an episode. Needed with stacked frames and with one ensemble member per episode."""
        self._window: np.ndarray | None = None
        self._episode_state: Tree = None
        self._batch_state: BatchState | None = None

    def __call__(
        self,
        obs: Any,
        sample: bool = False,
        rng: np.random.Generator | None = None,
        action_mask: Any = None,
    ) -> Any:
        """The most probable action at one observation, or with `sample` an action that is drawn.

        For a batch of n observations, as vector environments return them: n actions.

        action_mask: info["action_mask"] where training had masks, of one observation; without it
        every action may be returned.
        """
        trained, codec, rng = self._trained, self._trained.codec, rng or self._rng
        if (count := codec.batch_size(obs)) is not None:
            rows = [take_observation(obs, index) for index in range(count)]
            actions, self._batch_state = self._act(rows, self._batch_state, None, sample, rng)
            return actions
        encoded = encode_observation(trained, obs, action_mask)
        if self._window is None:
            self._window = codec.reset_frames(encoded)
        else:
            self._window = codec.push_frame(self._window, encoded)
        if self._episode_state is None:
            self._episode_state = init_episodes(trained, 1, rng)
        return codec.decode(act_batch(trained, self._episode_state, self._window, sample, rng))

    def predict(
        self,
        observation: Any,
        state: BatchState | None = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Any, BatchState]:
        """The actions at one or n observations and the next state, as Stable-Baselines3 has it.

        state: what the previous call returned; None at the first step. episode_start: bool [n],
        which of the observations start an episode.
        """
        count = self._trained.codec.batch_size(observation)
        rows = [observation]
        if count is not None:
            rows = [take_observation(observation, index) for index in range(count)]
        starts = None if episode_start is None else np.asarray(episode_start, bool).reshape(-1)
        actions, state = self._act(rows, state, starts, not deterministic, self._rng)
        return (actions[0] if count is None else actions), state

    def _act(
        self,
        rows: list[Any],
        state: BatchState | None,
        starts: np.ndarray | None,
        sample: bool,
        rng: np.random.Generator,
    ) -> tuple[Any, BatchState]:
        """The actions at n raw observations, and the state after them."""
        trained, codec = self._trained, self._trained.codec
        encoded = np.concatenate([encode_observation(trained, row) for row in rows])
        begun = codec.reset_frames(encoded)
        if state is None or len(state.window) != len(rows):
            state = BatchState(begun, init_episodes(trained, len(rows), rng))
        else:
            state = state._replace(window=codec.push_frame(state.window, encoded))
            if starts is not None and starts.any():
                new = BatchState(begun, init_episodes(trained, len(rows), rng))
                state = jax.tree.map(partial(select_rows, starts), new, state)
        drawn = act_batch(trained, state.episode_state, state.window, sample, rng)
        actions = [codec.decode(drawn[i : i + 1]) for i in range(len(rows))]
        is_nested = isinstance(actions[0], dict | tuple)
        return actions if is_nested else np.asarray(actions), state

    def save(self, path: str | Path) -> None:
        """Save the policy to a new file, which `ersac.load` reads."""
        save_policy(self._trained, Path(path))

    def evaluate(
        self, episodes: int = 100, *, sample: bool = False, eval_seed: int = 0, show: bool = True
    ) -> Evaluation:
        """Play whole episodes in its training environment, with seeds that training did not use.

        Unless `sample`, up to 25 more are played with sampled actions, and a note says so if their
        mean return is another.
        """
        options = config.check(config.Evaluate(episodes, sample, eval_seed))
        with progress_lines(show) as on_progress:
            result = evaluate_policy(self._trained, options, on_progress)
            if sample:
                return result
            fewer = dataclasses.replace(options, episodes=min(episodes, SAMPLED), sample=True)
            sampled = evaluate_policy(self._trained, fewer, on_progress)
        if note := sampling_note(result, sampled):
            display.note(note)
        return result._replace(sampled_return=sampled.mean_return)

    def film(
        self, path: str | Path, *, sample: bool = False, eval_seed: int = 0, show: bool = True
    ) -> None:
        """Record a few episodes as a new video file, .mp4 or .gif."""
        options = config.check(config.Evaluate(sample=sample, eval_seed=eval_seed))
        act = partial(self, sample=sample)
        seed = evaluation_seed(self._trained, options.eval_seed)
        with progress_lines(show) as on_progress:
            film(self.settings.env, act, self.reset, Path(path), seed, on_progress)


def encode_observation(trained: TrainedAgent, obs: Any, action_mask: Any = None) -> np.ndarray:
    """A raw observation, encoded [1, ...]; SettingsError where its space does not contain it."""
    space = trained.codec.spec.observations
    wrong = (
        f"{config.short_repr(obs)} is not an observation of {config.env_name(trained.settings.env)}"
    )
    try:
        encoded = trained.codec.encode(obs, action_mask)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise SettingsError(f"{wrong}: {error}") from None
    if isinstance(space, Discrete) and not 0 <= encoded[0] < space.n:
        raise SettingsError(f"{wrong}: its space has {space.n} values")
    return encoded


@contextlib.contextmanager
def progress_lines(show: bool) -> Iterator[Callable[[str], None]]:
    """The function that prints a line of progress, or nothing unless `show`."""
    screen: display.Display = display.LineDisplay(Console(), str) if show else display.NullDisplay()
    try:
        yield screen.show
    finally:
        screen.close()


def open_policy(path: Path, seed: int | None = None, **overrides: Any) -> Policy:
    """The policy in a file, or of a seed of a run directory, by default the first.

    overrides: settings that are Python objects, of which only the names are stored.
    """
    if path.is_dir():
        settings = run_dir.read_settings(path)
        run_dir.checked_summary(path, settings)
        seed = settings.run.seed if seed is None else seed
        arrays = run_learner_arrays(path, settings, [seed])[seed]
        settings = config.override(settings, **overrides)
        return Policy(trained_from_arrays(path, settings, seed, arrays))
    policy = load_policy(path, **overrides)
    if seed not in (None, policy.seed):
        raise SettingsError(f"{path} holds seed {policy.seed}, not {seed}")
    return policy


def save_policy(trained: TrainedAgent, path: Path) -> None:
    """Write a policy to a new file."""
    disk.require_new(path)
    disk.write(path, policy_bytes(trained))


def policy_bytes(trained: TrainedAgent, compress: bool = False) -> memoryview:
    """A policy as a file: the learner's arrays, the settings and spaces as JSON, and a digest."""
    arrays = {f"learner/{name}": array for name, array in flatten(trained.learner)[0].items()}
    about = {
        "format": FORMAT,
        "ersac": __version__,
        "settings": run_dir.settings_json(trained.settings),
        "seed": trained.seed,
        "senses": trained.codec.spaces,
    }
    arrays[ABOUT] = np.frombuffer(json.dumps(about, default=str).encode(), np.uint8)
    return seal.seal_arrays(arrays, compress)


def load_policy(path: Path, **overrides: Any) -> Policy:
    """The policy that `save_policy` wrote.

    overrides: settings that are Python objects, of which the file has only the name.
    """
    arrays = read_policy_file(path)
    try:
        about = json.loads(arrays.pop(ABOUT).tobytes())
        settings = config.check(run_dir.settings_from_json(about["settings"]))
        if about["format"] != FORMAT:
            raise ValueError(about["format"])
        settings = config.override(settings, **overrides)
        require_small_spaces(about["senses"])
        codec = codec_from_json(settings.env, about["senses"])
        seed = int(about["seed"])
        np.random.default_rng(seed)  # ValueError if it is negative
    except SettingsError:
        raise
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        AssertionError,
        RecursionError,
    ):
        raise disk.DiskError(
            f"{path} was written by a version of ersac that {__version__} cannot read"
        ) from None
    require_stored_settings(settings)
    require_memory(settings, codec.spec)
    require_finite(arrays, path)
    learner = learner_from_arrays(settings, codec.spec, seal.arrays_below(arrays, "learner"), path)
    return Policy(make_trained(settings, seed, codec, learner))


def require_small_spaces(data: Any) -> None:
    """ValueError if a space in JSON data has more entries than any observation."""
    if isinstance(data, dict):
        shape = data.get("shape") or ()
        if math.prod(int(size) for size in shape) > MAX_ENTRIES:
            raise ValueError(shape)
    for part in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        require_small_spaces(part)


def require_memory(settings: Experiment, spec: Spec) -> None:
    """SettingsError if the networks that the settings describe do not fit into memory."""
    names = {leaf[-1] for leaf, _, _ in config.leaves(settings)}
    least = {name: 1 for name in ("seeds", "capacity", "batch", "chunk") if name in names}
    config.check_memory(config.override(settings, **least), size_of(spec))


def require_finite(arrays: dict[str, np.ndarray], path: Path) -> None:
    """DiskError if a number of the learner is not finite; its statistics may be infinite."""
    for name, array in arrays.items():
        wrong = np.isnan(array) if name.startswith("learner/memory") else ~np.isfinite(array)
        if wrong.any():
            raise disk.DiskError(f"{path} cannot be used: {name} has numbers that are not finite")


def read_policy_file(path: Path) -> dict[str, np.ndarray]:
    """The arrays in a policy file or of `zoo:NAME`; DiskError where its digest is wrong."""
    file = zoo.zoo_file(path)
    try:
        return seal.unseal_arrays(disk.read(file), compressed=file.parent == zoo.DIRECTORY)
    except MemoryError:
        raise disk.DiskError(f"cannot read {path}: not enough memory") from None
    except ValueError:
        raise disk.DiskError(f"{path} is damaged: it is not what save() wrote") from None
