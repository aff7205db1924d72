"""What `on_chunk` receives between two chunks of a run."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ersac.config import Experiment
from ersac.runs import disk
from ersac.runs.recorder import Recorder

if TYPE_CHECKING:
    from ersac.policy.policy import Policy

EVALUATIONS, BEST = "evaluations.json", "best-policy.npz"  # files of `eval_every`


@dataclass(frozen=True)
class Progress:
    """A run between two chunks.

    steps: environment steps of each seed so far.
    episodes: episodes of the seed that has ended fewest.
    metrics: numbers by name, means over seeds: the learner's metrics over the last chunk
        (`tau`, `entropy`, ...), `mean_return` and `mean_length` of the last 100 episodes
        (`goal_share` on DeepSea; nan before the first), `steps_per_second` and, with `eval_every`,
        `eval_return`.
    """

    steps: int
    episodes: int
    metrics: dict[str, float]
    settings: Experiment = field(repr=False)
    carry: Any = field(repr=False)  # the loop's state
    codec: Callable[[], Any] = field(repr=False)  # of the environment's spaces, made once

    def policy(self, seed: int | None = None) -> "Policy":
        """Return the policy of a seed as it is now, by default of the first."""
        from ersac.policy.policy import Policy
        from ersac.policy.trained import trained_from_carry

        seed = self.settings.run.seed if seed is None else seed
        return Policy(trained_from_carry(self.settings, self.carry, seed, self.codec()))


OnChunk = Callable[[Progress], bool | None]  # True: stop the run


def make_progress(
    settings: Experiment, recorder: Recorder, carry: Any, codec: Callable[[], Any]
) -> Progress:
    """Return the progress of a run after at least a part of one chunk."""
    metrics = {name: float(value.mean()) for name, value in recorder.last_row().items()}
    del metrics["step"]
    metrics["steps_per_second"] = recorder.paces[-1] if recorder.paces else math.nan
    episodes = int(recorder.episodes.min())
    return Progress(recorder.steps_per_seed, episodes, metrics, settings, carry, codec)


def read_evaluations(directory: Path | None) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return the evaluations of a run and the best of them; none without a file."""
    if directory is None or not (directory / EVALUATIONS).exists():
        return [], None
    try:
        data = json.loads(disk.read(directory / EVALUATIONS))
        return list(data["evaluations"]), data["best"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise disk.DiskError(
            f"{directory / EVALUATIONS} is damaged: remove it, and the run starts a new one"
        ) from None
