"""Chunks of the host loop come whole, however long they take."""

import pytest

from ersac.loops import host


@pytest.fixture(autouse=True)
def whole_chunks(monkeypatch) -> None:
    """Let no clock divide a chunk."""
    monkeypatch.setattr(host, "CHUNK_SECONDS", float("inf"))
