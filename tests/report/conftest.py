"""Runs that the tests of reports share: two agents, one run stopped, one damaged."""

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import pytest

import ersac
from ersac.report import server
from ersac.report.collect import collect_runs, run_reader
from ersac.runs import run_dir

# As in tests/test_api.py: one compiled program serves all runs here.
SMALL = {"depth": 6, "seeds": 2, "episodes": 300, "chunk": 10, "hidden": (8, 8), "show": False}


class Runs(NamedTuple):
    """Directories of runs."""

    home: Path
    first: Path  # ended
    second: Path  # ended, with other seeds
    other: Path  # ended, with another tau0
    stopped: Path
    damaged: Path


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Runs:
    home = tmp_path_factory.mktemp("report") / "runs"
    found = Runs(home, *(home / name for name in Runs._fields[1:]))
    for out, changes in (
        (found.first, {}),
        (found.second, {"seed": 2}),
        (found.other, {"tau0": 0.5, "seed": 4}),
        (found.stopped, {"on_chunk": lambda progress: progress.episodes > 100}),
    ):
        settings = SMALL | {"stop_when_solved": False} | changes
        ersac.train("deep-sea", agent="ersac", out=out, **settings)
    shutil.copytree(found.first, found.damaged)
    facts = found.damaged / run_dir.RESULTS
    facts.write_bytes(facts.read_bytes()[:-7])
    return found


@pytest.fixture(scope="session")
def serve() -> Callable[[list[Path]], AbstractContextManager[int]]:
    """A server of the report on some paths, in a thread: a context with its port."""

    @contextlib.contextmanager
    def context(paths: list[Path]) -> Iterator[int]:
        read = run_reader()
        with server.make_server(lambda: collect_runs(paths, read), 0) as running:
            thread = threading.Thread(target=running.serve_forever, args=(0.05,))
            thread.start()
            try:
                yield running.server_port
            finally:
                running.shutdown()
                thread.join()

    return context
