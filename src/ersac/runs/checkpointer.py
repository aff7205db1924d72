"""When a run is saved, and how it goes on from where it was."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ersac.config import SettingsError
from ersac.runs import checkpoint
from ersac.runs.checkpoint import Checkpoint
from ersac.runs.run_dir import Timings
from ersac.types import Tree

COST_SHARE = 0.02  # of the time that checkpoints may take


class Checkpointer:
    """Keeps the checkpoints of one run; without a directory it keeps nothing."""

    def __init__(
        self,
        directory: Path | None,
        owner: str,
        seconds: float,
        fingerprint: dict[str, Any],
        tell: Callable[[str], None],
    ) -> None:
        self.directory = None if directory is None else directory / checkpoint.DIRECTORY
        self.owner, self.seconds = (
            owner,
            seconds,
        )  # the hash of what is run; between two checkpoints, at least
        self.fingerprint, self.tell = fingerprint, tell
        self.saved: int | None = None  # the number of the newest checkpoint
        self.environment_changes: list[
            str
        ] = []  # what changed between lives of the run, so that its bits may have
        self.next = time.monotonic() + seconds

    def load(self, exact: bool) -> tuple[Checkpoint, Timings] | None:
        """The newest good checkpoint, if there is one. Says what keeps the rest from being bit-identical, or refuses if it must be."""
        if self.directory is None:
            return None
        found = checkpoint.load_checkpoint(self.directory, self.owner, self.tell)
        if found is None:
            return None
        self.saved, self.environment_changes = found.number, list(found.notes["departures"])
        changed = ", ".join(
            checkpoint.fingerprint_changes(found.notes["fingerprint"], self.fingerprint)
        )
        if changed and exact:
            raise SettingsError(
                f"cannot continue bit-exactly: {changed} (without --exact it would continue all the same)"
            )
        if changed:
            self.tell(f"continues, not bit-exact: {changed}")
            self.environment_changes.append(f"rollout {found.number}: {changed}")
        return found, Timings(**found.notes["spent"])

    def due(self) -> bool:
        """Whether it is time to save."""
        return self.directory is not None and time.monotonic() >= self.next

    def save(self, number: int, tree: Callable[[], Tree], spent: Timings) -> None:
        """Save a state unless it is the one that was saved last; `tree` fetches it."""
        if self.directory is None or number == self.saved:
            return
        began = time.monotonic()
        notes = {
            "settings": self.owner,
            "fingerprint": self.fingerprint,
            "departures": self.environment_changes,
            "spent": spent._asdict(),
        }
        checkpoint.save_checkpoint(self.directory, number, tree(), notes)
        self.saved = number
        ended = time.monotonic()
        self.next = ended + max(self.seconds, (ended - began) / COST_SHARE)
