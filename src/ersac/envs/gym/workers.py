"""N Gymnasium environments stepped together in worker processes."""

import atexit
import contextlib
import itertools
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from ersac.config import SettingsError
from ersac.envs.base import Discrete, HostEnv, HostStep, Space, error_line
from ersac.envs.gym.host import EnvFactory, in_process_env
from ersac.runs.exits import SIGNALS, Resumable

CLOSE_SECONDS = 5.0  # for all workers to exit; those still alive are killed
ANSWER_SECONDS = 300.0  # for a worker to answer: its environments may have to start a game first

Workers = list[tuple[BaseProcess, Connection]]


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
    started = _start_workers(context, name, specs)
    shared_obs = specs[0].observations()

    def request(messages: Iterable[Any]) -> list[Any]:
        """Send a message to each worker, and wait for all answers."""
        for (_, pipe), message in zip(started, messages, strict=True):
            with contextlib.suppress(OSError):  # a dead worker is reported when its answer is read
                pipe.send(message)
        return [_receive(name, process, pipe) for process, pipe in started]

    def reset(seed: int) -> np.ndarray:
        request(seed + part.start for part in slices)
        return shared_obs.copy()

    def step(actions: np.ndarray) -> HostStep:
        answers = request(actions[part] for part in slices)
        joined = HostStep(*map(np.concatenate, zip(*answers, strict=True)))
        return joined._replace(obs=shared_obs.copy())

    def close() -> None:
        atexit.unregister(close)
        _stop_workers(started)

    # Registered last, so called before multiprocessing's handler, which would wait for ever.
    atexit.register(close)
    return template._replace(envs=envs, reset=reset, step=step, close=close)


def _start_workers(context: Any, name: str, specs: list[_WorkerSpec]) -> Workers:
    """Start a worker process for each spec."""
    started: Workers = []
    resource_tracker.ensure_running()  # starting it later would unblock the signals
    # Workers start with signals blocked, because a Ctrl-C reaches them too.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        for spec in specs:
            ours, theirs = context.Pipe()
            process = context.Process(target=_run_worker, args=(spec, theirs), name=f"ersac-{name}")
            process.start()
            theirs.close()
            started.append((process, ours))
    except Exception as error:
        _stop_workers(started)
        raise SettingsError(
            f"{name} cannot be sent to a worker: {error_line(error)}; set workers to 0"
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return started


def _run_worker(spec: _WorkerSpec, pipe: Connection) -> None:
    """Answer messages, a seed for reset or actions for step, until the other end is closed."""
    # The learner decides when to stop. Not SIG_IGN: programs that an environment starts inherit it.
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(
        target=_exit_with_parent, args=(multiprocessing.parent_process(),), daemon=True
    ).start()
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


def _exit_with_parent(parent: Any) -> None:
    """Exit as soon as the learner has, even where an environment never returns."""
    wait([parent.sentinel])
    os._exit(1)


def _receive(name: str, process: BaseProcess, pipe: Connection) -> Any:
    """A worker's answer; an exception that it sent is raised here."""
    try:
        if not pipe.poll(ANSWER_SECONDS):
            process.kill()
            raise Resumable(
                f"{name}: a worker has not answered for {ANSWER_SECONDS:g} s: "
                "check what its step() or reset() waits for"
            )
        answer = pipe.recv()
    except (EOFError, OSError) as error:
        process.join(CLOSE_SECONDS)
        raise Resumable(f"{name}: a worker died (exit code {process.exitcode})") from error
    if isinstance(answer, Exception):
        raise answer
    return answer


def _stop_workers(started: Workers) -> None:
    """Close the pipes, wait for the workers to exit, and kill those that do not."""
    for _, pipe in started:
        pipe.close()
    deadline = time.monotonic() + CLOSE_SECONDS
    for process, _ in started:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _array_spec(space: Space) -> tuple[tuple[int, ...], type[np.generic]]:
    """The shape and the dtype of one observation."""
    if isinstance(space, Discrete):
        return (), np.int32
    return space.shape, np.uint8 if space.is_bytes else np.float32
