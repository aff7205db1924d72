"""The Python API: `train`, its `Result`, `read` and `load`."""

import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ersac import config, display
from ersac.config import (
    EvalDuring,
    Experiment,
    SettingsError,
    Track,
    check,
    default_run,
    override,
    parse_env,
)
from ersac.config.presets import preset
from ersac.envs.make import check_env
from ersac.runs import run_dir, trackers
from ersac.runs.progress import OnChunk, Progress
from ersac.runs.results import Result, read_result, write_result
from ersac.runs.session import (
    Job,
    Session,
    loop_of,
    make_job,
    run_session,
    start_session,
    take_map_snapshot,
)

if TYPE_CHECKING:
    from ersac.policy.policy import Policy
    from ersac.policy.start import StartSource
    from ersac.sweeps.grid import GridRun, SweepResult
    from ersac.sweeps.runner import Engine, Report

__all__ = [
    "Progress",
    "Result",
    "SettingsError",
    "load",
    "make_settings",
    "read",
    "read_result",
    "run_experiment",
    "settings",
    "sweep",
    "train",
]

read = read_result
JAX_OPTIONS = ("JAX_PLATFORMS", "JAX_ENABLE_X64")  # with which jax may not be usable
EnvLike = str | Callable[[], Any]  # a name, or a function that creates a Gymnasium environment
Function = TypeVar("Function", bound=Callable[..., Any])


def speak_python(function: Function) -> Function:
    """Let the errors of a function name settings as in Python, not as options."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except SettingsError as error:
            raise SettingsError(config.without_dashes(str(error))) from None

    return wrapped  # type: ignore[return-value]


@speak_python
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
    if changes.get("network", "") is None:
        del changes["network"]  # the agent's own, as with `uncertainty`
    agent_settings = preset(agent, uncertainty, changes.get("network"), env_settings)
    settings = Experiment(env_settings, agent, agent_settings, default_run(env_settings))
    return config.resolve_schedule(check(override(settings, **changes)))


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


@speak_python
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
    start: "StartSource | None" = None,
    on_chunk: OnChunk | None = None,
    eval_every: int | None = None,
    eval_episodes: int = 20,
    **changes: Any,
) -> Result:
    """Train an agent. Ctrl-C ends it with what it has learned so far.

    Args:
        env: `deep-sea`, `gymnax:ID`, a Gymnasium id, `module:Class`, or a class or function that
            returns a Gymnasium environment when it is called.
        agent: a preset, such as `ersac`, `ersac-replay`, `vanilla` or `boot-dqn`; `ersac --help`
            lists them.
        uncertainty: the estimator of epistemic uncertainty, such as `ensemble` or `counts`, or a
            function (see docs/your-estimator.md); None: the agent's own.
        out: a new run directory, for checkpoints, results and a picture; None: nothing is written.
        resume: continue the run in `out` if there is one.
        exact: with `resume`, refuse to continue if the result would not be bit-identical.
        show: show progress.
        tensorboard: log to `out`/tensorboard.
        wandb: log to `out`/wandb, offline.
        start: go on from what was learned: a policy, a file of `result.save()` or a run directory.
            Parameters, running statistics and the estimator are taken over; optimisers are new.
        on_chunk: a function that is called every few seconds with a `Progress` (`steps`,
            `episodes`, `metrics`, `policy()`); where it returns True the run stops.
        eval_every: evaluate the policy after every so many steps of a seed, over `eval_episodes`
            episodes; `result.evaluations` has the results and `result.best_policy` the best.
        **changes: any setting by the name of its option, such as depth, seeds, seed, episodes,
            steps, gamma or hidden; `ersac.settings(env)` lists them.

    Returns:
        A Result: the episodes and metrics of every seed, `summary()`, `policy`, `evaluate()`,
        `save()` and `picture()`. `result.stopped` says whether Ctrl-C or `on_chunk` ended it.

    Raises:
        SettingsError: a setting is unknown or out of its range, or `out` already exists.

    Example:
        result = ersac.train("deep-sea", depth=30, seeds=4, gamma=0.999, out="runs/mine")
    """
    settings = make_settings(env, agent, uncertainty, **changes)
    track = check(Track(tensorboard, wandb))
    during = check(EvalDuring(eval_every, eval_episodes))
    directory = None if out is None else Path(out)
    screen = display.make_display(show)
    return run_experiment(
        settings,
        directory,
        screen,
        resume,
        exact,
        track=track,
        during=during,
        start=start,
        on_chunk=on_chunk,
        catch_ctrl_c=True,
    )


def load(
    path: str | Path,
    *,
    seed: int | None = None,
    make: Callable[[], Any] | None = None,
    torso: Any = None,
    estimator: Any = None,
) -> "Policy":
    """Load a policy that `Result.save` wrote, or the policy of a run.

    Args:
        path: the file, or a run directory: one that has ended, was stopped, or is under way; or
            `zoo:NAME`, an agent that comes with the package (`ersac zoo` lists them).
        seed: of a run directory, the seed; by default its first.
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
    return policy.open_policy(
        Path(path), seed, **{name: value for name, value in given.items() if value is not None}
    )


def settings(
    env: EnvLike = "deep-sea",
    agent: str = "ersac",
    uncertainty: str | Callable[..., Any] | None = None,
) -> dict[str, tuple[Any, str]]:
    """Return every setting of an agent in an environment: its default and what it means.

    Example:
        for name, (default, meaning) in ersac.settings("CartPole-v1").items():
            print(f"{name} = {default}: {meaning}")
    """
    found = {}
    defaults = make_settings(env, agent, uncertainty)
    for path, hint, value in config.leaves(defaults):
        owner: Any = type(functools.reduce(getattr, path[:-1], defaults))
        if text := config.field_docs(owner).get(path[-1]):
            found[config.keyword(path[-1], hint)] = (value, text)
    return found


@speak_python
def sweep(
    grid: dict[str, list[Any]],
    *,
    seeds: int | Sequence[int] = 3,
    out: str | Path,
    engine: str = "local",
    show: bool = True,
    **settings: Any,
) -> "SweepResult":
    """Train every combination of some settings with every seed; what has ended is not run again.

    The same call starts a sweep and continues it, after a crash too, with the same bits.

    Args:
        grid: a list of values for each setting to vary; `env`, `agent` and `uncertainty` too.
        seeds: how many, from 0 on, or a list of them.
        out: the directory of the sweep, which has a directory for each run.
        engine: `local`, or `ray` (needs ersac[ray]; RAY_ADDRESS names a cluster).
        show: show progress.
        **settings: `env`, `agent`, `uncertainty` and settings, the same in every run.

    Returns:
        A SweepResult: `runs`, the directories of the runs that have ended, and the names of those
        that `failed` or are `missing`, with the reason.

    Raises:
        SettingsError: a setting is unknown or out of its range, or `out` holds something else.

    Example:
        ersac.sweep({"gamma": [0.99, 0.995]}, seeds=5, env="CartPole-v1", steps=50_000, out="sweep")
    """
    from ersac.sweeps import engines
    from ersac.sweeps import grid as grids

    runs = grids.list_runs(grids.GridSweep(grid, seeds, settings), make_settings)
    report = run_grid(runs, Path(out), engines.find_engine(engine), show)
    directories = [Path(out) / run.name for run in runs]
    stopped = {*report.failed, *report.missing, *report.refused}
    ended = [directory for directory in directories if directory.name not in stopped]
    return grids.SweepResult(Path(out), ended, report.failed, report.missing | report.refused)


def run_grid(
    runs: "Sequence[GridRun]",
    home: Path,
    engine: "Engine",
    show: bool,
    poll: Callable[[], int] = lambda: 0,
) -> "Report":
    """Run what has not ended of a grid, after a check of every environment in it."""
    from ersac.sweeps.grid import plan_grid
    from ersac.sweeps.runner import run_plan

    for env in {run.settings.env: None for run in runs}:
        check_env(env, display.note)
    plan = plan_grid(home, runs, run_experiment)
    return run_plan(plan, engine, display.make_sweep_display(show), poll)


def run_experiment(
    settings: Experiment,
    out: Path | None,
    screen: display.Display,
    resume: bool = False,
    exact: bool = False,
    poll: Callable[[], int] = lambda: 0,
    track: Track = config.UNTRACKED,
    during: EvalDuring = config.NO_EVALUATION,
    start: "StartSource | None" = None,
    on_chunk: OnChunk | None = None,
    catch_ctrl_c: bool = False,
) -> Result:
    """Run checked settings to their end; `screen` is closed in any case.

    poll: returns the number of a signal that was received, or 0. After a signal a checkpoint is
    written and Stopped is raised. catch_ctrl_c: return the result so far after Ctrl-C.
    """
    started = time.perf_counter()
    out = None if out is None else out.absolute()  # an environment may change the directory
    with contextlib.ExitStack() as stack:
        stack.callback(screen.close)
        check_before_start(settings, out, track)
        if out is not None:
            stack.enter_context(run_dir.hold_run(out, settings, resume))
            if run_dir.valid_summary(out, settings):
                budget, name = config.budget_option(settings), run_dir.short_path(out)
                display.note(f"{name} has already ended; {budget} can raise its budget")
                # These settings, not the stored ones: they may hold Python objects.
                return replace(read_result(out), settings=settings)
        screen.prepare()
        with start_job(settings, out, start) as job:
            session = start_session(job, exact, started)
        if out is not None:
            run_dir.raise_budget(out, settings)
        if note := config.schedule_note(settings):
            display.note(note)
        stack.callback(loop_of(settings).close, session.program)
        opened = stack.enter_context(trackers.open_trackers(track, out, session.recorder))
        hooks = Hooks(during, on_chunk, out)
        if catch_ctrl_c:
            stack.enter_context(hooks.stop_at_ctrl_c())
        carry = run_session(session, screen, opened, poll, hooks)
        screen.close()
        if hooks.error is not None:
            raise hooks.error
        result = hooks.add_evaluations(make_result(session, carry))
        if session.stopped:
            hint = "" if out is None else f"; {session.job.resume_hint}"
            display.note(f"stopped after {result.steps_per_seed:,} steps{hint}")
        elif out is not None:
            write_result(result, out)
        return result


@contextlib.contextmanager
def start_job(
    settings: Experiment, out: Path | None, source: "StartSource | None"
) -> Iterator[Job]:
    """The job of a run, which starts from what `source` has learned, if there is one."""
    job = make_job(settings, out)
    if source is None and not (out is not None and (out / run_dir.START).exists()):
        yield job
        return
    from ersac.policy import start  # imports jax

    given = None if source is None else start.read_start(source, settings)
    has_begun = out is not None and (out / run_dir.CHECKPOINTS).exists()
    with start.hold_start(out, given, has_begun) as arrays:
        assert arrays is not None
        yield replace(job, start_learners=partial(start.start_learners, arrays))


class Hooks:
    """What is called after every chunk: evaluation, the user's function, Ctrl-C."""

    def __init__(self, during: EvalDuring, on_chunk: OnChunk | None, out: Path | None) -> None:
        self.on_chunk = on_chunk
        self.error: Exception | None = None  # raised by `on_chunk` or by an evaluation
        self.interrupted = False
        self.evaluation: Any = None
        if during.eval_every is not None:
            from ersac.policy.periodic import PeriodicEvaluation

            self.evaluation = PeriodicEvaluation(during, out)

    def __call__(self, progress: Progress) -> bool:
        """Return whether the run is to stop, with a checkpoint. It also stops after an error."""
        try:
            if self.evaluation is not None:
                self.evaluation(progress)
            wants_stop = self.on_chunk is not None and bool(self.on_chunk(progress))
        except Exception as error:
            self.error = error
            return True
        return wants_stop or self.interrupted

    @contextlib.contextmanager
    def stop_at_ctrl_c(self) -> Iterator[None]:
        """Stop the run at the first Ctrl-C, in the main thread; the second one interrupts."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = signal.getsignal(signal.SIGINT)

        def on_ctrl_c(number: int, frame: Any) -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True
            display.note("stops after this chunk; Ctrl-C again interrupts it at once")

        signal.signal(signal.SIGINT, on_ctrl_c)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    def add_evaluations(self, result: Result) -> Result:
        """Return the result with the evaluations during training."""
        if self.evaluation is None:
            return result
        best = self.evaluation.best_policy
        return replace(result, evaluations=self.evaluation.rows, best_in_memory=best)


def check_before_start(settings: Experiment, out: Path | None, track: Track) -> None:
    """Raise SettingsError for all that can be refused before the run directory is created."""
    trackers.check_trackers(track, out)
    env = settings.env
    if env.depth is not None:
        config.check_memory(settings)  # the size of other environments is known once they exist
    if env.on_host and config.is_text_only(env.make):
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
        map_snapshots = recorder.list_map_snapshots(take_map_snapshot(session, carry))
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
        state=run_dir.STOPPED if session.stopped else run_dir.ENDED,
    )
