"""Settings of the environments, and the traits by which the rest of the code tells them apart."""

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import tyro

from ersac.config.atari import is_atari_id, parse_game
from ersac.config.fields import (
    Callables,
    Fraction,
    JsonObject,
    Range,
    SettingsError,
    closest,
    override,
    pick,
    short_repr,
)


@dataclass(frozen=True)
class Normalise:
    """Normalisation of observations and rewards by running statistics."""

    normalise: bool = True
    """Normalise vectors by the running mean and range of every entry, images from 36 x 36 bytes on
    by mean and standard deviation; smaller images are divided by 255."""
    scale_rewards: bool = True
    """Divide rewards by the largest absolute discounted return so far."""
    clip_rewards: bool = False
    """Clip the rewards that are learned from to [-1, 1]; the returns reported are not clipped."""


NO_NORMALISATION = Normalise(normalise=False, scale_rewards=False)


# Traits of an environment are class attributes or properties, not fields: they are not settings.
# Those of type Literal or None let mypy tell the classes apart.
@dataclass(frozen=True)
class DeepSea:
    """DeepSea with the dynamics and rewards of bsuite."""

    STEPS_PER_SECOND: ClassVar = math.inf  # learning takes the time
    id: ClassVar = ""  # there is only one DeepSea
    envs: ClassVar = 1
    normalisation: ClassVar = NO_NORMALISATION
    on_host: ClassVar[Literal[False]] = False  # it runs on the device, inside the compiled loop
    stores_state: ClassVar = True  # a resumed run continues its episodes
    has_maps: ClassVar[Literal[True]] = True  # values can be drawn on its grid
    large_images: ClassVar[bool] = False
    reports_returns: ClassVar = False  # goals are reported instead

    depth: Annotated[int, Range(1, 1000)] = 20
    """Rows and columns of the grid, and steps of an episode (1 to 1000)."""
    stochastic: bool = False
    """Moves to the right fail with probability 1 / depth; the last row's end cells pay noise."""
    mapping_seed: Annotated[int, Range(0, 2**32 - 1)] | None = None
    """Seed of the action mapping (which action is 'right' in a cell); default: the run's seed."""

    @property
    def episode_length(self) -> int:
        """Steps of every episode."""
        return self.depth


@dataclass(frozen=True)
class Gymnax:
    """A gymnax environment, stepped on the device."""

    STEPS_PER_SECOND: ClassVar = 5_000  # on a slow machine
    on_host: ClassVar[Literal[False]] = False
    stores_state: ClassVar = True
    has_maps: ClassVar[Literal[False]] = False
    large_images: ClassVar[bool] = False
    reports_returns: ClassVar = True
    episode_length: ClassVar[None] = None  # it varies
    depth: ClassVar[None] = None
    stochastic: ClassVar = False  # bsuite's rule for 'solved' depends on it

    id: Annotated[str, tyro.conf.Suppress] = "CartPole-v1"
    envs: Annotated[int, Range(1, 65_536)] = 16
    """Parallel environments per seed."""
    target: float | None = None
    """Return from which an episode counts as solved; by default there is no goal."""
    normalisation: Normalise = Normalise()


@dataclass(frozen=True)
class Gym:
    """A Gymnasium environment, stepped on the host."""

    STEPS_PER_SECOND: ClassVar = 1_000
    on_host: ClassVar[Literal[True]] = True
    stores_state: ClassVar = False
    has_maps: ClassVar[Literal[False]] = False
    large_images: ClassVar[bool] = False
    reports_returns: ClassVar = True
    episode_length: ClassVar[None] = None
    depth: ClassVar[None] = None
    stochastic: ClassVar = False

    id: Annotated[str, tyro.conf.Suppress] = "CartPole-v1"
    envs: Annotated[int, Range(1, 4_096)] = 16
    """Parallel environments per seed."""
    workers: Annotated[int, Range(0, 1_024)] = 0
    """Worker processes that step the environments; 0: the main process (faster for short steps)."""
    target: float | None = None
    """Return from which an episode counts as solved; default: the environment's own threshold."""
    make: Annotated[
        Any, Callables("a function that makes one", ("__call__",)), tyro.conf.Suppress
    ] = None
    """Function that makes the environment, from Python only; by default gymnasium.make(id)."""
    frames: Annotated[int, Range(1, 64)] = 1
    """Number of most recent observations stacked into one (1: no stacking)."""
    lockstep: bool = False
    """Alternate between acting and learning, which is reproducible; otherwise both run at once."""
    max_staleness: Annotated[int, Range(1, 1_000)] = 1
    """Without --lockstep, how many rollouts old the parameters of the actor may be."""
    normalisation: Normalise = Normalise()
    env_kwargs: Annotated[str, JsonObject()] | None = None
    """Keyword arguments of the environment, a JSON object such as '{"size": 8}'; default: none."""


@dataclass(frozen=True)
class Atari:
    """A game of the Arcade Learning Environment: grey images of 84 x 84 bytes, stacked."""

    STEPS_PER_SECOND: ClassVar = 500  # on two cores, learning included
    on_host: ClassVar[Literal[True]] = True
    has_maps: ClassVar[Literal[False]] = False
    large_images: ClassVar[bool] = True
    reports_returns: ClassVar = True
    episode_length: ClassVar[None] = None
    depth: ClassVar[None] = None
    stochastic: ClassVar = False
    make: ClassVar[None] = None  # there is only the emulator

    id: Annotated[str, tyro.conf.Suppress] = "freeway"
    envs: Annotated[int, Range(1, 4_096)] = 8
    """Parallel games per seed."""
    workers: Annotated[int, Range(0, 1_024)] = 0
    """Threads that step the games; 0: one for each core."""
    target: float | None = None
    """Score from which a game counts as solved; by default there is no goal."""
    sticky: Fraction = 0.25
    """Probability that the emulator repeats the last action for a frame instead of the new one."""
    noops: Annotated[int, Range(0, 1_000)] = 0
    """Largest number of random no-ops at the start of a game: 30 was usual before sticky
    actions."""
    full_actions: bool = False
    """Use all 18 actions in every game; otherwise those that the game distinguishes."""
    episodic_life: bool = False
    """Let the learner's value end with each life; scores are those of whole games."""
    frame_skip: Annotated[int, Range(2, 60)] = 4
    """Frames for which an action is repeated; the last two are merged by their maximum."""
    frames: Annotated[int, Range(1, 64)] = 4
    """Number of most recent observations stacked into one (1: no stacking)."""
    max_frames: Annotated[int, Range(1, 10**9)] = 108_000
    """Emulator frames after which a game is truncated."""
    lockstep: bool = False
    """Alternate between acting and learning, and store the emulators in checkpoints: reproducible
    and resumed exactly, but slower; otherwise both run at once."""
    max_staleness: Annotated[int, Range(1, 1_000)] = 1
    """Without --lockstep, how many rollouts old the parameters of the actor may be."""
    normalisation: Normalise = Normalise(clip_rewards=True)

    @property
    def stores_state(self) -> bool:
        """Whether a resumed run continues its episodes."""
        return self.lockstep


Environment = DeepSea | Gymnax | Gym | Atari
ENVIRONMENTS: dict[str, type[Environment]] = {
    "deep-sea": DeepSea,
    "gymnax": Gymnax,
    "gym": Gym,
    "atari": Atari,
}
ALIASES = {"gymnasium": "gym"}
# Without a prefix, a Gymnasium id (Name-v0, namespace/Name-v0) or an object in a module.
GYM_NAME = re.compile(r"[\w./-]+-v\d+|[\w.]+:[\w./-]+")


def env_name(env: Environment) -> str:
    """The name of an environment on the command line, such as gym:CartPole-v1."""
    prefix = next(name for name, cls in ENVIRONMENTS.items() if type(env) is cls)
    return f"{prefix}:{env.id}" if env.id else prefix


def parse_env(name: str) -> Environment:
    """The settings of an environment by its name, with defaults.

    name: `deep-sea`, `gymnax:ID`, `gym:ID`, `atari:GAME`, a bare Gymnasium id or `module:Class`.
    An id of the emulator's, such as ALE/Pong-v5, is that game with the settings of `Atari`.
    """
    prefix, _, env_id = name.partition(":") if isinstance(name, str) else (name, "", "")
    prefix = ALIASES.get(prefix, prefix)
    gym_id = env_id if prefix == "gym" else name
    if isinstance(gym_id, str) and is_atari_id(gym_id):
        return Atari(id=parse_game(gym_id))
    # A dot: a module, even if its name is close to that of an environment.
    if isinstance(name, str) and ("." in prefix or closest(prefix, ENVIRONMENTS) is None):
        if GYM_NAME.fullmatch(name):
            return Gym(id=name)
        raise SettingsError(
            f"unknown environment {short_repr(name)}; known: deep-sea, gymnax:ID, gym:ID, "
            "atari:GAME, an id of Gymnasium such as CartPole-v1, module:Class"
        )
    cls = pick("environment", prefix, ENVIRONMENTS)
    if not cls.id:
        if env_id:
            raise SettingsError(f"unknown environment {short_repr(name)}; did you mean {prefix}?")
        return cls()
    if not env_id:
        raise SettingsError(f"which one? {prefix}:ID, for example {prefix}:{cls.id}")
    return override(cls(), id=parse_game(env_id) if cls is Atari else env_id)
