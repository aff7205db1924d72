"""A small run, digests of its files, and disks that fail or crash at a chosen operation."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ersac import api, display
from ersac.analysis import picture
from ersac.loops import devices
from ersac.runs import checkpoint, checkpointer, disk

devices.claim_cores()  # before jax starts: seeds are spread over the cores as in real runs
SMALL = {
    "depth": 6,
    "seeds": 2,
    "hidden": (8, 8),
    "rollout": 20,
    "chunk": 5,
    "episodes": 100,
    "stop_when_solved": False,
}


@pytest.fixture
def quick(monkeypatch) -> None:
    """Checkpoints after every chunk, and no pictures."""
    monkeypatch.setattr(checkpointer, "COST_SHARE", float("inf"))
    monkeypatch.setattr(picture, "draw_picture", lambda *_: None)
    monkeypatch.setattr(picture, "picture_png", lambda _: b"a picture")


@pytest.fixture
def small() -> dict[str, Any]:
    """Return the settings of the small run."""
    return dict(SMALL)


@pytest.fixture
def train(quick) -> Callable[..., api.Result]:
    """Return a function that starts or resumes the small run in a directory."""

    def run(
        out: Path, agent: str = "ersac", poll=lambda: 0, exact: bool = False, **changes
    ) -> api.Result:
        settings = api.make_settings(
            "deep-sea", agent, **(SMALL | {"checkpoint_seconds": 0.0} | changes)
        )
        return api.run_experiment(
            settings, out, display.NullDisplay(), resume=True, exact=exact, poll=poll
        )

    return run


def digests(run: Path) -> dict[str, str]:
    """Return a digest of every array of a run: of its last checkpoint and its results."""
    newest = checkpoint.checkpoint_numbers(run / checkpoint.DIRECTORY)[-1]
    found = {}
    for path in (run / checkpoint.DIRECTORY / f"{newest:012d}.npz", run / "facts.npz"):
        with np.load(path, allow_pickle=False) as file:
            for name in file.files:
                array = file[name]
                found[f"{path.name}:{name}"] = hashlib.sha256(
                    f"{array.dtype}{array.shape}".encode() + array.tobytes()
                ).hexdigest()
    return found


@pytest.fixture
def left() -> Callable[[Path], dict[str, str]]:
    return digests


class Crash(BaseException):
    """Power loss."""


def with_hook(ops: disk.Ops, at: Callable[[int, str, tuple], None]) -> disk.Ops:
    """Return operations that first call `at` with their number, name and arguments."""
    number = -1

    def hooked(name: str) -> Callable:
        def operation(*args):
            nonlocal number
            number += 1
            at(number, name, args)
            return getattr(ops, name)(*args)

        return operation

    return disk.Ops(*(hooked(name) for name in disk.Ops._fields))


@pytest.fixture
def failing() -> Callable[..., disk.Ops]:
    """A disk whose operation number k fails with an errno; it lists the names of all."""

    def make(k: int, number: int, names: list[str]) -> disk.Ops:
        def at(n: int, name: str, args: tuple) -> None:
            names.append(name)
            if n == k:
                raise OSError(number, os.strerror(number))

        return with_hook(disk.Ops(), at)

    return make


class Memory:
    """A disk in memory that can lose power at any operation; it knows which data is durable."""

    LOSSES = ("clean", "un-synced lost", "rename kept but data lost", "half write")

    def __init__(self, loss: str) -> None:
        self.loss, self.crash_at = loss, -1
        self.files: dict[int, bytearray] = {}  # by inode, as the running system sees them
        self.durable: dict[int, bytes] = {}
        self.entries: dict[str, int] = {}
        self.durable_entries: dict[str, int] = {}
        self.operations: list[str] = []
        self.dead = False

    def ops(self) -> disk.Ops:
        ops = disk.Ops(
            self.open,
            self.write,
            self.fsync,
            lambda _: None,
            self.rename,
            self.unlink,
            self.sync,
            lambda _: None,
            self.read,
            self.names,
        )
        return with_hook(ops, self.at)

    def at(self, n: int, name: str, args: tuple) -> None:
        if self.dead:
            raise Crash
        self.operations.append(name)
        if n == self.crash_at:
            self.dead = True
            if self.loss == "half write" and name == "write":
                handle, data = args
                self.files[handle] += bytes(data)[: len(data) // 2]
            raise Crash

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_EXCL and path.name in self.entries:
            raise FileExistsError(17, "file exists")
        inode = self.entries.get(path.name) or len(self.files) + 1
        self.entries[path.name] = inode
        self.files[inode] = bytearray()
        self.durable.setdefault(inode, b"")
        return inode

    def write(self, handle: int, data: bytes) -> int:
        # A system may write less than it is given.
        part = bytes(data)[: max(1, (2 * len(data)) // 3)]
        self.files[handle] += part
        return len(part)

    def fsync(self, handle: int) -> None:
        self.durable[handle] = bytes(self.files[handle])

    def rename(self, old: Path, new: Path) -> None:
        self.entries[new.name] = self.entries.pop(old.name)

    def unlink(self, path: Path) -> None:
        if path.name not in self.entries:
            raise FileNotFoundError(2, "no such file")
        del self.entries[path.name]

    def sync(self, path: Path) -> None:
        self.durable_entries = dict(self.entries)

    def read(self, path: Path, most: int | None) -> bytes:
        if path.name not in self.entries:
            raise FileNotFoundError(2, "no such file")
        return bytes(self.files[self.entries[path.name]])

    def names(self, path: Path) -> list[str]:
        return list(self.entries)

    def survivors(self) -> dict[str, bytes]:
        """Return the files that are found after the power loss."""
        match self.loss:
            case "un-synced lost":
                return {name: self.durable[inode] for name, inode in self.durable_entries.items()}
            case "rename kept but data lost":
                return {name: self.durable[inode] for name, inode in self.entries.items()}
        return {name: bytes(self.files[inode]) for name, inode in self.entries.items()}


@pytest.fixture
def memory() -> type[Memory]:
    return Memory


@pytest.fixture
def crash() -> type[Crash]:
    return Crash
