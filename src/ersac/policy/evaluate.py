"""Evaluation of a trained agent over whole episodes."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac import config
from ersac.config import SettingsError
from ersac.envs.base import HostEnv
from ersac.envs.make import make_env, make_host_env, require_env_package
from ersac.loops.host_env import to_host_env
from ersac.policy.trained import TrainedAgent, act_batch, init_episodes
from ersac.policy.video import require_env_factory
from ersac.types import Array

SEED_OFFSET = 2**30  # from the seeds of training to those of evaluation
EVAL_SEED_STRIDE = 4096  # seeds for each --eval-seed: one for every environment
MIN_DEVICE_ENVS = 16  # pure environments that are stepped together, unless there are fewer episodes
MAX_EPISODE_STEPS = 100_000  # an episode that is longer is an error


class Evaluation(NamedTuple):
    """Statistics of the evaluated episodes."""

    mean_return: float
    stderr_return: float | None  # None for a single episode
    min_return: float
    max_return: float
    mean_length: float  # steps
    goal_share: float
    returns: np.ndarray  # [episodes]
    sampled_return: float | None = None  # the mean with sampled actions, where it was tried

    def as_json(self) -> dict[str, Any]:
        """All fields as JSON data."""
        return self._asdict() | {"returns": self.returns.tolist()}


def evaluate_policy(
    trained: TrainedAgent, options: config.Evaluate, on_progress: Callable[[str], None]
) -> Evaluation:
    """Play episodes in new environments, and summarise them."""
    env = evaluation_env(trained, options)
    try:
        returns, lengths, goals = play_episodes(trained, env, options, on_progress)
    finally:
        env.close()
    n = len(returns)
    return Evaluation(
        mean_return=float(returns.mean()),
        stderr_return=float(returns.std(ddof=1)) / math.sqrt(n) if n > 1 else None,
        min_return=float(returns.min()),
        max_return=float(returns.max()),
        mean_length=float(lengths.mean()),
        goal_share=float(goals.mean()),
        returns=returns,
    )


def sampling_note(mode: Evaluation, sampled: Evaluation) -> str | None:
    """One line where the most probable and the sampled actions have notably different returns.

    That is by more than three standard errors and a twentieth of the larger.
    """
    difference = abs(mode.mean_return - sampled.mean_return)
    error = math.hypot(mode.stderr_return or 0.0, sampled.stderr_return or 0.0)
    size = max(abs(mode.mean_return), abs(sampled.mean_return))
    if difference <= max(3 * error, 0.05 * size):
        return None
    return (
        f"the most probable actions have a return of {mode.mean_return:.4g}, actions sampled as "
        f"in training {sampled.mean_return:.4g} ({len(sampled.returns)} episodes): the policy is "
        "undecided; evaluate it with --sample, or train longer"
    )


def evaluation_seed(trained: TrainedAgent, eval_seed: int) -> int:
    """The seed of the first evaluation environment, far from all seeds of training."""
    return (trained.seed + SEED_OFFSET + EVAL_SEED_STRIDE * eval_seed) % 2**31


def evaluation_env(trained: TrainedAgent, options: config.Evaluate) -> HostEnv:
    """The environments of the run, at most one for each episode.

    A pure environment keeps the `env_params` of the trained seed, and gets its own random draws.
    """
    settings = trained.settings
    require_env_package(settings.env)
    if settings.env.on_host:
        require_env_factory(settings.env)
        count = min(settings.env.envs, options.episodes)
        return make_host_env(dataclasses.replace(settings.env, envs=count))
    env = make_env(settings.env)
    env_params = env.env_params(trained.seed)
    count = min(options.episodes, max(env.envs, MIN_DEVICE_ENVS))
    env = env._replace(env_params=lambda seed: env_params, envs=count)
    seed = evaluation_seed(trained, options.eval_seed)
    return to_host_env(env, config.override(settings, seed=seed))


def play_episodes(
    trained: TrainedAgent,
    env: HostEnv,
    options: config.Evaluate,
    on_progress: Callable[[str], None],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns, lengths and goals of episodes [episodes].

    Every environment plays equally many, so that short episodes are not counted more often.
    """
    seed = evaluation_seed(trained, options.eval_seed)
    rng = np.random.default_rng(seed)
    per_env = math.ceil(options.episodes / env.envs)
    returns = np.zeros((per_env, env.envs))
    lengths = np.zeros((per_env, env.envs), int)
    goals = np.zeros((per_env, env.envs), bool)
    done, total, length = np.zeros(env.envs, int), np.zeros(env.envs), np.zeros(env.envs, int)
    obs, episode_state = env.reset(seed), init_episodes(trained, env.envs, rng)
    while (unfinished := done < per_env).any():
        step = env.step(act_batch(trained, episode_state, obs, options.sample, rng))
        obs, total, length = step.obs, total + step.reward, length + (step.mask > 0)
        for i in np.flatnonzero(step.ended & unfinished):
            row = done[i], i
            returns[row], lengths[row] = total[i], length[i]
            goals[row] = step.goal[i] or (env.target is not None and total[i] >= env.target)
        if step.ended.any():
            done = done + (step.ended & unfinished)
            total, length = np.where(step.ended, 0, total), np.where(step.ended, 0, length)
            starts = init_episodes(trained, env.envs, rng)
            episode_state = jax.tree.map(partial(select_rows, step.ended), starts, episode_state)
            played = min(int(done.sum()), options.episodes)
            on_progress(f"{played:,} of {options.episodes:,} episodes")
        if length[unfinished].max() > MAX_EPISODE_STEPS:
            raise SettingsError(
                f"an episode of {env.name} has not ended after {MAX_EPISODE_STEPS:,} steps: "
                "give it a time limit, gymnasium.wrappers.TimeLimit"
            )
    flat = lambda table: table.reshape(-1)[: options.episodes]  # first episodes first
    return flat(returns), flat(lengths), flat(goals)


def select_rows(condition: np.ndarray, new: Array, old: Array) -> Array:
    """`new` where a condition [N] holds, else `old`, both [N, ...]."""
    return jnp.where(condition.reshape(-1, *[1] * (new.ndim - 1)), new, old)
