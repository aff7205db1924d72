"""Configuration of all tests: implicit rank promotion is an error, and float64 is a fixture."""

import os
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

MAX_MAPS = 30_000  # Linux allows a process 65,530
jax.config.update("jax_numpy_rank_promotion", "raise")
# In the cache directory of the library, so that all clones on a machine share compiled programs.
cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ersac" / "tests"
jax.config.update("jax_compilation_cache_dir", str(cache))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@pytest.fixture
def float64() -> Iterator[None]:
    """Enable double precision for one test."""
    jax.config.update("jax_enable_x64", True)  # enable_x64 would hold in this thread only
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture(autouse=True, scope="module")
def few_compiled_programs() -> Iterator[None]:
    """Drop compiled programs before they use up the memory maps that a process may have.

    XLA aborts when there are no more; a program that is needed again comes from the disk cache.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MAX_MAPS:
        jax.clear_caches()
