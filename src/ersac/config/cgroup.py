"""The limits that a container or a batch system sets: Linux control groups, version 1 and 2."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def memory_limit(root: Path = ROOT) -> int | None:
    """The bytes that this process may use, or None if that is not limited.

    root: where proc/ and sys/ are.
    """
    found = []
    for directory in _groups("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = _read_words(directory / name)
            found += [int(word) for word in words[:1] if word.isdigit()]
    return min(found, default=None)


def core_limit(root: Path = ROOT) -> int | None:
    """The cores whose time this process may use, at least one, or None if that is not limited."""
    found = []
    for directory in _groups("cpu", root):
        words = _read_words(directory / "cpu.max")  # quota and period
        words = words or [
            *_read_words(directory / "cpu.cfs_quota_us"),
            *_read_words(directory / "cpu.cfs_period_us"),
        ]
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
            found.append(max(1, math.ceil(int(words[0]) / int(words[1]))))
    return min(found, default=None)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """The directories of this process's groups, from its own up to the root group.

    A limit of a group above holds too. In a container the groups above its own are not visible, and
    its own may be mounted as the root.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            mount = root / "sys/fs/cgroup"
            if controllers:  # version 1
                if controller not in controllers.split(","):
                    continue
                mount /= controllers if (mount / controllers).is_dir() else controller
            group = mount / path.lstrip("/")
            while group != mount:
                yield group
                group = group.parent
            yield mount


def _read_words(path: Path) -> list[str]:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text().split()
    return []
