"""Durable files: a file is written completely or not at all, and a run has one writer.

All files of this package are written here; only Weights & Biases and jax's compilation cache write
their own. Every operation goes through `OPS`, so that a test can let each one fail, or be the last
before a crash.

Only regular files are read: a pipe would block and a device may never end. Nothing is written
through a symbolic link inside a run directory.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from filelock import lock_descriptor

from ersac.config import SettingsError

Bytes = bytes | memoryview
PARTIAL = ".partial"  # suffix of a file that is being written
BLOCK = 1 << 26  # bytes per system call
MAX_TEXT = 1 << 26  # bytes of a JSON file: far more than any that is written
# Flags that some systems lack.
NOFOLLOW, NONBLOCK, BINARY = (
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY")
)
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW | BINARY
APPEND = os.O_WRONLY | os.O_APPEND | NOFOLLOW | NONBLOCK | BINARY
READ = os.O_RDONLY | NONBLOCK | BINARY
LOCK = os.O_RDWR | os.O_CREAT | NOFOLLOW | NONBLOCK | BINARY
MODE = 0o666  # permissions of a new file before the umask; os.open's default, 0o777, is executable
HOLDER_BYTES = 256  # size of a lock file's text: padded, so that it covers the one before
HOLDER_SECONDS = 1.0  # that a new holder may take to write its name
HELD: dict[Path, int] = {}  # the locks that this process holds, with their open files


class DiskError(OSError):
    """A failed operation: one line with the path, the reason, and the bytes needed and free."""

    def __init__(self, text: str, number: int | None = None) -> None:
        super().__init__(text)
        self.errno = number


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable, where the system lets a directory be opened."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_file(path: Path, flags: int) -> int:
    """Open a file; one that this creates is not executable."""
    return os.open(path, flags, MODE)


def read_file(path: Path, most: int | None) -> bytes:
    """Return the contents of a regular file of at most so many bytes."""
    handle = os.open(path, READ)
    try:
        size = _regular_size(handle, path)
        if most is not None and size > most:
            raise DiskError(f"cannot read {path}: it has {size:,} bytes, more than {most:,}")
        with open(handle, "rb", closefd=False) as file:
            return file.read(size)
    finally:
        os.close(handle)


def _regular_size(handle: int, path: Path) -> int:
    """Return the size of an open file; DiskError unless it is a regular one."""
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        raise DiskError(f"cannot use {path}: it is not a regular file", errno.EINVAL)
    return status.st_size


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
    read: Callable[[Path, int | None], bytes] = read_file
    names: Callable[[Path], list[str]] = os.listdir
    remove_tree: Callable[[Path], None] = shutil.rmtree


OPS = Ops()


def write(path: Path, data: Bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, both complete."""
    left, partial = memoryview(data).cast("B"), path.with_name(path.name + PARTIAL)
    with _describe_errors("write", path, len(left)):
        try:
            handle = _create(partial)
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


def _create(path: Path) -> int:
    """Open a new file; what has its name, left by a crash or put there, is removed, not written."""
    try:
        return OPS.open(path, CREATE)
    except FileExistsError:
        OPS.unlink(path)
        return OPS.open(path, CREATE)


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
        handle = OPS.open(path, APPEND)
        try:
            while left:
                left = left[OPS.write(handle, left[:BLOCK]) :]
        finally:
            OPS.close(handle)


def read(path: Path, most: int | None = None) -> bytes:
    """Return the contents of a regular file; DiskError if it has more bytes than `most`."""
    with _describe_errors("read", path):
        return OPS.read(path, most)


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
    """Remove files of one directory durably; a directory of that name is left alone."""
    for path in paths:
        with _describe_errors("remove", path), contextlib.suppress(IsADirectoryError):
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


def make_own_directory(path: Path) -> None:
    """Create a directory inside a run directory; DiskError if it is a link to another place."""
    make_directory(path)
    require_no_link(path)


def require_no_link(path: Path) -> None:
    """Raise DiskError if a path inside a run directory is a link to another place."""
    if path.is_symlink():
        raise DiskError(f"cannot write {path}: it is a symbolic link; remove it", errno.ELOOP)


def digest(data: Bytes) -> str:
    """Return the sha256 of bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock file until the block, or the process, ends in any way.

    Raises SettingsError at once if another process holds it.
    """
    key = path.absolute()
    with _describe_errors("write", path, HOLDER_BYTES):
        handle = OPS.open(path, LOCK)
    try:
        with _describe_errors("lock", path):
            _regular_size(handle, path)
            holder = _lock_or_holder(handle, path)
        if holder is not None:
            raise SettingsError(f"{path.parent} is in use by {holder}")
        HELD[key] = handle
        require_held(path)  # its directory may have been removed since it was opened
        name = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        with _describe_errors("write", path, HOLDER_BYTES):
            OPS.write(handle, json.dumps(name).encode().ljust(HOLDER_BYTES))
        yield
    finally:
        if HELD.get(key) == handle:
            del HELD[key]
        with _describe_errors("close", path):
            OPS.close(handle)


def require_held(path: Path) -> None:
    """Raise DiskError if the lock file at a path is no longer the one that this process holds.

    An open file keeps its inode, so a new file cannot have the same one. Without a lock of this
    process there is nothing to check.
    """
    handle = HELD.get(path.absolute())
    if handle is None:
        return
    try:
        is_same = os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except OSError:
        is_same = False
    if not is_same:
        raise DiskError(
            f"{path.parent} was removed, moved or replaced while this process was writing to it; "
            "nothing more is written there"
        )


def is_locked(path: Path) -> bool:
    """Return whether a process holds a lock file."""
    return lock_holder(path) is not None


def lock_holder(path: Path) -> str | None:
    """Return a description of the process that holds a lock file; None if none does."""
    if not path.exists():
        return None
    with _describe_errors("read", path):
        handle = os.open(path, READ)
        try:
            _regular_size(handle, path)
            return _lock_or_holder(handle, path)
        finally:
            os.close(handle)


def _lock_or_holder(handle: int, path: Path) -> str | None:
    """Lock an open file; if another process holds it, return a description of that process.

    The file may still name a previous holder that is gone. Then wait for the new one's name, or for
    the lock: who only asks whether a file is locked holds it for an instant.
    """
    until = time.monotonic() + HOLDER_SECONDS
    while not lock_descriptor(handle, blocking=False):
        with contextlib.suppress(ValueError, KeyError, TypeError, OSError, RecursionError):
            holder = json.loads(read(path, HOLDER_BYTES))
            if holder["host"] != socket.gethostname() or _process_exists(int(holder["pid"])):
                return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
        if time.monotonic() > until:
            return "another process"
        time.sleep(0.01)
    return None


def _process_exists(pid: int) -> bool:
    if os.name == "nt":  # where signal 0 is not a question but a Ctrl-C
        return True
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
        if error.errno == errno.ELOOP:
            reason = "it is a symbolic link; remove it"
        if need or error.errno == errno.ENOSPC:
            reason += f"; needs {need:,} bytes, {_free_bytes(path):,} are free"
        raise DiskError(f"cannot {verb} {path}: {reason}", error.errno) from error


def _free_bytes(path: Path) -> int:
    existing = next(parent for parent in [path, *path.absolute().parents] if parent.exists())
    return shutil.disk_usage(existing).free
