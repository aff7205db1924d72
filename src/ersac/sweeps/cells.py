"""A run of a ladder or a grid as a unit of a sweep: an ordinary run by itself. No jax here.

Each has a directory of its own. A run that has ended is skipped; one that was stopped resumes from
its checkpoint.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ersac import display
from ersac.config import Experiment
from ersac.runs import exits, run_dir
from ersac.sweeps import runner
from ersac.sweeps.runner import SingleRun


class CellUnit(NamedTuple):
    """One run, in the directory of its sweep."""

    home: Path  # of the sweep
    cell: SingleRun
    train: Callable[..., Any]  # `ersac.api.run_experiment`, which this module may not import

    @property
    def instances(self) -> tuple[SingleRun, ...]:
        """Its one run."""
        return (self.cell,)

    @property
    def settings(self) -> Experiment:
        """The settings of the run."""
        return self.cell.settings

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.cell.name

    @property
    def directory(self) -> Path:
        """The directory of the run."""
        return self.home / self.cell.name

    @property
    def steps(self) -> int:
        """Environment steps of the run; where only episodes are limited, their number counts."""
        run, length = self.settings.run, self.settings.env.episode_length
        return run.steps or run.episodes * (length or 1)

    def steps_saved(self) -> int:
        """Environment steps up to its newest checkpoint."""
        from ersac.runs import checkpoint  # jax

        saved = checkpoint.checkpoint_numbers(self.directory / checkpoint.DIRECTORY)
        rollout = self.settings.agent.rollout * self.settings.env.envs
        return min(self.steps, max(saved, default=0) * rollout)

    def run(self, on_steps: Callable[[int], None], poll: Callable[[], int]) -> dict[str, str]:
        """Train or resume the run; returns it with the reason if its numbers are not finite."""
        try:
            self.train(
                self.settings, self.directory, _CellDisplay(on_steps), resume=True, poll=poll
            )
        except exits.Stopped as stop:
            text = f"stopped in {self.name}; {runner.RESUME_HINT}"
            raise exits.Stopped(stop.number, text) from None
        except exits.NonFinite as error:
            run_dir.write_failure(self.directory, self.settings, str(error))
            return {self.name: str(error)}
        return {}

    def at(self, home: Path) -> "CellUnit":
        """The same in another directory."""
        return self._replace(home=home)


class _CellDisplay:
    """The display of a cell: reports its steps to the display of the sweep."""

    def __init__(self, on_steps: Callable[[int], None]) -> None:
        self.on_steps = on_steps

    def prepare(self) -> None:
        """Nothing: the sweep says it once."""

    def show(self, status: display.Status) -> None:
        """Report what has been done of the budget."""
        self.on_steps(status.done)

    def close(self) -> None:
        """Nothing: the next cell uses the same screen."""
