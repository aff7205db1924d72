"""What `import ersac` offers: train() and its Result."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ersac import config, display
from ersac.agents.presets import preset
from ersac.config import ENVIRONMENTS, Run, SettingsError, Track, Train, check, override, pick
from ersac.study import records, trackers
from ersac.study.life import begin, live, moment, order
from ersac.study.results import Result, read, write

__all__ = ["Result", "SettingsError", "make_settings", "read", "run", "train"]


def make_settings(env: str = "deep-sea", agent: str = "ersac", uncertainty: str | None = None, **changes: Any) -> Train:
    """Settings by name, checked: an agent's preset with some of its settings, or of its parts', changed."""
    learner = preset(agent, uncertainty)
    if "lambda" in changes:
        changes["lam"] = changes.pop("lambda")
    settings = Train(pick("environment", env, ENVIRONMENTS)(), agent, learner, Run())
    return check(override(settings, **changes))


def train(
    env: str = "deep-sea",
    *,
    agent: str = "ersac",
    uncertainty: str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    exact: bool = False,
    show: bool = True,
    tensorboard: bool = False,
    wandb: bool = False,
    **changes: Any,
) -> Result:
    """Train an agent and return what happened; with `out`, leave a run directory too, and with `resume` go on with the run in it.

    Any setting can be given by its name: `ersac.train("deep-sea", depth=30, agent="ersac", seeds=4, gamma=0.999)`.
    """
    settings = make_settings(env, agent, uncertainty, **changes)
    track = check(Track(tensorboard, wandb))
    return run(settings, None if out is None else Path(out), display.choose(show), resume, exact, track=track)


def run(
    settings: Train,
    out: Path | None,
    screen: display.Display,
    resume: bool = False,
    exact: bool = False,
    caught: Callable[[], int] = lambda: 0,
    track: Track = config.UNTRACKED,
) -> Result:
    """Run checked settings to their end, or until `caught` gives the number of a signal: then Stopped, after a checkpoint."""
    began = time.perf_counter()
    with contextlib.ExitStack() as held:
        held.callback(screen.close)
        trackers.refuse_if_missing(track, out)
        config.refuse_if_too_large(settings)
        if out is not None:
            held.enter_context(records.hold(out, settings, resume))
            if records.ended(out, settings):
                display.note(f"{out} has ended already; --episodes can raise its budget")
                return read(out)
        life = begin(order(settings, out), exact, began)
        carry = live(life, screen, held.enter_context(trackers.following(track, out, life.recorder)), caught)
        screen.close()
        facts = (life.recorder.facts(), life.recorder.metrics(), life.recorder.two_moments(moment(life, carry)))
        result = Result(settings, *facts, life.recorder.steps, *life.spent(), life.keeper.departures, out)
        if out is not None:
            write(result, out)
        return result
