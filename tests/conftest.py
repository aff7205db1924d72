"""Strict everywhere: shapes never broadcast by rank, a key is never used twice, and float64 is asked for by name."""

import os
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
# Where the library keeps its own: a second clone on the same machine does not compile all of it again.
cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ersac" / "tests"
jax.config.update("jax_compilation_cache_dir", str(cache))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@pytest.fixture
def float64() -> Iterator[None]:
    """Double precision for one test."""
    with jax.enable_x64(True):
        yield
