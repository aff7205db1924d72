"""A trained agent: one seed's learner, ready to act on batches of observations."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac import config, display
from ersac.agents.build import agent_of
from ersac.config import Experiment, SettingsError
from ersac.envs.base import Spec
from ersac.loops import devices
from ersac.policy.codec import SpaceCodec, make_codec
from ersac.runs import disk, latest, run_dir
from ersac.runs.checkpoint import flatten
from ersac.runs.results import index_of_seed
from ersac.runs.seal import array_form, arrays_below
from ersac.runs.session import loop_of
from ersac.types import Array, Learner, Tree


class TrainedAgent(NamedTuple):
    """One seed's learner, and the settings it was trained with."""

    settings: Experiment
    program: Experiment  # the static part of the settings, which decides the compiled program
    seed: int
    codec: SpaceCodec
    learner: Learner  # without the state of its optimisers


def make_trained(
    settings: Experiment, seed: int, codec: SpaceCodec, learner: Learner
) -> TrainedAgent:
    """A trained agent, with its learner on the device."""
    devices.claim_cores()  # so that a training in the same process has all cores
    devices.enable_compilation_cache()
    program = loop_of(settings).static_settings(settings)
    return TrainedAgent(settings, program, seed, codec, jax.tree.map(jnp.asarray, learner))


def trained_from_carry(
    settings: Experiment, carry: Any, seed: int, codec: SpaceCodec | None = None
) -> TrainedAgent:
    """The trained agent of a seed, from a loop's carry.

    codec: of the environment's spaces, if it was made before.
    """
    seed_index = index_of_seed(settings, seed)
    learner = loop_of(settings).learner(carry, seed_index)
    learner = jax.tree.map(np.asarray, learner._replace(opt=()))
    return make_trained(settings, seed, codec or make_codec(settings.env), learner)


def trained_from_run(directory: Path, settings: Experiment, seed: int) -> TrainedAgent:
    """The trained agent of a seed, from the last checkpoint of a run."""
    arrays = run_learner_arrays(directory, settings, [seed])[seed]
    return trained_from_arrays(directory, settings, seed, arrays)


def run_learner_arrays(
    directory: Path, settings: Experiment, seeds: Iterable[int]
) -> dict[int, dict[str, np.ndarray]]:
    """The arrays of the learners of some seeds by name, from the last checkpoint of a run.

    A note says how far the run is, unless it has ended.
    """
    indices = {seed: index_of_seed(settings, seed) for seed in seeds}
    has_ended = run_dir.valid_summary(directory, settings) is not None
    saved = latest.last_checkpoint(directory, settings, display.note, has_ended)
    if not has_ended:
        state = latest.run_state(directory)
        display.note(latest.describe_unfinished(directory, state, latest.steps_of(saved)))
    arrays, loop = arrays_below(saved.arrays, "loop"), loop_of(settings)
    return {seed: loop.saved_learner(arrays, seed, index) for seed, index in indices.items()}


def trained_from_arrays(
    directory: Path, settings: Experiment, seed: int, arrays: dict[str, np.ndarray]
) -> TrainedAgent:
    """The trained agent of a seed, from the arrays of its learner."""
    require_stored_settings(settings)
    codec = make_codec(settings.env)
    learner = learner_from_arrays(settings, codec.spec, arrays, directory)
    return make_trained(settings, seed, codec, learner)


def require_stored_settings(settings: Experiment) -> None:
    """SettingsError where the torso or the estimator is a Python object, stored as its name."""
    for path, _, value in config.leaves(settings):
        if path[-1] in ("torso", "estimator") and isinstance(value, str):
            raise SettingsError(
                f"the {path[-1]} is a Python object, which is not stored: use result.policy in "
                f"Python, or ersac.load(FILE, {path[-1]}=...)"
            )


def learner_from_arrays(
    settings: Experiment, spec: Spec, arrays: dict[str, np.ndarray], source: Path
) -> Learner:
    """A learner from its arrays by name, without the state of its optimisers."""
    template = agent_of(settings, spec).init(np.random.default_rng(0))._replace(opt=())
    expected, _ = flatten(template)
    stored = {name: array for name, array in arrays.items() if not name.startswith("opt/")}
    forms = lambda arrays: {name: array_form(array) for name, array in arrays.items()}
    if forms(expected) != forms(stored):
        raise disk.DiskError(
            f"the arrays in {source} do not match this agent: another version of ersac wrote them, "
            "or the environment or the torso is different"
        )
    return jax.tree.unflatten(jax.tree.structure(template), [stored[name] for name in expected])


def act_batch(
    trained: TrainedAgent,
    episode_state: Tree,
    obs: np.ndarray,
    sample: bool,
    rng: np.random.Generator,
) -> np.ndarray:
    """Actions at encoded observations [N, ...]: the policy's mode, or samples; not yet decoded."""
    number = rng.integers(2**32, dtype=np.uint32) if sample else np.uint32(0)
    spec = trained.codec.spec
    return np.asarray(
        _act_compiled(trained.program, spec, sample, trained.learner, episode_state, obs, number)
    )


@partial(jax.jit, static_argnums=(0, 1, 2))
def _act_compiled(
    program: Experiment,
    spec: Spec,
    sample: bool,
    learner: Learner,
    episode_state: Tree,
    obs: Array,
    number: Array,
) -> Array:
    agent = agent_of(program, spec)

    def sample_action(episode_state: Tree, obs: Array, key: Array) -> Array:
        action_noise = jax.tree.map(lambda leaf: leaf[0], agent.policy.action_noise(key, 1))
        return agent.policy.act(learner, episode_state, obs, action_noise)[0]

    if sample:
        keys = jax.random.split(jax.random.key(number), len(obs))
        return agent.policy.to_env(jax.vmap(sample_action)(episode_state, obs, keys))
    return agent.policy.to_env(jax.vmap(partial(agent.policy.mode, learner))(episode_state, obs))


def init_episodes(trained: TrainedAgent, count: int, rng: np.random.Generator) -> Tree:
    """The agent's episode state at the start of `count` episodes [count, ...]."""
    number = rng.integers(2**32, dtype=np.uint32)
    return _init_episodes_compiled(
        trained.program, trained.codec.spec, count, trained.learner, number
    )


@partial(jax.jit, static_argnums=(0, 1, 2))
def _init_episodes_compiled(
    program: Experiment, spec: Spec, count: int, learner: Learner, number: Array
) -> Tree:
    init_episode = partial(agent_of(program, spec).policy.init_episode, learner)
    return jax.vmap(init_episode)(jax.random.split(jax.random.key(number), count))
