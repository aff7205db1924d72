"""Settings of the environments, and the traits by which the rest of the code tells them apart."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import tyro

from ersac.config.fields import Callables, Range, SettingsError, override, pick, short_repr


@dataclass(frozen=True)
class Normalise:
    """In whose units the learner sees an environment: the environment's, or those of what was seen so far."""

    normalise: bool = True
    """Observations less their running mean, over their running standard deviation; images of bytes are divided by 255 in any case."""
    scale_rewards: bool = True
    """Rewards over the largest discounted return so far, so that returns are at most about one."""


NO_NORMALISATION = Normalise(normalise=False, scale_rewards=False)


# Traits of an environment are class attributes and properties, so they are no settings.
# mypy tells the three classes apart by those that are Literal or None.
@dataclass(frozen=True)
class DeepSea:
    """DeepSea, exactly as bsuite has it."""

    STEPS_PER_SECOND: ClassVar = math.inf  # the learner decides
    id: ClassVar = ""  # there is one only
    envs: ClassVar = 1
    normalisation: ClassVar = NO_NORMALISATION
    on_host: ClassVar[Literal[False]] = False  # it runs on the device, inside the compiled loop
    has_maps: ClassVar[Literal[True]] = True  # a value for each cell of a grid can be drawn
    reports_returns: ClassVar = False  # whether the goal was reached says all

    depth: Annotated[int, Range(1, 1000)] = 20
    """Rows and columns of the grid; an episode has this many steps."""
    stochastic: bool = False
    """Right moves slip with probability 1 / depth, and the two end cells of the last row pay noise."""
    mapping_seed: Annotated[int, Range(0, 2**32 - 1)] | None = None
    """Seed of the map from actions to left and right; by default each run's own seed (bsuite's sweep uses 42)."""

    @property
    def episode_length(self) -> int:
        """Steps of every episode."""
        return self.depth


@dataclass(frozen=True)
class Gymnax:
    """An environment of gymnax, on the device."""

    STEPS_PER_SECOND: ClassVar = 5_000  # what any machine can be trusted with
    on_host: ClassVar[Literal[False]] = False
    has_maps: ClassVar[Literal[False]] = False
    reports_returns: ClassVar = True
    episode_length: ClassVar[None] = None  # it varies
    depth: ClassVar[None] = None
    stochastic: ClassVar = False  # as DeepSea means it: bsuite has another rule for solved then

    id: Annotated[str, tyro.conf.Suppress] = "CartPole-v1"
    envs: Annotated[int, Range(1, 65_536)] = 16
    """Copies of it that are acted in side by side."""
    target: float | None = None
    """The return from which on an episode counts as one that reached its goal."""
    normalisation: Normalise = Normalise()


@dataclass(frozen=True)
class Gym:
    """An environment of Gymnasium, on the host."""

    STEPS_PER_SECOND: ClassVar = 1_000
    on_host: ClassVar[Literal[True]] = True
    has_maps: ClassVar[Literal[False]] = False
    reports_returns: ClassVar = True
    episode_length: ClassVar[None] = None
    depth: ClassVar[None] = None
    stochastic: ClassVar = False

    id: Annotated[str, tyro.conf.Suppress] = "CartPole-v1"
    envs: Annotated[int, Range(1, 4_096)] = 16
    """Copies of it that are acted in side by side."""
    workers: Annotated[int, Range(0, 1_024)] = 0
    """Processes that step them; 0: this one does. Worth it where a step takes over a millisecond."""
    target: float | None = None
    """The return from which on an episode counts as one that reached its goal; by default the environment's own threshold, if any."""
    make: Annotated[
        Any, Callables("a function that makes one", ("__call__",)), tyro.conf.Suppress
    ] = None
    """What makes one, from Python only; by default Gymnasium, by its id."""
    frames: Annotated[int, Range(1, 64)] = 1
    """Observations that are stacked to one, the last ones."""
    lockstep: bool = False
    """Act and learn in turn, exactly reproducibly; else side by side."""
    max_staleness: Annotated[int, Range(1, 1_000)] = 1
    """Side by side, how many rollouts the parameters that act may be behind those that learn; acting waits for more."""
    normalisation: Normalise = Normalise()


Environment = DeepSea | Gymnax | Gym
ENVIRONMENTS: dict[str, type[Environment]] = {"deep-sea": DeepSea, "gymnax": Gymnax, "gym": Gym}


def env_name(env: Environment) -> str:
    """An environment as it is named on the command line."""
    kind = next(name for name, kind in ENVIRONMENTS.items() if type(env) is kind)
    return f"{kind}:{env.id}" if env.id else kind


def parse_env(word: str) -> Environment:
    """The environment of that name, `deep-sea`, `gymnax:ID` or `gym:ID`, with its defaults."""
    kind, _, name = word.partition(":") if isinstance(word, str) else (word, "", "")
    found = pick("environment", kind, ENVIRONMENTS)
    if not found.id:
        if name:
            raise SettingsError(f"unknown environment {short_repr(word)}; did you mean {kind}?")
        return found()
    if not name:
        raise SettingsError(f"which one? {kind}:ID, for example {kind}:{found.id}")
    return override(found(), id=name)
