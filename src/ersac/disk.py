"""The only module that writes: a file is there whole or not at all."""

import os
from pathlib import Path


def write(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never half of either."""
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_directory(path.parent)


def make_directory(path: Path) -> None:
    """Make a directory and its parents, durably."""
    path.mkdir(parents=True, exist_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
