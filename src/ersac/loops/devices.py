"""The machine under a run: a device for every core, and compiled programs that outlive the process."""

import contextlib
import os
from pathlib import Path

import jax

MESH_AXIS = "seeds"


def visible_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def claim_cores() -> None:
    """Ask jax for one CPU device a core; it can be asked only before its first use, so a program that came first keeps its own."""
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", visible_cores())


def keep_programs() -> None:
    """Keep compiled programs in the user's cache directory, unless the user said where."""
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(home) / "ersac" / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def mesh(seeds: int) -> jax.sharding.Mesh:
    """The devices that share some seeds: as many as there are, but never more than seeds."""
    devices = jax.local_devices()
    return jax.sharding.Mesh(devices[: min(seeds, len(devices))], (MESH_AXIS,))


def answer_at_once() -> None:
    """Let whoever asks for a small computation do it, where that can still be chosen: handing it to another thread takes longer."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)
