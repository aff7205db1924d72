"""JAX devices: one per core, and a compilation cache on disk."""

import contextlib
import os
from pathlib import Path

import jax

from ersac.config import SettingsError
from ersac.config.cgroup import core_limit

MESH_AXIS = "seeds"


def visible_cores() -> int:
    """Return the number of cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min(cores, core_limit() or cores)


def claim_cores() -> None:
    """Make each core a JAX device; without effect if JAX has been used already."""
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", visible_cores())


def check_jax(on_host: bool) -> None:
    """Raise SettingsError if JAX cannot compute here, before anything is written."""
    if jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise SettingsError(
            "jax_enable_x64 is on, but ersac computes in single precision: unset JAX_ENABLE_X64"
        )
    if not on_host:
        claim_cores()
    try:
        jax.local_devices()
    except (RuntimeError, AssertionError) as error:
        platforms = jax.config.jax_platforms  # type: ignore[attr-defined]
        raise SettingsError(
            f"JAX finds no device for JAX_PLATFORMS={platforms}: unset it, or set "
            f"JAX_PLATFORMS=cpu ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        ) from error


def enable_compilation_cache() -> None:
    """Cache compiled programs in the user's cache directory, unless JAX has another one set."""
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        try:
            home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        except RuntimeError:  # no HOME, and a user without a name: programs are compiled anew
            return
        jax.config.update("jax_compilation_cache_dir", str(Path(home) / "ersac" / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def mesh(seeds: int) -> jax.sharding.Mesh:
    """Return a mesh of all devices, but at most one per seed."""
    devices = jax.local_devices()
    return jax.sharding.Mesh(devices[: min(seeds, len(devices))], (MESH_AXIS,))


def disable_async_dispatch() -> None:
    """Run small computations in the calling thread: handing them to another takes longer."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)
