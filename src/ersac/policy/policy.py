"""What was trained, put to use: asked for one action after another, kept in one file, judged over whole episodes, filmed.

A policy needs a learner, and how an environment's own observations and actions become the learner's; it needs no environment.
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
from jax import numpy as jnp
from rich.console import Console

from ersac import __version__, config, display
from ersac.agents.base import Agent
from ersac.agents.build import make_agent
from ersac.config import Experiment, SettingsError
from ersac.envs import base
from ersac.envs.base import HostEnv, Spec, spec_of
from ersac.envs.make import make_env, make_host_env, require_env_package
from ersac.loops import devices
from ersac.loops.host import to_host_env
from ersac.policy.video import film, make_rendered_env, require_env_factory
from ersac.runs import checkpoint, disk, run_dir, seal
from ersac.runs.checkpoint import flatten
from ersac.runs.results import index_of_seed
from ersac.runs.run_dir import read_finished_summary
from ersac.runs.seal import array_form
from ersac.runs.session import loop_of
from ersac.types import Array, Learner, Tree

FORMAT = 1
ABOUT = "about"  # the member of a policy file that describes the arrays of the learner
APART = 2**30  # between the seeds of training and those of evaluation
EVAL_SEED_STRIDE = 4096  # between the seeds of two trials: a seed for each environment
SIDE_BY_SIDE = 16  # environments on the device that are played in at once, at least
LONGEST_EPISODE = 100_000  # steps after which an episode is not waited for


class SpaceCodec(NamedTuple):
    """What an agent has to know of an environment, and how its own observations and actions become the agent's."""

    spec: Spec
    told: dict[str, Any]  # as plain data
    encode: Callable[
        [Any], np.ndarray
    ]  # one observation, as the environment gives it -> [1, ...]; ValueError and its like if it is none
    decode: Callable[[np.ndarray], Any]  # [1, ...] -> one action, as the environment takes it
    begun: Callable[[np.ndarray], np.ndarray] = lambda seen: seen  # the first window of an episode
    slid: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda window, seen: (
        seen
    )  # and each next one


class TrainedAgent(NamedTuple):
    """One seed's learner, and what it was trained on."""

    settings: Experiment
    program: Experiment  # what of the settings decides a compiled program
    seed: int
    codec: SpaceCodec
    learner: Learner  # without what only an optimiser needs


class Evaluation(NamedTuple):
    """What some episodes came to."""

    mean_return: float
    stderr_return: float | None  # None of a single episode
    min_return: float
    max_return: float
    mean_length: float  # steps
    goal_share: float
    returns: np.ndarray  # [episodes]

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        return self._asdict() | {"returns": self.returns.tolist()}


class Policy:
    """A policy that was trained: what an environment shows goes in, what it takes comes out."""

    def __init__(self, trained: TrainedAgent) -> None:
        self._trained = trained
        self._rng = np.random.default_rng(trained.seed)
        self.reset()

    @property
    def settings(self) -> Experiment:
        """Those of the run that trained it."""
        return self._trained.settings

    @property
    def seed(self) -> int:
        """Which of that run's seeds it is."""
        return self._trained.seed

    def reset(self) -> None:
        """Say that an episode begins. It matters where observations are stacked, or a member acts through an episode."""
        self._window: np.ndarray | None = None
        self._episode_state: Tree = None

    def __call__(
        self, obs: Any, sample: bool = False, rng: np.random.Generator | None = None
    ) -> Any:
        """The action at one observation, as the environment gives it: the best one, or with `sample` a drawn one."""
        trained, rng = self._trained, rng or self._rng
        seen = encoded(trained, obs)
        self._window = (
            trained.codec.begun(seen)
            if self._window is None
            else trained.codec.slid(self._window, seen)
        )
        if self._episode_state is None:
            self._episode_state = init_episodes(trained, 1, rng)
        return trained.codec.decode(
            act_batch(trained, self._episode_state, self._window, sample, rng)
        )

    def save(self, path: str | Path) -> None:
        """Keep it in one file, which must not be there yet; `ersac.load` reads it."""
        save_policy(self._trained, Path(path))

    def evaluate(
        self, episodes: int = 100, *, sample: bool = False, eval_seed: int = 0, show: bool = True
    ) -> Evaluation:
        """Play whole episodes in the environment that it was trained on, with seeds that training did not have."""
        how = config.check(config.Evaluate(episodes, sample, eval_seed))
        with progress_lines(show) as tell:
            return evaluate_policy(self._trained, how, tell)

    def film(
        self, path: str | Path, *, sample: bool = False, eval_seed: int = 0, show: bool = True
    ) -> None:
        """Play a few episodes into a video, .mp4 or .gif, which must not be there yet."""
        how = config.check(config.Evaluate(sample=sample, eval_seed=eval_seed))
        with progress_lines(show) as tell:
            film(
                self.settings.env,
                partial(self, sample=sample),
                self.reset,
                Path(path),
                seed_of(self._trained, how),
                tell,
            )


@contextlib.contextmanager
def progress_lines(show: bool) -> Iterator[Callable[[str], None]]:
    """Where to say how far something is."""
    screen: display.Display = display.LineDisplay(Console(), str) if show else display.NullDisplay()
    try:
        yield screen.show
    finally:
        screen.close()


def open_policy(path: Path, seed: int | None = None) -> Policy:
    """The policy of a run's directory, by default its first seed's, or of a file."""
    if path.is_dir():
        settings, _ = read_finished_summary(path)
        return Policy(of_run(path, settings, settings.run.seed if seed is None else seed))
    policy = load_policy(path)
    if seed not in (None, policy.seed):
        raise SettingsError(f"{path} holds seed {policy.seed}, not {seed}")
    return policy


def of_carry(settings: Experiment, carry: Any, seed: int) -> TrainedAgent:
    """What was trained, from what a loop carried at its end."""
    place = index_of_seed(settings, seed)
    of_place = lambda tree: jax.tree.map(lambda leaf: leaf[place], tree)
    learner = carry[place].learner if isinstance(carry, list) else of_place(carry.learner)
    return trained(
        settings, seed, senses_of(settings.env), jax.tree.map(np.asarray, learner._replace(opt=()))
    )


def of_run(directory: Path, settings: Experiment, seed: int) -> TrainedAgent:
    """What was trained, from the last checkpoint of a run that has ended."""
    place = index_of_seed(settings, seed)
    below = directory / checkpoint.DIRECTORY
    if not (numbers := checkpoint.checkpoint_numbers(below)):
        raise SettingsError(
            f"{directory} has no checkpoint to play from: a sweep keeps none, train it by itself"
        )
    try:
        arrays = checkpoint.read_checkpoint(below, numbers[-1], run_dir.run_hash(settings)).arrays
    except checkpoint.CorruptCheckpoint as why:
        raise disk.DiskError(f"the last checkpoint of {directory} is damaged: {why}") from None
    if settings.env.on_host:
        arrays = seal.arrays_below(arrays, f"loop/{seed}/learner")
    else:
        arrays = {
            name: array[place]
            for name, array in seal.arrays_below(arrays, "loop/carry/learner").items()
        }
    require_stored_settings(settings)
    codec = senses_of(settings.env)
    return trained(settings, seed, codec, shaped(settings, codec.spec, arrays, directory))


def require_stored_settings(settings: Experiment) -> None:
    """SettingsError where settings that were read have no more than the text of what a learner is made of."""
    for path, _, value in config.leaves(settings):
        if path[-1] in ("torso", "estimator") and isinstance(value, str):
            raise SettingsError(
                f"the {path[-1]} was made in Python; there, use result.policy, or ersac.load(FILE, {path[-1]}=...)"
            )


def trained(settings: Experiment, seed: int, codec: SpaceCodec, learner: Learner) -> TrainedAgent:
    """A learner on the device, ready to act."""
    devices.claim_cores()  # whoever plays first and trains then has all of them
    devices.keep_programs()
    return TrainedAgent(
        settings,
        loop_of(settings).static_settings(settings),
        seed,
        codec,
        jax.tree.map(jnp.asarray, learner),
    )


def shaped(
    settings: Experiment, spec: Spec, arrays: dict[str, np.ndarray], source: Path
) -> Learner:
    """A learner from its arrays by name, those of optimisers left out."""
    like = agent_of(settings, spec).init(np.random.default_rng(0))._replace(opt=())
    wanted, _ = flatten(like)
    have = {name: array for name, array in arrays.items() if not name.startswith("opt/")}
    if {name: array_form(array) for name, array in wanted.items()} != {
        name: array_form(array) for name, array in have.items()
    }:
        raise disk.DiskError(
            f"{source} does not fit this version of ersac, or the environment or the torso is another"
        )
    return jax.tree.unflatten(jax.tree.structure(like), [have[name] for name in wanted])


def agent_of(settings: Experiment, spec: Spec) -> Agent:
    """The agent that some settings describe."""
    return make_agent(settings.agent, spec, settings.env.normalisation)


def senses_of(env: config.Environment) -> SpaceCodec:
    """Those for an environment; one of Gymnasium's is made to be asked for its spaces."""
    require_env_package(env)
    if not env.on_host:
        return pure_senses(spec_of(make_env(env)))
    from ersac.envs.gym import spaces

    one = make_rendered_env(env)
    try:
        return gym_senses(
            env,
            {
                name: spaces.space_json(getattr(one, f"{name}_space"))
                for name in ("observation", "action")
            },
        )
    finally:
        one.close()


def pure_senses(spec: Spec) -> SpaceCodec:
    """Those for an environment whose spaces are ours."""
    seen, taken = spec.observations, spec.actions

    def encode(obs: Any) -> np.ndarray:
        if isinstance(seen, base.Discrete):
            return np.asarray(obs, np.int32).reshape(1)
        return (
            np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(obs)])
            .reshape(1, *seen.shape)
            .astype(np.float32)
        )

    def decode(actions: np.ndarray) -> Any:
        return (
            int(actions[0]) if isinstance(taken, base.Discrete) else actions[0].reshape(taken.shape)
        )

    told = {"name": spec.name, "envs": spec.envs} | {
        name: {"kind": type(space).__name__, **space._asdict()}
        for name, space in (("observations", seen), ("actions", taken))
    }
    return SpaceCodec(spec, told, encode, decode)


def gym_senses(env: config.Gym, told: dict[str, Any]) -> SpaceCodec:
    """Those for an environment whose spaces are Gymnasium's, from what a file has of them."""
    from ersac.envs.gym import spaces

    space = spaces.space_from_json(told["observation"])
    single, encode = spaces.observation_codec(space)
    stack = spaces.frame_stack(single, env.frames, env.id)
    actions, decode = spaces.action_codec(spaces.space_from_json(told["action"]))
    return SpaceCodec(
        spec=Spec(env.id, stack.space, actions, env.envs),
        told=told,
        encode=lambda obs: encode(spaces.batch_of_one(space, obs)),
        decode=lambda taken: decode(taken)[0],
        begun=stack.reset,
        slid=lambda window, seen: stack.push(window, seen, np.zeros(1, bool)),
    )


def senses_from(env: config.Environment, told: dict[str, Any]) -> SpaceCodec:
    """Those that a file has."""
    if env.on_host:
        require_env_package(env)
        return gym_senses(env, told)
    kinds: dict[str, Callable[..., base.Space]] = {"Discrete": base.Discrete, "Box": base.Box}
    tuples = lambda value: tuple(value) if isinstance(value, list) else value
    space = lambda told: kinds[told["kind"]](
        **{name: tuples(value) for name, value in told.items() if name != "kind"}
    )
    return pure_senses(
        Spec(told["name"], space(told["observations"]), space(told["actions"]), told["envs"])
    )


def encoded(trained: TrainedAgent, obs: Any) -> np.ndarray:
    """One observation as the agent sees it [1, ...]; SettingsError where it is none of its environment's."""
    space = trained.codec.spec.observations
    try:
        seen = trained.codec.encode(obs)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise SettingsError(
            f"{config.short_repr(obs)} is no observation of {config.env_name(trained.settings.env)}: {error}"
        ) from None
    if isinstance(space, base.Discrete) and not 0 <= seen[0] < space.n:
        raise SettingsError(
            f"{config.short_repr(obs)} is no observation of {config.env_name(trained.settings.env)}: it has {space.n}"
        )
    return seen


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

    def drawn(episode_state: Tree, obs: Array, key: Array) -> Array:
        action_noise = jax.tree.map(lambda leaf: leaf[0], agent.action_noise(key, 1))
        return agent.act(learner, episode_state, obs, action_noise)[0]

    if sample:
        return agent.to_env(
            jax.vmap(drawn)(episode_state, obs, jax.random.split(jax.random.key(number), len(obs)))
        )
    return agent.to_env(
        jax.vmap(lambda episode_state, obs: agent.mode(learner, episode_state, obs))(
            episode_state, obs
        )
    )


def act_batch(
    trained: TrainedAgent,
    episode_state: Tree,
    obs: np.ndarray,
    sample: bool,
    rng: np.random.Generator,
) -> np.ndarray:
    """Actions at observations [N, ...], as the environment takes them but for its own units."""
    number = rng.integers(2**32, dtype=np.uint32) if sample else np.uint32(0)
    return np.asarray(
        _act_compiled(
            trained.program, trained.codec.spec, sample, trained.learner, episode_state, obs, number
        )
    )


@partial(jax.jit, static_argnums=(0, 1, 2))
def _init_episodes_compiled(
    program: Experiment, spec: Spec, count: int, learner: Learner, number: Array
) -> Tree:
    begins = partial(agent_of(program, spec).init_episode, learner)
    return jax.vmap(begins)(jax.random.split(jax.random.key(number), count))


def init_episodes(trained: TrainedAgent, count: int, rng: np.random.Generator) -> Tree:
    """What the agent keeps through so many episodes that now begin [N, ...]."""
    return _init_episodes_compiled(
        trained.program,
        trained.codec.spec,
        count,
        trained.learner,
        rng.integers(2**32, dtype=np.uint32),
    )


def save_policy(trained: TrainedAgent, path: Path) -> None:
    """One file: the learner's arrays, what describes them, and a digest of all."""
    disk.require_new(path)
    arrays = {f"learner/{name}": array for name, array in flatten(trained.learner)[0].items()}
    about = {
        "format": FORMAT,
        "ersac": __version__,
        "settings": run_dir.settings_json(trained.settings),
        "seed": trained.seed,
        "senses": trained.codec.told,
    }
    arrays[ABOUT] = np.frombuffer(json.dumps(about, default=str).encode(), np.uint8)
    disk.write(path, seal.seal_arrays(arrays))


def load_policy(path: Path, **given: Any) -> Policy:
    """The policy that a file of `save` holds; `given`: settings of which it has only the text, because they were made in Python."""
    arrays = read_arrays(path)
    try:
        about = json.loads(arrays.pop(ABOUT).tobytes())
        settings = config.check(run_dir.settings_from_json(about["settings"]))
        if about["format"] != FORMAT:
            raise ValueError(about["format"])
        settings = config.override(settings, **given)
        codec = senses_from(settings.env, about["senses"])
        seed = int(about["seed"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, SettingsError):
            raise
        raise disk.DiskError(f"{path} does not fit this version of ersac ({__version__})") from None
    require_stored_settings(settings)
    learner = shaped(settings, codec.spec, seal.arrays_below(arrays, "learner"), path)
    return Policy(trained(settings, seed, codec, learner))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """What a file holds, if its digest is right."""
    data = disk.read(path)
    try:
        return seal.unseal_arrays(data)
    except ValueError:
        raise disk.DiskError(f"{path} is damaged: it is not what save() wrote") from None


def seed_of(trained: TrainedAgent, how: config.Evaluate) -> int:
    """The seed of some episodes: as far as can be from those that were trained on."""
    return (trained.seed + APART + EVAL_SEED_STRIDE * how.eval_seed) % 2**31


def evaluate_policy(
    trained: TrainedAgent, how: config.Evaluate, tell: Callable[[str], None]
) -> Evaluation:
    """What whole episodes come to."""
    env = evaluation_env(trained, how)
    try:
        returns, lengths, goals = play_episodes(trained, env, how, tell)
    finally:
        env.close()
    return Evaluation(
        mean_return=float(returns.mean()),
        stderr_return=float(returns.std(ddof=1)) / math.sqrt(len(returns))
        if len(returns) > 1
        else None,
        min_return=float(returns.min()),
        max_return=float(returns.max()),
        mean_length=float(lengths.mean()),
        goal_share=float(goals.mean()),
        returns=returns,
    )


def evaluation_env(trained: TrainedAgent, how: config.Evaluate) -> HostEnv:
    """The environments of a run, no more than there are episodes; a pure one keeps the world of the run's seed, with draws of its own."""
    settings = trained.settings
    require_env_package(settings.env)
    if settings.env.on_host:
        require_env_factory(settings.env)
        return make_host_env(
            dataclasses.replace(settings.env, envs=min(settings.env.envs, how.episodes))
        )
    env = make_env(settings.env)
    env_params = env.env_params(trained.seed)
    env = env._replace(
        env_params=lambda seed: env_params, envs=min(how.episodes, max(env.envs, SIDE_BY_SIDE))
    )
    return to_host_env(env, config.override(settings, seed=seed_of(trained, how)))


def play_episodes(
    trained: TrainedAgent, env: HostEnv, how: config.Evaluate, tell: Callable[[str], None]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns, lengths and goals of whole episodes: the first so many of each environment, so that short ones do not count more often."""
    seed = seed_of(trained, how)
    rng = np.random.default_rng(seed)
    each = math.ceil(how.episodes / env.envs)
    returns, lengths, goals = (
        np.zeros((each, env.envs)),
        np.zeros((each, env.envs), int),
        np.zeros((each, env.envs), bool),
    )
    done, total, length = np.zeros(env.envs, int), np.zeros(env.envs), np.zeros(env.envs, int)
    obs, episode_state = env.reset(seed), init_episodes(trained, env.envs, rng)
    while (wanted := done < each).any():
        step = env.step(act_batch(trained, episode_state, obs, how.sample, rng))
        obs, total, length = step.obs, total + step.reward, length + (step.mask > 0)
        for i in np.flatnonzero(step.ended & wanted):
            reached = step.goal[i] or (env.target is not None and total[i] >= env.target)
            returns[done[i], i], lengths[done[i], i], goals[done[i], i] = (
                total[i],
                length[i],
                reached,
            )
        if step.ended.any():
            done, total, length = (
                done + (step.ended & wanted),
                np.where(step.ended, 0, total),
                np.where(step.ended, 0, length),
            )
            episode_state = jax.tree.map(
                partial(_where_ended, step.ended),
                init_episodes(trained, env.envs, rng),
                episode_state,
            )
            tell(f"{min(int(done.sum()), how.episodes):,} of {how.episodes:,} episodes")
        if length[wanted].max() > LONGEST_EPISODE:
            limit = f"an episode of {env.name} has not ended after {LONGEST_EPISODE:,} steps"
            raise SettingsError(f"{limit}: give it a time limit, gymnasium.wrappers.TimeLimit")
    flat = lambda table: table.reshape(-1)[: how.episodes]  # first episodes first
    return flat(returns), flat(lengths), flat(goals)


def _where_ended(ended: np.ndarray, new: Array, old: Array) -> Array:
    return jnp.where(ended.reshape(-1, *[1] * (new.ndim - 1)), new, old)
