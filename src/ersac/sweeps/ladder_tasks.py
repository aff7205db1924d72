"""Ladders as data: tasks, agents, seeds and scales. No jax here.

A ladder is either of exploration tasks for networks, or of Atari games (docs/atari.md). Scales
differ in tasks, seeds and steps, never in another setting.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ersac.config import Atari, Environment, Gym, Gymnax, reference_scores
from ersac.sweeps.catalogue import REPORT_SEED, SCALES, TUNING_SEED

GRID_TARGET = 0.05  # MiniGrid pays 0.1 to 1 for the goal and nothing else
SWINGUP_TARGET = 100.0  # the return that bsuite counts as a swing-up
# Episodes of at most a thousand steps in sixteen environments: over five hundred episodes.
SWINGUP_STEPS = 520_000


def make_deep_sea(depth: int, noise: int, seed: int) -> Any:
    """DeepSea with the action map of a seed."""
    from ersac.envs.deep_sea_gym import OneHotDeepSea  # needs an extra, as all of these

    return OneHotDeepSea(depth, seed, noise)


def make_grid(name: str, seed: int) -> Any:
    """A MiniGrid environment whose layout is that of the seed in every episode."""
    from ersac.envs.gym.make import env_factory
    from ersac.envs.gym.minigrid import FixedLayout

    return FixedLayout(env_factory(name)(), seed)


def make_lock(seed: int) -> Any:
    """The lock environment, which is the same for every seed."""
    from ersac.envs.lock_gym import make_lock_env

    return make_lock_env()


def make_swingup(number: int, seed: int) -> Any:
    """bsuite's cartpole_swingup/number; a higher number rewards fewer pole heights."""
    from ersac.envs.bsuite_gym import load_bsuite

    return load_bsuite(f"cartpole_swingup/{number}")


class Task(NamedTuple):
    """An environment and its budget."""

    env: Environment
    steps: int  # of all environments together
    make: Callable[[int], Any] | None = None  # by seed, where no Gymnasium id names the environment
    package: str | None = None  # that it needs besides those of `env`

    def env_settings(self, seed: int) -> Environment:
        """The settings of the environment of one seed."""
        if self.make is None or not isinstance(self.env, Gym):
            return self.env
        return dataclasses.replace(self.env, make=partial(self.make, seed))

    def make_gym_env(self, seed: int) -> Any:
        """One Gymnasium environment of the task, for agents other than ersac's too."""
        from ersac.envs.gym.make import env_factory

        return env_factory(self.env.id)() if self.make is None else self.make(seed)


def deep_sea_task(name: str, depth: int, steps: int, noise: int = 0) -> Task:
    """DeepSea with one-hot observations; `noise` more inputs are random bits."""
    return Task(Gym(name), steps, partial(make_deep_sea, depth, noise))


def grid_task(name: str, grid: str) -> Task:
    """A MiniGrid environment with one layout per seed."""
    return Task(Gym(name, target=GRID_TARGET), 1_000_000, partial(make_grid, grid))


def swingup_task(name: str, number: int) -> Task:
    """One of bsuite's twenty swing-ups."""
    env = Gym(name, target=SWINGUP_TARGET)
    return Task(env, SWINGUP_STEPS, partial(make_swingup, number), "bsuite")


TASKS: dict[str, Task] = {
    "deep-sea-10": deep_sea_task("deep-sea-10", 10, 100_000),
    "deep-sea-20": deep_sea_task("deep-sea-20", 20, 300_000),
    "deep-sea-30": deep_sea_task("deep-sea-30", 30, 600_000),
    "deep-sea-10-noise": deep_sea_task("deep-sea-10-noise", 10, 100_000, noise=8),
    "deep-sea-20-noise": deep_sea_task("deep-sea-20-noise", 20, 300_000, noise=8),
    "mountain-car": Task(Gymnax("MountainCar-v0", target=-199.0), 100_000),
    "cartpole": Task(Gym("CartPole-v1", target=475.0), 100_000),
    "lock": Task(Gym("lock", target=1.0), 60_000, make_lock),
    "doorkey-8": Task(Gym("MiniGrid-DoorKey-8x8-v0", target=GRID_TARGET), 500_000),
    "keycorridor-s3r1": Task(Gym("MiniGrid-KeyCorridorS3R1-v0", target=GRID_TARGET), 500_000),
    "doorkey-16-fixed": grid_task("doorkey-16-fixed", "MiniGrid-DoorKey-16x16-v0"),
    "keycorridor-s3r3-fixed": grid_task("keycorridor-s3r3-fixed", "MiniGrid-KeyCorridorS3R3-v0"),
    "multiroom-n6-fixed": grid_task("multiroom-n6-fixed", "MiniGrid-MultiRoom-N6-v0"),
    "swingup": swingup_task("swingup", 0),
}
DEFAULT_TASKS = tuple(TASKS)
# The other swing-ups of bsuite's score (analysis/bsuite_score.py); run only where --tasks has them.
TASKS |= {f"swingup-{n}": swingup_task(f"swingup-{n}", n) for n in range(1, 20)}


def atari_steps(frames: int) -> int:
    """The steps of an agent that acts every fourth frame."""
    return frames // Atari().frame_skip


ATARI_TASKS: dict[str, Task] = {
    game: Task(Atari(id=game), atari_steps(200_000_000)) for game in reference_scores()
}
HARD_EXPLORATION = (  # as Bellemare et al. (2016) classify the games
    "freeway",
    "gravitar",
    "montezuma_revenge",
    "pitfall",
    "private_eye",
    "solaris",
    "venture",
)
# The seven, and three games in which an agent that does not explore learns.
ATARI_DESK = (*HARD_EXPLORATION, "boxing", "breakout", "pong")
PAPER_ALPHA = 0.02  # the entropy weight of the paper's actor-critic with replay


class LadderAgent(NamedTuple):
    """A preset, with another uncertainty estimator or entropy weight where one is given."""

    preset: str
    uncertainty: str | None = None
    alpha: float | None = None  # None: that of ALPHA, where the preset has one


AGENTS: dict[str, LadderAgent] = {
    "ersac": LadderAgent("ersac"),
    "rnd": LadderAgent("ersac", "rnd"),
    "hashed": LadderAgent("ersac", "hashed"),
    "vanilla": LadderAgent("vanilla"),
    "optimism": LadderAgent("optimism"),
    "boot-dqn": LadderAgent("boot-dqn"),
}

# Each baseline's entropy weight by task. `ersac sweep ladder-tune` searches them; these are still
# the presets' own.
ALPHA: dict[str, dict[str, float]] = {
    "vanilla": dict.fromkeys(TASKS, 0.01),
    "optimism": dict.fromkeys(TASKS, 0.01),
}
ALPHAS = (0.0003, 0.001, 0.003, 0.01, 0.03)  # that ladder-tune tries
CANDIDATES = {
    f"{preset}-alpha-{alpha:g}": LadderAgent(preset, alpha=alpha)
    for preset in ALPHA
    for alpha in ALPHAS
}


class LadderSize(NamedTuple):
    """How much of a ladder is run at one scale."""

    tasks: tuple[str, ...]
    seeds: int
    max_steps: int | None = None  # of any task


class Ladder(NamedTuple):
    """Every agent in every task with every seed."""

    purpose: str  # one line for `ersac sweep`
    agents: dict[str, LadderAgent]
    first_seed: int
    sizes: dict[str, LadderSize]  # by scale
    tasks: dict[str, Task] = TASKS
    other_agents: dict[str, LadderAgent] = {}  # run only where --agents has them  # noqa: RUF012
    is_atari: bool = False  # scores are reported in units of the human score, as in the paper

    def frames(self, steps: int) -> int:
        """The frames of an Atari game that so many steps are."""
        return steps * Atari().frame_skip


LADDERS: dict[str, Ladder] = {
    "ladder": Ladder(
        purpose="exploration tasks for networks: seeds solved, steps until solved, returns",
        agents=AGENTS,
        first_seed=REPORT_SEED,
        sizes={
            "smoke": LadderSize(("deep-sea-10", "lock"), 1, 4_000),
            "desk": LadderSize(DEFAULT_TASKS, 3),
            "paper": LadderSize(DEFAULT_TASKS, 10),
        },
    ),
    "ladder-tune": Ladder(
        purpose="search of the baselines' entropy weight in each task, on tuning seeds",
        agents=CANDIDATES,
        first_seed=TUNING_SEED,
        sizes={
            "smoke": LadderSize(("lock",), 2, 4_000),
            "desk": LadderSize(DEFAULT_TASKS, 2),
            "paper": LadderSize(DEFAULT_TASKS, 2),
        },
    ),
    "atari57": Ladder(
        purpose="Atari games: actor-critic with replay, with and without ERSAC's objective",
        agents={
            "ersac-replay": LadderAgent("ersac-replay"),
            "vanilla-replay": LadderAgent("vanilla-replay", alpha=PAPER_ALPHA),
        },
        other_agents={
            "ersac": LadderAgent("ersac"),
            "vanilla": LadderAgent("vanilla"),
            **{
                f"{name}-alpha-{alpha:g}": LadderAgent(name, alpha=alpha)
                for name in ("vanilla-replay", "vanilla")
                for alpha in ALPHAS
            },
        },
        first_seed=REPORT_SEED,
        sizes={
            "smoke": LadderSize(("freeway", "boxing", "gravitar"), 1, atari_steps(200_000)),
            "desk": LadderSize(ATARI_DESK, 3, atari_steps(2_000_000)),
            "paper": LadderSize(tuple(ATARI_TASKS), 5),
        },
        tasks=ATARI_TASKS,
        is_atari=True,
    ),
}


def list_ladders() -> str:
    """A line per ladder, in the columns of `catalogue.list_sweeps`."""
    lines = []
    for name, ladder in LADDERS.items():
        counts = (
            len(size.tasks) * len(ladder.agents) * size.seeds
            for size in (ladder.sizes[scale] for scale in SCALES)
        )
        columns = "".join(f"{count:>8}" for count in counts)
        lines.append(f"  {name:<20}{columns}  {ladder.purpose}\n")
    return "".join(lines)
