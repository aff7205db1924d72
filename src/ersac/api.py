"""What `import ersac` offers: train() and its Result."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ersac import config, display
from ersac.config import Experiment, SettingsError, Track, check, default_run, override, parse_env
from ersac.config.presets import preset
from ersac.envs.make import check_env
from ersac.runs import run_dir, trackers
from ersac.runs.results import Result, read_result, write_result
from ersac.runs.session import loop_of, make_job, run_session, start_session, take_map_snapshot

if TYPE_CHECKING:
    from ersac.policy.policy import Policy

__all__ = [
    "Result",
    "SettingsError",
    "load",
    "make_settings",
    "read_result",
    "run_experiment",
    "train",
]

Where = str | Callable[[], Any]  # an environment's name, or what makes one of Gymnasium's


def make_settings(
    env: Where = "deep-sea",
    agent: str = "ersac",
    uncertainty: str | Callable[..., Any] | None = None,
    **changes: Any,
) -> Experiment:
    """Settings by name, checked: an agent's preset with some of its settings, or of its parts', changed."""
    where = resolve_env(env)
    settings = Experiment(
        where, agent, preset(agent, uncertainty, changes.get("network"), where), default_run(where)
    )
    return check(override(settings, **changes))


def resolve_env(env: Where) -> config.Environment:
    """The environment of that name, or that somebody makes, with its defaults."""
    if isinstance(env, str):
        return parse_env(env)
    if callable(env):
        return config.Gym(
            id=getattr(getattr(env, "func", env), "__qualname__", type(env).__name__), make=env
        )
    raise SettingsError(
        f"env must be a name, such as gym:CartPole-v1, or a class or function that makes one, not {config.short_repr(env)}"
    )


def train(
    env: Where = "deep-sea",
    *,
    agent: str = "ersac",
    uncertainty: str | Callable[..., Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    exact: bool = False,
    show: bool = True,
    tensorboard: bool = False,
    wandb: bool = False,
    **changes: Any,
) -> Result:
    """Train an agent and return what happened; with `out`, leave a run directory too, and with `resume` go on with the run in it.

    Any setting can be given by its name: `ersac.train("deep-sea", depth=30, agent="ersac", seeds=4, gamma=0.999)`. `env` is `deep-sea`,
    `gymnax:ID`, `gym:ID`, or a class or function that makes an environment of Gymnasium when it is called.
    """
    settings = make_settings(env, agent, uncertainty, **changes)
    track = check(Track(tensorboard, wandb))
    return run_experiment(
        settings,
        None if out is None else Path(out),
        display.make_display(show),
        resume,
        exact,
        track=track,
    )


def load(
    path: str | Path,
    *,
    make: Callable[[], Any] | None = None,
    torso: Any = None,
    estimator: Any = None,
) -> "Policy":
    """The policy in a file of `result.save`: call it with an observation. It needs neither its environment nor its run.

    What was made in Python a file knows only by name: a torso and an estimator have to be given again, what makes the environment only
    where it is to be played in.
    """
    from ersac.policy import policy  # jax

    given = {"make": make, "torso": torso, "estimator": estimator}
    return policy.load_policy(
        Path(path), **{name: value for name, value in given.items() if value is not None}
    )


def run_experiment(
    settings: Experiment,
    out: Path | None,
    screen: display.Display,
    resume: bool = False,
    exact: bool = False,
    poll: Callable[[], int] = lambda: 0,
    track: Track = config.UNTRACKED,
) -> Result:
    """Run checked settings to their end, or until `poll` gives the number of a signal: then Stopped, after a checkpoint."""
    began = time.perf_counter()
    with contextlib.ExitStack() as held:
        held.callback(screen.close)
        trackers.check_trackers(track, out)
        if settings.env.depth is not None:
            config.check_memory(settings)  # another's size is known once it is made
        if settings.env.on_host and isinstance(settings.env.make, str):
            raise SettingsError(
                f"{settings.env.id} was made in Python; go on there: ersac.train({settings.env.id}, out=..., resume=True)"
            )
        check_env(settings.env, display.note)
        if out is not None:
            held.enter_context(run_dir.hold_run(out, settings, resume))
            if run_dir.valid_summary(out, settings):
                display.note(f"{out} has ended already; --episodes can raise its budget")
                return replace(
                    read_result(out), settings=settings
                )  # which may have what only Python can give
        session = start_session(make_job(settings, out), exact, began)
        held.callback(loop_of(settings).close, session.program)
        carry = run_session(
            session,
            screen,
            held.enter_context(trackers.open_trackers(track, out, session.recorder)),
            poll,
        )
        screen.close()
        map_snapshots = (
            session.recorder.select_map_snapshots(take_map_snapshot(session, carry))
            if settings.env.has_maps
            else []
        )
        stats = (session.recorder.episode_stats(), session.recorder.metrics(), map_snapshots)
        last = carry if out is None else None  # else it is in the last checkpoint
        result = Result(
            settings,
            *stats,
            session.recorder.steps,
            *session.timings(),
            session.checkpointer.environment_changes,
            out,
            last,
        )
        if out is not None:
            write_result(result, out)
        return result
