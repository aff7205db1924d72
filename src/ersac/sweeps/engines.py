"""Engines run the units of a sweep: in this process, or on Ray. No jax here."""

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ersac.config import pick
from ersac.packages import require_package
from ersac.runs import disk, exits, run_dir
from ersac.sweeps.runner import RESUME_HINT, Engine, OnUnitSteps, Outcome, Unit, try_unit

POLL_SECONDS = 1.0
RETRIES = 5  # of a unit whose worker died
STORE_BYTES = 100_000_000  # Ray's object store: driver and workers exchange almost nothing
# The first is for systems on which Ray is never a cluster: without it Ray listens on every address
# of the machine.
LOCAL_RAY_ENV = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
STOP = "stop"  # a file in the sweep's directory that asks all workers to save and exit


def run_local(
    todo: Sequence[Unit], on_steps: OnUnitSteps, poll: Callable[[], int]
) -> Iterator[Outcome]:
    """Run one unit after the other in this process; each uses every core."""
    for unit in todo:
        if number := poll():
            raise exits.Stopped(number, f"stopped; {RESUME_HINT}")
        yield try_unit(unit, partial(on_steps, unit), poll)


def run_on_ray(
    todo: Sequence[Unit], on_steps: OnUnitSteps, poll: Callable[[], int]
) -> Iterator[Outcome]:
    """Run each unit as a Ray task, on this machine or on the cluster that RAY_ADDRESS names.

    All machines of a cluster must share the sweep's directory. A task takes as many cores as this
    machine has: on the same number of cores a unit has the same bits. If its worker dies, the next
    one resumes from the last checkpoint.
    """
    if not todo:
        return
    cores, stop = run_dir.fingerprint()["visible_cores"], todo[0].home / STOP
    ray = _start_ray(cores)
    try:
        task = ray.remote(num_cpus=cores, max_retries=RETRIES)(_run_on_worker)
        pending = {task.remote(unit.at(Path(unit.home).absolute())): unit for unit in todo}
        number = 0
        while pending:
            for reference in ray.wait(list(pending), timeout=POLL_SECONDS)[0]:
                unit = pending.pop(reference)
                try:
                    outcome = ray.get(reference)
                except ray.exceptions.RayError as error:
                    reason = str(error).splitlines()[0]
                    outcome = Outcome(unit, {}, f"its worker died {RETRIES + 1} times: {reason}")
                if outcome is not None:
                    yield outcome._replace(unit=unit)
            for unit in pending.values():
                if unit.directory.exists():
                    on_steps(unit, unit.steps_saved())
            if not number and (number := poll()):
                disk.write(stop, b"")
        if number:
            raise exits.Stopped(number, f"stopped; {RESUME_HINT}")
    finally:
        ray.shutdown()
        if stop.exists():
            disk.remove([stop])


ENGINES: dict[str, Engine] = {"local": run_local, "ray": run_on_ray}


def find_engine(name: str) -> Engine:
    """The engine of that name; SettingsError if it is unknown or its package is missing."""
    engine = pick("engine", name, ENGINES)
    if name == "ray":
        require_package("--engine ray", "ray", "ray")
    return engine


def _start_ray(cores: int) -> Any:
    """Ray on this machine, closed to others and without a dashboard; or an existing cluster."""
    address = os.environ.get("RAY_ADDRESS", "local")
    options: dict[str, Any] = {
        "address": address,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    if address == "local":
        os.environ.update(LOCAL_RAY_ENV)  # which Ray reads when it is imported
        options |= {
            "num_cpus": cores,
            "include_dashboard": False,
            "object_store_memory": STORE_BYTES,
        }
    import ray

    ray.init(**options)
    return ray


def _run_on_worker(unit: Unit) -> Outcome | None:
    """Run a unit on a Ray worker, which has another working directory; None if it was stopped."""
    stop = unit.home / STOP
    if stop.exists():
        return None
    with contextlib.suppress(exits.Stopped):
        return try_unit(unit, lambda steps: None, lambda: signal.SIGTERM if stop.exists() else 0)
    return None
