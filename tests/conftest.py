"""Strict everywhere: shapes never broadcast by rank, a key is never used twice, and float64 is asked for by name."""

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parent.parent / ".pytest_cache" / "xla"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


@pytest.fixture
def float64() -> Iterator[None]:
    """Double precision for one test."""
    with jax.enable_x64(True):
        yield
