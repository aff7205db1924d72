"""Durable files: a file is written completely or not at all, and a run has one writer.

All files of this package are written here; only Weights & Biases and jax's compilation cache write
their own. Every operation goes through `OPS`, so that a test can let each one fail, or be the last
before a crash.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from ersac.config import SettingsError

Bytes = bytes | memoryview
PARTIAL = ".partial"  # suffix of a file that is being written
BLOCK = 1 << 26  # bytes per system call
CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
MODE = 0o666  # permissions of a new file before the umask; os.open's default, 0o777, is executable
HOLDER_BYTES = 256  # size of a lock file's text: padded, so that it covers the one before
HOLDER_SECONDS = 1.0  # that a new holder may take to write its name


class DiskError(OSError):
    """A failed operation: one line with the path, the reason, and the bytes needed and free."""

    def __init__(self, text: str, number: int | None = None) -> None:
        super().__init__(text)
        self.errno = number


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_file(path: Path, flags: int) -> int:
    """Open a file; one that this creates is not executable."""
    return os.open(path, flags, MODE)


class Ops(NamedTuple):
    """The disk operations that this package uses."""

    open: Callable[[Path, int], int] = open_file
    write: Callable[[int, Bytes], int] = os.write
    fsync: Callable[[int], None] = os.fsync
    close: Callable[[int], None] = os.close
    rename: Callable[[Path, Path], None] = os.replace
    unlink: Callable[[Path], None] = os.unlink
    sync_directory: Callable[[Path], None] = sync_directory
    make_directory: Callable[[Path], None] = os.mkdir
    read: Callable[[Path], bytes] = Path.read_bytes
    names: Callable[[Path], list[str]] = os.listdir
    remove_tree: Callable[[Path], None] = shutil.rmtree


OPS = Ops()


def write(path: Path, data: Bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, both complete."""
    left, partial = memoryview(data).cast("B"), path.with_name(path.name + PARTIAL)
    with _describe_errors("write", path, len(left)):
        try:
            handle = OPS.open(partial, CREATE)
            try:
                while left:
                    left = left[OPS.write(handle, left[:BLOCK]) :]
                OPS.fsync(handle)
            finally:
                OPS.close(handle)
            OPS.rename(partial, path)
            OPS.sync_directory(path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                OPS.unlink(partial)  # frees the space on a full disk
            raise


def require_new(path: Path) -> None:
    """Raise SettingsError if a file exists."""
    if path.exists():
        raise SettingsError(
            f"{path} already exists; choose another name or remove it (nothing was overwritten)"
        )


def append(path: Path, data: Bytes) -> None:
    """Append to a file that exists. A crash may leave a part: readers must be able to detect it."""
    left = memoryview(data).cast("B")
    with _describe_errors("write", path, len(left)):
        handle = OPS.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            while left:
                left = left[OPS.write(handle, left[:BLOCK]) :]
        finally:
            OPS.close(handle)


def read(path: Path) -> bytes:
    """Return the contents of a file."""
    with _describe_errors("read", path):
        return OPS.read(path)


def names(directory: Path) -> list[str]:
    """Return the sorted names in a directory; none if it does not exist."""
    with _describe_errors("read", directory):
        try:
            return sorted(OPS.names(directory))
        except FileNotFoundError:
            return []


def move(path: Path, to: Path) -> None:
    """Rename a file durably."""
    with _describe_errors("rename", path):
        OPS.rename(path, to)
        OPS.sync_directory(path.parent)


def remove(paths: list[Path]) -> None:
    """Remove files of one directory durably."""
    for path in paths:
        with _describe_errors("remove", path):
            OPS.unlink(path)
    if paths:
        with _describe_errors("write", paths[0].parent):
            OPS.sync_directory(paths[0].parent)


def remove_tree(path: Path) -> None:
    """Remove a directory and everything in it, if it exists."""
    with _describe_errors("remove", path), contextlib.suppress(FileNotFoundError):
        OPS.remove_tree(path)


def make_directory(path: Path) -> None:
    """Create a directory and its parents durably."""
    if path.is_dir():
        return
    make_directory(path.parent)
    with _describe_errors("create", path):
        with contextlib.suppress(FileExistsError):  # another process created it
            OPS.make_directory(path)
        OPS.sync_directory(path.parent)


def digest(data: Bytes) -> str:
    """Return the sha256 of bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock file until the block, or the process, ends in any way.

    Raises SettingsError at once if another process holds it.
    """
    with _describe_errors("write", path, HOLDER_BYTES):
        handle = OPS.open(path, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(f"{path.parent} is in use by {_holder(path)}") from None
        holder = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        with _describe_errors("write", path, HOLDER_BYTES):
            OPS.write(handle, json.dumps(holder).encode().ljust(HOLDER_BYTES))
        yield
    finally:
        with _describe_errors("close", path):
            OPS.close(handle)


def is_locked(path: Path) -> bool:
    """Return whether a process holds a lock file."""
    if not path.exists():
        return False
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def lock_holder(path: Path) -> str | None:
    """Return a description of the process that holds a lock file; None if none does."""
    return _holder(path) if is_locked(path) else None


def _holder(path: Path) -> str:
    """Return a description of the process that holds a lock.

    The file may still name a previous holder that is gone: then wait for the new one's name.
    """
    until = time.monotonic() + HOLDER_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(ValueError, KeyError):
            holder = json.loads(path.read_bytes())
            if holder["host"] != socket.gethostname() or _process_exists(holder["pid"]):
                return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
        time.sleep(0.01)
    return "another process"


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it exists and belongs to another user
    return True


@contextlib.contextmanager
def _describe_errors(verb: str, path: Path, need: int = 0) -> Iterator[None]:
    """Turn any OSError into a DiskError of one line."""
    try:
        yield
    except DiskError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        if need or error.errno == errno.ENOSPC:
            reason += f"; needs {need:,} bytes, {_free_bytes(path):,} are free"
        raise DiskError(f"cannot {verb} {path}: {reason}", error.errno) from error


def _free_bytes(path: Path) -> int:
    existing = next(parent for parent in [path, *path.absolute().parents] if parent.exists())
    return shutil.disk_usage(existing).free
