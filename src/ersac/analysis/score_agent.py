"""Play any agent with `act` and `observe` on DeepSea and count its episodes until solved.

An agent is an object with `act(obs) -> action` and
`observe(obs, action, reward, next_obs, done)`. What makes it is called once per seed, with those
of the arguments `depth`, `observations`, `actions` and `seed` that it takes.
"""

import functools
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ersac.analysis import scores
from ersac.config import SettingsError
from ersac.envs.deep_sea_gym import OneHotDeepSea

ACTIONS = 2
END = -1  # the index after the last row: an array takes its last entry for it


class ScoreTask(NamedTuple):
    """What an agent is played on."""

    depth: int
    episodes: int  # at most, per seed
    one_hot: bool  # observations, otherwise the index of the cell


class SeedScore(NamedTuple):
    """The episodes of one seed until solved, by both rules; None: never."""

    seed: int
    episodes: int  # that were played
    first_goal: int | None
    solved_bsuite: int | None
    solved_reliable: int | None


class AgentError(SettingsError):
    """An error that the agent raised, or an action that DeepSea does not have."""


def load_agent(path: str) -> Callable[..., Any]:
    """The class or function at `module:name`; modules of the current directory count."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise SettingsError(f"'{path}' is not module:function or module:Class")
    if "" not in sys.path:  # a console script does not look into the current directory
        sys.path.insert(0, "")
    try:
        found = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except AttributeError:
        raise SettingsError(f"{path}: {module} has no {name}") from None
    except Exception as error:
        raise AgentError(f"{path} cannot be imported: {where_and_what(error)}") from error
    if not callable(found):
        raise SettingsError(f"{path} is neither a function nor a class")
    return found


def where_and_what(error: BaseException) -> str:
    """An error of the agent's code with its file and line."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: SyntaxError: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if Path(frame.filename) != Path(__file__)]
    text = " ".join(f"{type(error).__name__}: {error}".split())
    outside = [frame for frame in theirs if "importlib" not in frame.filename]
    return f"{outside[-1].filename}:{outside[-1].lineno}: {text}" if outside else text


def call_agent(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of the agent; its error becomes one line."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise AgentError(where_and_what(error)) from error


def make_player(maker: Callable[..., Any], task: ScoreTask, seed: int) -> Any:
    """A new agent; ersac's own arguments are passed where the maker takes them."""
    known = {
        "depth": task.depth,
        "observations": task.depth * task.depth,
        "actions": ACTIONS,
        "seed": seed,
    }
    try:
        spec = inspect.getfullargspec(maker)
        names = known if spec.varkw else {*spec.args, *spec.kwonlyargs}
    except TypeError:  # written in C
        names = set()
    given = {name: value for name, value in known.items() if name in names}
    agent = call_agent(maker, **given)
    for name in ("act", "observe"):
        if not callable(getattr(agent, name, None)):
            raise AgentError(f"an agent needs a method {name}; {type(agent).__name__} has none")
    return agent


def checked_action(action: Any, agent: Any) -> int:
    """The action as a whole number; AgentError if DeepSea does not have it."""
    number = np.asarray(action)
    if number.size != 1 or number.item() not in range(ACTIONS):
        shown = " ".join(repr(action).split())[:80]
        raise AgentError(f"act() of {type(agent).__name__} returned {shown}, not 0 or 1")
    return int(number.item())


def play_episode(env: OneHotDeepSea, agent: Any, one_hot: bool) -> bool:
    """Play one episode; returns whether it reached the treasure."""

    def to_observation(obs: np.ndarray) -> Any:
        if one_hot:
            return obs
        return env.row * env.depth + env.column if env.row < env.depth else END

    obs, done = to_observation(env.reset()[0]), False
    info: dict[str, Any] = {}
    while not done:
        action = checked_action(call_agent(agent.act, obs), agent)
        following, reward, done, _, info = env.step(action)
        next_obs = to_observation(following)
        call_agent(agent.observe, obs, action, reward, next_obs, done)
        obs = next_obs
    return bool(info["is_success"])


def play_seed(
    maker: Callable[..., Any],
    task: ScoreTask,
    seed: int,
    on_episode: Callable[[int], None] = lambda episode: None,
) -> SeedScore:
    """Play one seed until both rules say solved, or to the end of the budget."""
    env, agent = OneHotDeepSea(task.depth, seed), make_player(maker, task, seed)
    goals = np.zeros(task.episodes, bool)
    reached = recent = 0
    for episode in range(task.episodes):
        goals[episode] = play_episode(env, agent, task.one_hot)
        on_episode(episode + 1)
        reached += int(goals[episode])
        window = scores.RELIABLE_WINDOW
        recent += int(goals[episode]) - (int(goals[episode - window]) if episode >= window else 0)
        enough = reached > (1 - scores.BSUITE_BAD_SHARE[False]) * (episode + 1)
        if episode + 1 >= window and recent >= scores.RELIABLE_GOALS and enough:
            break
    played = goals[: episode + 1]
    return SeedScore(seed, len(played), **scores.goal_metrics(played))


def score_row(
    method: str,
    task: ScoreTask,
    seeds: list[SeedScore],
    rule: str,
    approximation: str,
    samples: float | None,
    source: str,
) -> dict[str, Any]:
    """The result as a row of the scoreboard."""
    solved = [getattr(seed, f"solved_{rule}") for seed in seeds]
    numbers = [np.inf if episode is None else episode for episode in solved]
    median = float(np.median(numbers))
    return {
        "method": method,
        "depth": task.depth,
        "rule": rule,
        "episodes": median if np.isfinite(median) else None,
        "solved": sum(episode is not None for episode in solved),
        "seeds": len(seeds),
        "approximation": approximation,
        "gradient_samples": samples,
        "source": source,
    }
