"""The only module that writes: a file is there whole or not at all, and a run has one writer.

Every operation goes through `OPS`, so that a test can enumerate them and let each one fail, or be the last before a crash.
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
PARTIAL = ".partial"  # the end of the name of a file that is being written
BLOCK = 1 << 26  # bytes handed to the system at once
CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
MODE = 0o666  # permissions of a new file before the umask; os.open's default, 0o777, is executable
HOLDER_BYTES = (
    256  # a lock file's text is padded to this, so that a shorter one leaves nothing of a longer
)
HOLDER_SECONDS = 1.0  # that a new holder may take to write its name


class DiskError(OSError):
    """An operation that failed; its text is one line with the path, the reason, and the bytes needed and free."""

    def __init__(self, text: str, number: int | None = None) -> None:
        super().__init__(text)
        self.errno = number


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_file(path: Path, flags: int) -> int:
    """Open a file; one that this creates is not executable."""
    return os.open(path, flags, MODE)


class Ops(NamedTuple):
    """Every way in which this package touches a disk."""

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
    """Write a file so that a crash leaves the old one or the new one, never half of either."""
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
                OPS.unlink(partial)  # a full disk gets its room back
            raise


def require_new(path: Path) -> None:
    """SettingsError where a file would be overwritten."""
    if path.exists():
        raise SettingsError(
            f"{path} is there already; choose another name or remove it (nothing was overwritten)"
        )


def append(path: Path, data: Bytes) -> None:
    """Add to the end of a file that is there. A crash may leave a part of it: whoever reads such a file must be able to tell."""
    left = memoryview(data).cast("B")
    with _describe_errors("write", path, len(left)):
        handle = OPS.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            while left:
                left = left[OPS.write(handle, left[:BLOCK]) :]
        finally:
            OPS.close(handle)


def read(path: Path) -> bytes:
    """All of a file."""
    with _describe_errors("read", path):
        return OPS.read(path)


def names(directory: Path) -> list[str]:
    """What a directory holds, sorted; nothing where there is none."""
    with _describe_errors("read", directory):
        try:
            return sorted(OPS.names(directory))
        except FileNotFoundError:
            return []


def move(path: Path, to: Path) -> None:
    """Give a file another name, durably."""
    with _describe_errors("rename", path):
        OPS.rename(path, to)
        OPS.sync_directory(path.parent)


def remove(paths: list[Path]) -> None:
    """Remove some files of one directory, durably."""
    for path in paths:
        with _describe_errors("remove", path):
            OPS.unlink(path)
    if paths:
        with _describe_errors("write", paths[0].parent):
            OPS.sync_directory(paths[0].parent)


def remove_tree(path: Path) -> None:
    """Remove a directory and all in it, if it is there."""
    with _describe_errors("remove", path), contextlib.suppress(FileNotFoundError):
        OPS.remove_tree(path)


def make_directory(path: Path) -> None:
    """Make a directory and its parents, durably."""
    if path.is_dir():
        return
    make_directory(path.parent)
    with _describe_errors("make", path):
        with contextlib.suppress(FileExistsError):  # somebody else was faster
            OPS.make_directory(path)
        OPS.sync_directory(path.parent)


def digest(data: Bytes) -> str:
    """The sha256 of some bytes, as text."""
    return hashlib.sha256(data).hexdigest()


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Be the only one to hold a lock file, until the block or the process ends, however it ends; else SettingsError at once."""
    with _describe_errors("write", path, HOLDER_BYTES):
        handle = OPS.open(path, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(f"{path.parent} is in use by {_holder(path)}") from None
        me = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        with _describe_errors("write", path, HOLDER_BYTES):
            OPS.write(handle, json.dumps(me).encode().ljust(HOLDER_BYTES))
        yield
    finally:
        with _describe_errors("close", path):
            OPS.close(handle)


def is_locked(path: Path) -> bool:
    """Whether somebody holds a lock file now."""
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
    """Who holds a lock file now, in words; None where nobody does."""
    return _holder(path) if is_locked(path) else None


def _holder(path: Path) -> str:
    """Who holds a lock. Its file may still name the one before, who is dead: then the new one is about to write its own name."""
    until = time.monotonic() + HOLDER_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(ValueError, KeyError):
            told = json.loads(path.read_bytes())
            if told["host"] != socket.gethostname() or _process_exists(told["pid"]):
                return f"process {told['pid']} on {told['host']} since {told['since']}"
        time.sleep(0.01)
    return "another process"


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, but there
    return True


@contextlib.contextmanager
def _describe_errors(deed: str, path: Path, need: int = 0) -> Iterator[None]:
    """Any failure as one line."""
    try:
        yield
    except DiskError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        room = (
            f"; needs {need:,} bytes, {_free(path):,} are free"
            if need or error.errno == errno.ENOSPC
            else ""
        )
        raise DiskError(f"cannot {deed} {path}: {reason}{room}", error.errno) from error


def _free(path: Path) -> int:
    there = next(parent for parent in [path, *path.absolute().parents] if parent.exists())
    return shutil.disk_usage(there).free
