"""Start a run from what another one has learned: `ersac.train(start=...)`, `--start`."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from ersac import display
from ersac.config import Experiment, SettingsError
from ersac.loops.base import run_seeds
from ersac.policy.policy import Policy, read_policy_file
from ersac.policy.trained import run_learner_arrays
from ersac.runs import disk, run_dir, seal
from ersac.runs.checkpoint import flatten
from ersac.runs.seal import array_form, arrays_below
from ersac.types import Learner

OPTIMISER = "opt/"
# Of the episodes that were under way, which the new run does not go on with.
EPISODE = ("memory/normaliser/episode_return", "memory/normaliser/episode_length")
ESTIMATOR = ("params/dense/uncertainty", "memory/uncertainty")

Arrays = dict[str, np.ndarray]  # of a learner, by name
StartSource = Policy | str | Path


def read_start(source: StartSource, settings: Experiment) -> dict[int, Arrays]:
    """The arrays of a learner for every seed of a new run.

    source: a policy or its file, which is for all seeds, or a run directory, of which a seed gets
    its own learner, or the first seed's where there is none.
    """
    seeds = run_seeds(settings)
    if isinstance(source, Policy):
        learner = flatten(source.trained.learner)[0]
    elif isinstance(source, str | Path) and Path(source).is_dir():
        before = run_dir.read_settings(Path(source))
        trained = run_seeds(before)
        origin = {seed: seed if seed in trained else trained[0] for seed in seeds}
        read = run_learner_arrays(Path(source), before, origin.values())
        return {seed: _without_optimiser(read[origin[seed]]) for seed in seeds}
    elif isinstance(source, str | Path):
        learner = arrays_below(read_policy_file(Path(source)), "learner")
    else:
        raise SettingsError(
            "start must be a policy, a file of result.save() or a run directory, not "
            f"{type(source).__name__}"
        )
    return dict.fromkeys(seeds, _without_optimiser(learner))


def _without_optimiser(arrays: Arrays) -> Arrays:
    return {name: array for name, array in arrays.items() if not name.startswith(OPTIMISER)}


@contextlib.contextmanager
def hold_start(
    directory: Path | None, start: dict[int, Arrays] | None, has_begun: bool
) -> Iterator[dict[int, Arrays] | None]:
    """The arrays that a run starts from, given or, where it is resumed, those in its directory.

    They are stored there, so that a run can be resumed before its first checkpoint, and removed if
    they are refused. SettingsError if a run that has begun started from other ones.
    """
    if directory is None:
        yield start
        return
    path = directory / run_dir.START
    stored = _stored_start(path) if path.exists() else None
    if start is None or (stored is not None and _digest(stored) == _digest(start)):
        yield stored
        return
    if stored is not None or has_begun:
        raise SettingsError(f"{directory} started from something else; choose another directory")
    disk.write(path, seal.seal_arrays(_flat(start)))
    try:
        yield start
    except SettingsError:
        path.unlink()
        raise


def _flat(start: dict[int, Arrays]) -> Arrays:
    return {f"{seed}/{name}": array for seed, own in start.items() for name, array in own.items()}


def _digest(start: dict[int, Arrays]) -> str:
    return seal.arrays_digest(_flat(start))


def _stored_start(path: Path) -> dict[int, Arrays]:
    try:
        arrays = seal.unseal_arrays(disk.read(path))
    except ValueError:
        raise disk.DiskError(f"{path} is damaged: it is not what a run wrote") from None
    seeds = sorted({int(name.partition("/")[0]) for name in arrays})
    return {seed: arrays_below(arrays, str(seed)) for seed in seeds}


def start_learners(
    start: dict[int, Arrays], templates: Sequence[Learner], seeds: Sequence[int]
) -> list[Learner]:
    """The learners that every seed starts with; optimisers are new.

    templates: the learners of a run that starts from nothing.
    """
    return [
        fit_learner(template, start[seed], quiet=seed != seeds[0])
        for template, seed in zip(templates, seeds, strict=True)
    ]


def fit_learner(template: Learner, arrays: Arrays, quiet: bool = False) -> Learner:
    """A learner with the parameters, the statistics and the estimator in `arrays`.

    An estimator of another form is left out, with a note; anything else of another form is a
    SettingsError.
    """
    own = flatten(template._replace(opt=()))[0]
    names = [name for name in own | arrays if name not in EPISODE]
    form = lambda side, name: array_form(side[name]) if name in side else "absent"
    differing = [name for name in names if form(own, name) != form(arrays, name)]
    other = [name for name in differing if not name.startswith(ESTIMATOR)]
    if other:
        raise SettingsError(
            f"start does not fit: {other[0]} is {form(arrays, other[0])} there and "
            f"{form(own, other[0])} here; the agent, its network or the spaces differ"
        )
    if differing and not quiet:
        name = differing[0]
        display.note(
            f"the estimator starts anew: its {name} is {form(arrays, name)} in start and "
            f"{form(own, name)} here"
        )
    left_out = (*EPISODE, *(ESTIMATOR if differing else ()))
    taken = [own[n] if n.startswith(left_out) or n not in arrays else arrays[n] for n in own]
    structure = jax.tree.structure(template._replace(opt=()))
    return jax.tree.unflatten(structure, taken)._replace(opt=template.opt)
