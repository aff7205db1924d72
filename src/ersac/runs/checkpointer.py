"""When a run writes checkpoints, and from which one it resumes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ersac.config import SettingsError
from ersac.runs import checkpoint, disk
from ersac.runs.checkpoint import Checkpoint
from ersac.runs.run_dir import LOCK, Timings
from ersac.types import Tree

COST_SHARE = 0.02  # of the run time that checkpoints may take, at most


class Checkpointer:
    """Reads and writes the checkpoints of one run; without a directory it does nothing.

    run_id: the hash that identifies the run. seconds: between two checkpoints, at least.
    fingerprint: what a bit-exact resume depends on. note: reports one line to the user.
    """

    def __init__(
        self,
        directory: Path | None,
        run_id: str,
        seconds: float,
        fingerprint: dict[str, Any],
        note: Callable[[str], None],
    ) -> None:
        self.directory = None if directory is None else directory / checkpoint.DIRECTORY
        self.run_id, self.seconds = run_id, seconds
        self.fingerprint, self.note = fingerprint, note
        self.saved: int | None = None  # the number of the newest checkpoint
        self.environment_changes: list[str] = []  # at resumes: the run may not be bit-exact
        self.next = time.monotonic() + seconds

    def load(self, exact: bool) -> tuple[Checkpoint, Timings] | None:
        """Return the newest intact checkpoint, if any, and the timings up to it.

        Reports what keeps the rest of the run from being bit-identical; with `exact` that is a
        SettingsError.
        """
        if self.directory is None:
            return None
        disk.require_no_link(self.directory)
        found = checkpoint.load_checkpoint(self.directory, self.run_id, self.note)
        if found is None:
            return None
        self.saved, self.environment_changes = found.number, list(found.notes["departures"])
        changed = ", ".join(
            checkpoint.fingerprint_changes(found.notes["fingerprint"], self.fingerprint)
        )
        if changed and exact:
            raise SettingsError(
                f"cannot continue bit-exactly: {changed} (without --exact the run would continue)"
            )
        if changed:
            self.note(f"continues, not bit-exact: {changed}")
            self.environment_changes.append(f"rollout {found.number}: {changed}")
        return found, Timings(**found.notes["spent"])

    def due(self) -> bool:
        """Return whether it is time to save."""
        return self.directory is not None and time.monotonic() >= self.next

    def save(self, number: int, tree: Callable[[], Tree], timings: Timings) -> None:
        """Save the state that `tree` returns, unless checkpoint `number` is the newest already."""
        if self.directory is None or number == self.saved:
            return
        disk.require_held(self.directory.parent / LOCK)
        started = time.monotonic()
        notes = {
            "settings": self.run_id,
            "fingerprint": self.fingerprint,
            "departures": self.environment_changes,
            "spent": timings._asdict(),
        }
        checkpoint.save_checkpoint(self.directory, number, tree(), notes)
        self.saved = number
        ended = time.monotonic()
        self.next = ended + max(self.seconds, (ended - started) / COST_SHARE)
