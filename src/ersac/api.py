"""The Python API: `train`, its `Result`, and `load`."""

import contextlib
import os
import sys
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
from ersac.runs.session import (
    Session,
    loop_of,
    make_job,
    run_session,
    start_session,
    take_map_snapshot,
)

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

JAX_OPTIONS = ("JAX_PLATFORMS", "JAX_ENABLE_X64")  # with which jax may not be usable
EnvLike = str | Callable[[], Any]  # a name, or a function that creates a Gymnasium environment


def make_settings(
    env: EnvLike = "deep-sea",
    agent: str = "ersac",
    uncertainty: str | Callable[..., Any] | None = None,
    **changes: Any,
) -> Experiment:
    """Return checked settings: an agent's preset for an environment, with some values changed.

    changes: any setting by its name, at whatever level it is nested.
    """
    env_settings = resolve_env(env)
    agent_settings = preset(agent, uncertainty, changes.get("network"), env_settings)
    settings = Experiment(env_settings, agent, agent_settings, default_run(env_settings))
    return check(override(settings, **changes))


def resolve_env(env: EnvLike) -> config.Environment:
    """Return the default settings of an environment given by name or by a function."""
    if isinstance(env, str):
        return parse_env(env)
    if callable(env):
        name = getattr(getattr(env, "func", env), "__qualname__", type(env).__name__)
        return config.Gym(id=name, make=env)
    raise SettingsError(
        "env must be a name, such as gym:CartPole-v1, or a class or function that creates one, "
        f"not {config.short_repr(env)}"
    )


def train(
    env: EnvLike = "deep-sea",
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
    """Train an agent.

    Args:
        env: `deep-sea`, `gymnax:ID`, `gym:ID`, or a class or function that returns a Gymnasium
            environment when it is called.
        agent: a preset, such as `ersac`, `ersac-replay`, `vanilla` or `boot-dqn`; `ersac --help`
            lists them.
        uncertainty: the estimator of epistemic uncertainty, such as `ensemble` or `counts`, or a
            function (see docs/your-estimator.md); None: the agent's own.
        out: a new run directory, for checkpoints, results and a picture; None: nothing is written.
        resume: continue the run in `out` if there is one.
        exact: with `resume`, refuse to continue if the result would not be bit-identical.
        show: show progress.
        tensorboard, wandb: log to `out`/tensorboard or `out`/wandb (offline).
        **changes: any setting by the name of its option, such as depth, seeds, seed, episodes,
            steps, gamma or hidden; `ersac train ENV --help` lists them.

    Returns:
        A Result: the episodes and metrics of every seed, `summary()`, `policy`, `evaluate()`,
        `save()` and `picture()`.

    Raises:
        SettingsError: a setting is unknown or out of its range, or `out` already exists.

    Example:
        result = ersac.train("deep-sea", depth=30, seeds=4, gamma=0.999, out="runs/mine")
    """
    settings = make_settings(env, agent, uncertainty, **changes)
    track = check(Track(tensorboard, wandb))
    directory = None if out is None else Path(out)
    screen = display.make_display(show)
    return run_experiment(settings, directory, screen, resume, exact, track=track)


def load(
    path: str | Path,
    *,
    make: Callable[[], Any] | None = None,
    torso: Any = None,
    estimator: Any = None,
) -> "Policy":
    """Load a policy that `Result.save` wrote.

    Args:
        path: the file.
        make: a function that creates the environment, if it is one of your own and `evaluate` is to
            be called.
        torso: the flax module, if the policy was trained with `torso=`.
        estimator: the function, if the policy was trained with a function as `uncertainty`.

    Returns:
        A Policy; neither the environment nor the run directory is needed to call it.

    Example:
        policy = ersac.load("policy.npz")
        action = policy(obs)
    """
    from ersac.policy import policy  # imports jax

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
    """Run checked settings to their end; `screen` is closed in any case.

    poll: returns the number of a signal that was received, or 0. After a signal a checkpoint is
    written and Stopped is raised.
    """
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        stack.callback(screen.close)
        check_before_start(settings, out, track)
        if out is not None:
            stack.enter_context(run_dir.hold_run(out, settings, resume))
            if run_dir.valid_summary(out, settings):
                display.note(f"{out} has already ended; --episodes can raise its budget")
                # These settings, not the stored ones: they may hold Python objects.
                return replace(read_result(out), settings=settings)
        screen.prepare()
        session = start_session(make_job(settings, out), exact, started)
        stack.callback(loop_of(settings).close, session.program)
        opened = stack.enter_context(trackers.open_trackers(track, out, session.recorder))
        carry = run_session(session, screen, opened, poll)
        screen.close()
        result = make_result(session, carry)
        if out is not None:
            write_result(result, out)
        return result


def check_before_start(settings: Experiment, out: Path | None, track: Track) -> None:
    """Raise SettingsError for all that can be refused before the run directory is created."""
    trackers.check_trackers(track, out)
    env = settings.env
    if env.depth is not None:
        config.check_memory(settings)  # the size of other environments is known once they exist
    if env.on_host and isinstance(env.make, str):
        raise SettingsError(
            f"{env.id} was created in Python; resume it there: "
            f"ersac.train({env.id}, out=..., resume=True)"
        )
    check_env(env, display.note)
    # Importing jax takes a second, and the directory may still be refused.
    if sys.modules.get("jax") or any(name in os.environ for name in JAX_OPTIONS):
        from ersac.loops import devices

        devices.check_jax(env.on_host)


def make_result(session: Session, carry: Any) -> Result:
    """Return the result of a session that has run to its end."""
    settings, recorder, out = session.job.settings, session.recorder, session.job.directory
    timings = session.timings()
    map_snapshots = []
    if settings.env.has_maps:
        map_snapshots = recorder.select_map_snapshots(take_map_snapshot(session, carry))
    return Result(
        settings=settings,
        seeds=recorder.episode_stats(),
        metrics=recorder.metrics(),
        map_snapshots=map_snapshots,
        steps=recorder.steps,
        compile_seconds=timings.compiling,
        run_seconds=timings.running,
        wall_seconds=timings.wall,
        environment_changes=session.checkpointer.environment_changes,
        directory=out,
        last_carry=carry if out is None else None,  # else the last checkpoint has it
    )
