"""Gymnasium environments on the host: N of them stepped together, in this process or shared out among workers.

As in Gymnasium's own vectors an episode begins anew on the step after its last one, whatever ended it: that step is the fake one of
`HostStep`. Imported only after settings were checked, and only where gymnasium is installed.
"""

import atexit
import contextlib
import difflib
import importlib
import itertools
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector.utils import CloudpickleWrapper, concatenate, create_empty_array

from ersac.config import SettingsError
from ersac.envs.base import Box, Discrete, HostEnv, HostStep, Space
from ersac.packages import require_package
from ersac.runs.exits import SIGNALS, Resumable

TABLE_LIMIT = (
    100_000  # up to so many states several whole numbers become one, so that tables can be used
)
GRIDS = ("MiniGrid-", "BabyAI-")  # ids of minigrid
SUCCESS = (
    "is_success",
    "success",
)  # where an environment's info says that an episode reached its goal
CLOSE_SECONDS = 5.0  # that workers are given to leave
ANSWER_SECONDS = (
    300.0  # that a worker is given to answer: its environments may have to start a game first
)

Make = Callable[[], gymnasium.Env]
Encode = Callable[
    [Any], np.ndarray
]  # what Gymnasium has of N environments -> [N, ...], always a new array


def resolve(name: str, **options: Any) -> Make:
    """Who makes the environment of a Gymnasium id, with a module before it ('package.module:Id-v0') where that has to be imported.

    MiniGrid's and BabyAI's import minigrid by themselves and are observed as codes, without their mission: see `_coded`.
    """
    module, _, known = name.rpartition(":")
    is_grid = known.startswith(GRIDS)
    if is_grid:
        require_package(name, "minigrid", "gym")
    if is_grid or module:
        module = module or "minigrid"
        try:
            importlib.import_module(module)
        except Exception as error:
            raise SettingsError(f"{name}: {module} cannot be imported: {_line(error)}") from error
    if known not in gymnasium.registry:
        close = difflib.get_close_matches(known, gymnasium.registry, n=3)
        hint = (
            f"did you mean {' or '.join(close)}?"
            if close
            else "if a package registers it, write package.module:Id-v0"
        )
        raise SettingsError(f"unknown environment '{name}'; {hint}")
    # What is registered goes with it: a worker may not have registered it.
    return partial(_made, gymnasium.registry[known], is_grid, **options)


def threshold(name: str) -> float | None:
    """The return that the makers of an environment call solved, if they registered one."""
    spec = gymnasium.registry.get(name.rpartition(":")[2])
    return None if spec is None else spec.reward_threshold


def host_env(make: Make, name: str, envs: int, workers: int = 0, frames: int = 1) -> HostEnv:
    """So many environments side by side; without workers in this process, else shared out evenly among that many processes.

    Which environment gets which seed, and all that it then answers, does not depend on the workers.
    `frames`: that many observations, the oldest first, are one.
    """
    if workers == 0:
        return _here(make, name, envs, frames)
    return _spread(make, name, envs, min(workers, envs), frames)


def observation_codec(space: gymnasium.Space) -> tuple[Space, Encode]:
    """What the observations of a Gymnasium space become, and how.

    A dictionary or a tuple becomes one vector of what can be made numbers of; text, graphs and sequences in it are left out.
    """
    match space:
        case spaces.Discrete():
            return Discrete(int(space.n)), lambda obs: (obs - space.start).astype(np.int32)
        case spaces.MultiDiscrete() if (n := math.prod(space.nvec.ravel().tolist())) <= TABLE_LIMIT:
            digits = space.nvec.ravel()
            worth = np.append(
                np.cumprod(digits[:0:-1])[::-1], 1
            )  # of one more in each digit; the last digit counts ones
            return Discrete(n), lambda obs: (
                (obs - space.start).reshape(len(obs), -1) @ worth
            ).astype(np.int32)
        case spaces.Box() if _is_image(space):
            height, *_, last = space.shape
            if len(space.shape) == 2:
                return Box((*space.shape, 1), is_bytes=True), lambda obs: obs[..., None].copy()
            if height <= 4 < last:  # channels first
                return Box((*space.shape[1:], height), is_bytes=True), lambda obs: np.moveaxis(
                    obs, 1, -1
                ).copy()
            return Box(space.shape, is_bytes=True), lambda obs: obs.copy()
        case spaces.Box():
            if not space.shape:
                return Box((1,)), lambda obs: obs[:, None].astype(np.float32)
            return Box(space.shape), lambda obs: obs.astype(np.float32)
    vector = _vector(space)
    if vector is None:
        raise SettingsError(
            f"observations of the space {space} cannot be made numbers of; wrap the environment"
        )
    return Box((vector.size,)), vector.encode


def action_codec(space: gymnasium.Space) -> tuple[Space, Callable[[np.ndarray], Sequence[Any]]]:
    """What the actions of a Gymnasium space are to an agent, and how [N] or [N, size] of them become N of Gymnasium's again."""
    match space:
        case spaces.Discrete():
            n, start = int(space.n), int(space.start)

            def decode(actions: np.ndarray) -> list[int]:
                """Checked, because some environments hang on an action that they do not have."""
                asked = actions.tolist()
                assert 0 <= min(asked) <= max(asked) < n, (
                    f"actions {actions} are not all from 0 to {n - 1}"
                )
                return [action + start for action in asked] if start else asked

            return Discrete(n), decode
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            low, high = (tuple(bound.ravel().tolist()) for bound in (space.low, space.high))
            if not np.isfinite(low + high).all():
                raise SettingsError(
                    f"actions of the space {space} have no bounds; wrap the environment so that they have"
                )
            reshaped = lambda actions: list(
                actions.reshape(len(actions), *space.shape).astype(space.dtype)
            )
            return Box(space.shape or (1,), low=low, high=high), reshaped
    raise SettingsError(
        f"actions of the space {space} are not served: only Discrete ones and a Box of floats"
    )


class _Vector(NamedTuple):
    """How to make one float32 vector of a space."""

    size: int
    encode: Encode  # -> [N, size]


def _vector(space: gymnasium.Space) -> _Vector | None:
    """What is counted becomes one-hot, what is measured is flattened, bytes of images as shares of 255; None of what is no numbers."""
    flat = lambda obs: obs.reshape(len(obs), -1).astype(np.float32)
    match space:
        case spaces.Discrete():
            return _one_hot(np.array([space.n]), np.array([space.start]))
        case spaces.MultiDiscrete():
            return _one_hot(space.nvec.ravel(), space.start.ravel())
        case spaces.Box() if _is_image(space):
            return _Vector(math.prod(space.shape), lambda obs: flat(obs) / np.float32(255))
        case spaces.Box() | spaces.MultiBinary():
            return _Vector(math.prod(space.shape), flat)
        case spaces.Dict():
            return _join_arrays(space.spaces.items())
        case spaces.Tuple():
            return _join_arrays(enumerate(space.spaces))
    return None


def _one_hot(n: np.ndarray, start: np.ndarray) -> _Vector:
    """Whole numbers [N, digits], of which each has its own n and first value, as one-hot codes one after the other."""
    size = int(n.sum())
    first = np.cumsum(n) - n - start  # where the code of each begins, for the value 0

    def encode(obs: np.ndarray) -> np.ndarray:
        codes = np.zeros((len(obs), size), np.float32)
        np.put_along_axis(codes, obs.reshape(len(obs), -1) + first, np.float32(1), axis=1)
        return codes

    return _Vector(size, encode)


def _join_arrays(entries: Iterable[tuple[Any, gymnasium.Space]]) -> _Vector | None:
    """The vectors of all entries that have one, in their order."""
    served = {key: vector for key, space in entries if (vector := _vector(space)) is not None}
    if not served:
        return None
    join = lambda obs: np.concatenate(
        [vector.encode(obs[key]) for key, vector in served.items()], axis=1
    )
    return _Vector(sum(vector.size for vector in served.values()), join)


def _is_image(space: spaces.Box) -> bool:
    return space.dtype == np.uint8 and len(space.shape) in (2, 3)


def _made(spec: EnvSpec, is_grid: bool, **options: Any) -> gymnasium.Env:
    """Without Gymnasium's checker, whose advice is for whoever wrote the environment."""
    env = gymnasium.make(spec, disable_env_checker=True, **options)
    return _coded(env) if is_grid else env


def _coded(env: gymnasium.Env) -> gymnasium.Env:
    """A grid whose image is declared as what it is: in each cell one of 11 objects, 6 colours and 3 states; no bytes of a picture.

    `observed` then makes it one-hot. The mission, a sentence, is left out.
    """
    constants = importlib.import_module("minigrid.core.constants")
    codes = [len(constants.OBJECT_TO_IDX), len(constants.COLOR_TO_IDX), len(constants.STATE_TO_IDX)]
    seen = env.observation_space
    assert isinstance(seen, spaces.Dict)
    image = spaces.MultiDiscrete(np.broadcast_to(codes, seen["image"].shape or ()))
    space = spaces.Dict({"direction": seen["direction"], "image": image})
    return gymnasium.wrappers.TransformObservation(
        env, lambda obs: {key: obs[key] for key in space}, space
    )


def _here(make: Make, name: str, envs: int, frames: int) -> HostEnv:
    """The environments in this process, one stepped after the other.

    Not Gymnasium's SyncVectorEnv: of what its step of a few CartPoles takes, a third is its own.
    """
    try:
        made = [make() for _ in range(envs)]
    except Exception as error:
        raise SettingsError(f"{name} cannot be made: {_line(error)}") from error
    space = made[0].observation_space
    single, encode = observation_codec(space)
    actions, decode = action_codec(made[0].action_space)
    observations, begun, slid = frame_stack(single, frames, name)
    ended = np.zeros(envs, bool)  # on the step before, so that the next one is fake
    window = np.zeros(0)  # what was observed last, with its history

    def joined(obs: Sequence[Any]) -> np.ndarray:
        array, shape = encode(_joined_as(space, obs)), getattr(single, "shape", ())
        if array.shape[1:] != shape:
            raise ValueError(
                f"an observation has the shape {array.shape[1:]}, and its space {shape}"
            )
        return array

    def reset(seed: int) -> np.ndarray:
        nonlocal ended, window
        try:
            for i, env in enumerate(made):
                env.action_space.seed(seed + i)
            obs = joined([env.reset(seed=seed + i)[0] for i, env in enumerate(made)])
        except Exception as error:
            raise Resumable(f"{name} broke in reset: {_line(error)}") from error
        ended, window = np.zeros(envs, bool), begun(obs)
        return window

    def step(actions: np.ndarray) -> HostStep:
        nonlocal ended, window
        asked, fake = decode(actions), ended
        try:
            obs, reward, terminated, cut, info = zip(
                *map(_stepped, made, fake.tolist(), asked), strict=True
            )
            seen, over = joined(obs), np.array(terminated, bool)
        except Exception as error:
            raise Resumable(f"{name} broke in step: {_line(error)}") from error
        ended, window = over | np.array(cut, bool), slid(window, seen, fake)
        return HostStep(
            obs=window,
            reward=np.array(reward, np.float32).reshape(envs),
            discount=(~(over | fake)).astype(np.float32),
            mask=(~fake).astype(np.float32),
            ended=ended,
            goal=_succeeded(info, ended),
        )

    def close() -> None:
        for env in made:
            with contextlib.suppress(Exception):  # nothing can be lost any more
                env.close()

    return HostEnv(name, observations, actions, envs, reset, step, close)


def _joined_as(space: gymnasium.Space, obs: Sequence[Any]) -> Any:
    """The observations of several environments as Gymnasium's vectors have them; of plain arrays numpy makes one in a third of the time."""
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return np.array(obs, space.dtype)
    return concatenate(space, obs, create_empty_array(space, len(obs)))


def _stepped(
    env: gymnasium.Env, begins: bool, action: Any
) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """What an environment answers to an action; where an episode has to begin, it does, whatever the action."""
    if begins:
        obs, info = env.reset()
        return obs, 0.0, False, False, info
    return env.step(action)


Slid = Callable[
    [np.ndarray, np.ndarray, np.ndarray], np.ndarray
]  # window, next observation, where an episode begins with it -> window


def frame_stack(single: Space, frames: int, name: str) -> tuple[Space, Encode, Slid]:
    """So many observations as one, along the last axis: their space, the first window of an episode, and each next one."""
    if frames == 1:
        return single, lambda obs: obs, lambda window, obs, begins: obs
    if isinstance(single, Discrete):
        raise SettingsError(
            f"{name} has observations that are whole numbers: they cannot be stacked; set frames to 1"
        )
    *others, depth = single.shape
    begun = lambda obs: np.concatenate([obs] * frames, axis=-1)

    def slid(window: np.ndarray, obs: np.ndarray, begins: np.ndarray) -> np.ndarray:
        window = np.concatenate([window[..., depth:], obs], axis=-1)
        if begins.any():
            window[begins] = begun(obs[begins])
        return window

    return single._replace(shape=(*others, depth * frames)), begun, slid


def _succeeded(infos: Sequence[dict[str, Any]], ended: np.ndarray) -> np.ndarray:
    """Which episodes ended well, as far as their environments say so."""
    if not any(infos):  # most say nothing at all
        return np.zeros(len(ended), bool)
    return ended & np.array(
        [any(np.any(info[key]) for key in SUCCESS if key in info) for info in infos]
    )


def _line(error: BaseException) -> str:
    """The type of an exception and the first line that it says."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


class _WorkerShare(NamedTuple):
    """What a worker has to know: its environments, and where to put what they observe."""

    make: CloudpickleWrapper
    name: str
    frames: int
    envs: slice  # of all
    buffer: Any  # raw bytes that all workers share
    shape: tuple[int, ...]  # of the observations of all environments
    dtype: Any

    def seen(self) -> np.ndarray:
        """The observations of all environments, where they are shared."""
        return np.frombuffer(self.buffer, self.dtype).reshape(self.shape)


def _spread(make: Make, name: str, envs: int, workers: int, frames: int) -> HostEnv:
    """The environments shared out among processes of their own, which answer into memory that is shared.

    Not Gymnasium's AsyncVectorEnv: that has a process for every environment, and cannot share the memory of spaces such as MiniGrid's.
    """
    one = _here(
        make, name, 1, frames
    )  # what is wrong with it is said here and now, and its spaces are known before memory is shared
    one.close()
    shape, dtype = _array(one.observations)
    context = multiprocessing.get_context(
        "spawn"
    )  # a process with threads, such as jax's, cannot be forked safely
    buffer = context.RawArray("B", envs * math.prod(shape) * np.dtype(dtype).itemsize)
    bounds = [envs * i // workers for i in range(workers + 1)]
    parts = [slice(*ends) for ends in itertools.pairwise(bounds)]
    shares = [
        _WorkerShare(CloudpickleWrapper(make), name, frames, part, buffer, (envs, *shape), dtype)
        for part in parts
    ]
    started = _start_workers(context, name, shares)
    seen = shares[0].seen()

    def ask(orders: Iterable[Any]) -> list[Any]:
        """Let all workers do something, and wait for all of them."""
        for (_, pipe), order in zip(started, orders, strict=True):
            with contextlib.suppress(OSError):  # who is dead does not answer either
                pipe.send(order)
        return [_answer(name, process, pipe) for process, pipe in started]

    def reset(seed: int) -> np.ndarray:
        ask(seed + part.start for part in parts)
        return seen.copy()

    def step(actions: np.ndarray) -> HostStep:
        answers = ask(actions[part] for part in parts)
        return HostStep(*map(np.concatenate, zip(*answers, strict=True)))._replace(obs=seen.copy())

    def close() -> None:
        atexit.unregister(close)
        _left(started)

    atexit.register(
        close
    )  # before multiprocessing's own, which waits for processes that have nobody to tell them to leave
    return HostEnv(name, one.observations, one.actions, envs, reset, step, close)


Started = list[tuple[BaseProcess, Connection]]


def _start_workers(context: Any, name: str, shares: list[_WorkerShare]) -> Started:
    """A worker for each share."""
    started: Started = []
    resource_tracker.ensure_running()  # it would lift the block when it starts
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, SIGNALS
    )  # workers are born deaf: a Ctrl-C reaches them as well
    try:
        for share in shares:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(share, theirs), name=f"ersac-{name}")
            process.start()
            theirs.close()
            started.append((process, ours))
    except Exception as error:
        _left(started)
        raise SettingsError(
            f"{name} cannot be sent to a worker: {_line(error)}; set workers to 0"
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return started


def _work(share: _WorkerShare, pipe: Connection) -> None:
    """The life of a worker: a seed or actions come in, an answer goes out, until nobody holds the other end."""
    for number in SIGNALS:  # who holds it decides when it is enough. Not SIG_IGN, which programs that an environment starts would inherit
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(
        target=_leave_with, args=(multiprocessing.parent_process(),), daemon=True
    ).start()
    with contextlib.suppress(EOFError, OSError), contextlib.ExitStack() as stack:
        try:
            env = _here(share.make.fn, share.name, share.envs.stop - share.envs.start, share.frames)
            stack.callback(env.close)
            seen = share.seen()[share.envs]
            while True:
                order = pipe.recv()
                if isinstance(order, np.ndarray):
                    answer = env.step(order)
                    seen[:] = answer.obs
                    pipe.send(answer._replace(obs=answer.obs[:0]))
                else:
                    seen[:] = env.reset(order)
                    pipe.send(None)
        except (SettingsError, Resumable) as error:
            pipe.send(error)


def _leave_with(parent: Any) -> None:
    """Be gone as soon as the learner is, even where an environment never answers again."""
    wait([parent.sentinel])
    os._exit(1)


def _answer(name: str, process: BaseProcess, pipe: Connection) -> Any:
    """What a worker says; what it could not do is raised here."""
    try:
        if not pipe.poll(ANSWER_SECONDS):
            process.kill()
            raise Resumable(
                f"{name}: a worker has not answered for {ANSWER_SECONDS:g} s: look for what its step or reset waits for"
            )
        answer = pipe.recv()
    except (EOFError, OSError) as error:
        process.join(CLOSE_SECONDS)
        raise Resumable(f"{name}: a worker died (exit code {process.exitcode})") from error
    if isinstance(answer, Exception):
        raise answer
    return answer


def _left(started: Started) -> None:
    """See that workers leave: the deaf ones are killed."""
    for _, pipe in started:
        pipe.close()
    deadline = time.monotonic() + CLOSE_SECONDS
    for process, _ in started:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _array(space: Space) -> tuple[tuple[int, ...], type[np.generic]]:
    """The shape and the type of one observation."""
    if isinstance(space, Discrete):
        return (), np.int32
    return space.shape, np.uint8 if space.is_bytes else np.float32
