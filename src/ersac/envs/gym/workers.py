"""N Gymnasium environments stepped together in worker processes.

A worker that dies, or does not answer, is replaced: its episodes break off unrecorded, and new ones
begin. One that raises ends the run.
"""

import atexit
import contextlib
import ctypes
import itertools
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from ersac.config import SettingsError
from ersac.envs.base import Discrete, HostEnv, HostStep, Space, error_line
from ersac.envs.gym.host import EnvFactory, in_process_env
from ersac.runs.exits import SIGNALS, Resumable, print_error

CLOSE_SECONDS = 5.0  # for all workers to exit; those still alive are killed
ANSWER_SECONDS = 300.0  # for a worker to answer: its environments may have to start a game first
WAIT_SECONDS = 1.0  # of which a worker's limit is counted
MAX_DEATHS = 3  # of one worker, each within PROGRESS_ANSWERS of its start
PROGRESS_ANSWERS = 1000
PR_SET_PDEATHSIG = 1  # of Linux's prctl


class _WorkerSpec(NamedTuple):
    """What a worker process is started with."""

    make: CloudpickleWrapper
    name: str
    frames: int
    envs: slice  # the worker's environments among all N
    buffer: Any  # raw bytes shared by all workers
    shape: tuple[int, ...]  # [N, ...]   of the observations of all environments
    dtype: Any

    def observations(self) -> np.ndarray:
        """The shared array of the observations of all environments."""
        return np.frombuffer(self.buffer, self.dtype).reshape(self.shape)


class _WorkerDied(Exception):
    """A worker that is gone, or was killed because it did not answer; the text says which."""


@dataclass
class _Worker:
    """A worker process, and how often it had to be replaced."""

    spec: _WorkerSpec
    process: BaseProcess
    pipe: Connection
    answers: int = 0  # since it was started
    deaths: int = 0  # of its predecessors, since one of them got on


def worker_env(make: EnvFactory, name: str, envs: int, workers: int, frames: int) -> HostEnv:
    """N environments shared among worker processes, which write observations to shared memory.

    Gymnasium's AsyncVectorEnv is not used: it starts a process for every environment, and cannot
    share the memory of spaces such as MiniGrid's.
    """
    # One environment here first: its errors are raised here, and its spaces size the buffer.
    template = in_process_env(make, name, 1, frames)
    template.close()
    shape, dtype = _array_spec(template.observations)
    context = multiprocessing.get_context("spawn")  # jax has threads, so forking is not safe
    buffer = context.RawArray("B", envs * math.prod(shape) * np.dtype(dtype).itemsize)
    bounds = [envs * i // workers for i in range(workers + 1)]
    slices = [slice(*ends) for ends in itertools.pairwise(bounds)]
    specs = [
        _WorkerSpec(CloudpickleWrapper(make), name, frames, part, buffer, (envs, *shape), dtype)
        for part in slices
    ]
    # Linux ends a worker with the thread that started it: this one lives as long as the workers.
    starter = ThreadPoolExecutor(1, thread_name_prefix="worker starter")
    start = lambda specs: starter.submit(_start_workers, context, name, specs).result()
    try:
        started: list[_Worker] = start(specs)
    except BaseException:
        starter.shutdown()
        raise
    shared_obs = specs[0].observations()
    first_seed = 0  # of the last reset

    def send(messages: Iterable[Any]) -> None:
        for worker, message in zip(started, messages, strict=True):
            with contextlib.suppress(OSError):  # a dead worker is reported when its answer is read
                worker.pipe.send(message)

    def replace_worker(index: int, reason: str) -> None:
        """Start a worker in the place of one that died, at the first step of new episodes."""
        while True:
            deaths = 1 if started[index].answers > PROGRESS_ANSWERS else started[index].deaths + 1
            if deaths >= MAX_DEATHS:
                raise Resumable(f"{name}: {reason}, {deaths} times in a row")
            print_error(f"{name}: {reason}; it is replaced, its episodes are lost")
            _stop_workers([started[index]])
            started[index] = start([specs[index]])[0]
            started[index].deaths = deaths
            entropy = (first_seed, slices[index].start, deaths)
            seed = int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)
            with contextlib.suppress(OSError):
                started[index].pipe.send(seed)
            try:
                _receive(name, started[index])
            except _WorkerDied as error:
                reason = str(error)
            else:
                return

    def reset(seed: int) -> np.ndarray:
        nonlocal first_seed
        first_seed = seed
        send(seed + part.start for part in slices)
        for index, worker in enumerate(started):
            try:
                _receive(name, worker)
            except _WorkerDied as error:
                replace_worker(index, str(error))
        return shared_obs.copy()

    def step(actions: np.ndarray) -> HostStep:
        send(actions[part] for part in slices)
        answers = []
        for index, worker in enumerate(started):
            try:
                answers.append(_receive(name, worker))
            except _WorkerDied as error:
                replace_worker(index, str(error))
                answers.append(_lost_step(slices[index].stop - slices[index].start))
        _, *fields, lost = zip(*answers, strict=True)
        joined = HostStep(shared_obs.copy(), *map(np.concatenate, fields))
        if any(part is not None for part in lost):
            sizes = [part.stop - part.start for part in slices]
            joined = joined._replace(lost=np.repeat([part is not None for part in lost], sizes))
        return joined

    def close() -> None:
        atexit.unregister(close)
        _stop_workers(started)
        starter.shutdown()

    # Registered last, so called before multiprocessing's handler, which would wait for ever.
    atexit.register(close)
    return template._replace(envs=envs, reset=reset, step=step, close=close)


def _lost_step(envs: int) -> HostStep:
    """The fake step of environments whose worker died: new episodes begin."""
    zeros, no = np.zeros(envs, np.float32), np.zeros(envs, bool)
    return HostStep(zeros[:0], zeros, zeros, zeros, ended=no, goal=no, lost=~no)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module: a worker would run the user's script again, which may start workers.

    It needs nothing of it, because cloudpickle sends what is defined there by value.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _start_workers(context: Any, name: str, specs: list[_WorkerSpec]) -> list[_Worker]:
    """Start a worker process for each spec."""
    started: list[_Worker] = []
    try:
        with _block_signals():
            for spec in specs:
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_run_worker, args=(spec, theirs, os.getpid()), name=f"ersac-{name}"
                )
                with _without_main():
                    process.start()
                theirs.close()
                started.append(_Worker(spec, process, ours))
    except Exception as error:
        _stop_workers(started)
        raise SettingsError(
            f"{name} cannot be sent to a worker: {error_line(error)}; set workers to 0"
        ) from error
    return started


@contextlib.contextmanager
def _block_signals() -> Iterator[None]:
    """Let processes start with signals blocked, because a Ctrl-C reaches them too."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # starting it later would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_worker(spec: _WorkerSpec, pipe: Connection, learner: int) -> None:
    """Answer messages, a seed for reset or actions for step, until the other end is closed."""
    _end_with_learner(learner)
    # The learner decides when to stop. Not SIG_IGN: programs that an environment starts inherit it.
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    with contextlib.suppress(EOFError, OSError), contextlib.ExitStack() as stack:
        try:
            count = spec.envs.stop - spec.envs.start
            env = in_process_env(spec.make.fn, spec.name, count, spec.frames)
            stack.callback(env.close)
            shared_obs = spec.observations()[spec.envs]
            while True:
                message = pipe.recv()
                if isinstance(message, np.ndarray):
                    answer = env.step(message)
                    shared_obs[:] = answer.obs
                    pipe.send(answer._replace(obs=answer.obs[:0]))
                else:
                    shared_obs[:] = env.reset(message)
                    pipe.send(None)
        except (SettingsError, Resumable) as error:
            pipe.send(error)


def _end_with_learner(learner: int) -> None:
    """Let this worker end with the learner, even in a step that never returns or holds the GIL.

    It leads a process group of its own, so that what its environments start can be ended with it.
    """
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    with contextlib.suppress(AttributeError, TypeError):  # not Linux: the thread below has to do
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != learner:  # it was gone before
        os._exit(1)
    threading.Thread(
        target=_exit_with_parent, args=(multiprocessing.parent_process(),), daemon=True
    ).start()


def _exit_with_parent(parent: Any) -> None:
    """Exit as soon as the learner has, even where an environment never returns."""
    wait([parent.sentinel])
    os._exit(1)


def _receive(name: str, worker: _Worker) -> Any:
    """A worker's answer; an exception that it sent is raised here."""
    try:
        # Waits are counted instead of a clock read: the whole job may have been suspended.
        waits = max(1, round(ANSWER_SECONDS / WAIT_SECONDS))
        if not any(worker.pipe.poll(WAIT_SECONDS) for _ in range(waits)):
            _kill_group(worker.process)
            raise _WorkerDied(
                f"a worker has not answered for {ANSWER_SECONDS:g} s: "
                "check what its step() or reset() waits for"
            )
        answer = worker.pipe.recv()
    except (EOFError, OSError) as error:
        worker.process.join(CLOSE_SECONDS)
        raise _WorkerDied(f"a worker died (exit code {worker.process.exitcode})") from error
    worker.answers += 1
    if isinstance(answer, Exception):
        raise answer
    return answer


def _kill_group(process: BaseProcess) -> None:
    """Kill a worker, and the processes that its environments started."""
    if process.pid is not None:
        # It may have no group yet, and Windows has none.
        with contextlib.suppress(OSError, AttributeError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _stop_workers(started: list[_Worker]) -> None:
    """Close the pipes, wait for the workers to exit, and kill those that do not."""
    for worker in started:
        worker.pipe.close()
    deadline = time.monotonic() + CLOSE_SECONDS
    for worker in started:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            _kill_group(worker.process)
            worker.process.join()


def _array_spec(space: Space) -> tuple[tuple[int, ...], type[np.generic]]:
    """The shape and the dtype of one observation."""
    if isinstance(space, Discrete):
        return (), np.int32
    return space.shape, np.uint8 if space.is_bytes else np.float32
