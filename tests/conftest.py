"""Configuration of all tests: implicit rank promotion is an error, and float64 is a fixture."""

import os
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

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
