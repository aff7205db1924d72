"""Engines run the units of a sweep: in this process, or on Ray. No jax here."""

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ersac.config import SettingsError, pick, truncate
from ersac.packages import require_package
from ersac.runs import disk, exits
from ersac.runs.fingerprint import fingerprint
from ersac.sweeps.runner import RESUME_HINT, Engine, OnUnitSteps, Outcome, Unit, try_unit

POLL_SECONDS = 1.0
RETRIES = 5  # of a unit whose worker died before it had saved anything new
STORE_BYTES = 100_000_000  # Ray's object store: driver and workers exchange almost nothing
# The first is for systems on which Ray is never a cluster: without it Ray listens on every address
# of the machine.
LOCAL_RAY_ENV = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
STOP = "stop"  # a file in the sweep's directory that asks all workers to save and exit


class RayOptions(NamedTuple):
    """Where Ray runs units, and what each of them reserves there."""

    address: str | None = None  # of a cluster; None: that of RAY_ADDRESS, or this machine alone
    cores: int | None = None  # None: as many as this machine has
    accelerators: float = 0.0


THIS_MACHINE = RayOptions()


def run_local(
    todo: Sequence[Unit], on_steps: OnUnitSteps, poll: Callable[[], int]
) -> Iterator[Outcome]:
    """Run one unit after the other in this process; each uses every core."""
    for unit in todo:
        if number := poll():
            raise exits.Stopped(number, f"stopped; {RESUME_HINT}")
        yield try_unit(unit, partial(on_steps, unit), poll)


def run_on_ray(
    todo: Sequence[Unit],
    on_steps: OnUnitSteps,
    poll: Callable[[], int],
    options: RayOptions = THIS_MACHINE,
) -> Iterator[Outcome]:
    """Run each unit as a Ray task, on this machine or on a cluster.

    All machines of a cluster must share the sweep's directory. A task takes as many cores as this
    machine has, unless `options` says otherwise: on the same number of cores a unit has the same
    bits. If its worker or its machine dies, the next one resumes from the last checkpoint.
    """
    if not todo:
        return
    cores, stop = options.cores or fingerprint()["visible_cores"], todo[0].home / STOP
    ray = _start_ray(options.address, cores)
    try:
        # A lost unit is submitted again below: Ray does not know whether it had made progress.
        resources = {"num_cpus": cores, "num_gpus": options.accelerators, "max_retries": 0}
        task = ray.remote(**resources)(_run_on_worker)
        submit = lambda unit: task.remote(unit.at(Path(unit.home).absolute()))
        pending, losses = {submit(unit): unit for unit in todo}, Losses()
        number = 0
        while pending:
            for reference in ray.wait(list(pending), timeout=POLL_SECONDS)[0]:
                unit = pending.pop(reference)
                try:
                    if (outcome := ray.get(reference)) is not None:
                        yield outcome._replace(unit=unit)
                except ray.exceptions.RayError as error:
                    if losses.may_retry(unit):
                        pending[submit(unit)] = unit
                    else:
                        reason = str(error).splitlines()[0]
                        text = f"its worker died {RETRIES + 1} times without progress: {reason}"
                        yield Outcome(unit, {}, text)
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


class Losses:
    """Counts how often the worker of each unit died since the unit last saved anything new."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}  # saved at the last death, by unit
        self.deaths: dict[str, int] = {}

    def may_retry(self, unit: Unit) -> bool:
        """Count a death; return whether the unit is worth another worker."""
        saved = unit.steps_saved()
        if saved > self.steps.get(unit.name, 0):
            self.deaths[unit.name] = 0
        self.steps[unit.name] = saved
        self.deaths[unit.name] = self.deaths.get(unit.name, 0) + 1
        return self.deaths[unit.name] <= RETRIES


ENGINES: dict[str, Engine] = {"local": run_local, "ray": run_on_ray}


def find_engine(name: str, options: RayOptions = THIS_MACHINE) -> Engine:
    """The engine of that name; SettingsError if it is unknown or its package is missing."""
    engine = pick("engine", name, ENGINES)
    if name == "ray":
        require_package("--engine ray", "ray", "ray")
        return partial(run_on_ray, options=options)
    if options != THIS_MACHINE:
        raise SettingsError("--address, --cores and --accelerators need --engine ray")
    return engine


def _start_ray(given_address: str | None, cores: int) -> Any:
    """Ray on this machine, closed to others and without a dashboard; or an existing cluster."""
    address = given_address or os.environ.get("RAY_ADDRESS", "local")
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

    try:
        ray.init(**options)
    except (ConnectionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise SettingsError(
            f"there is no Ray cluster at --address {address}: start one with ray start --head"
            f" ({truncate(reason)})"
        ) from None
    return ray


def _run_on_worker(unit: Unit) -> Outcome | None:
    """Run a unit on a Ray worker, which has another working directory; None if it was stopped."""
    stop = unit.home / STOP
    if stop.exists():
        return None
    with contextlib.suppress(exits.Stopped):
        return try_unit(unit, lambda steps: None, lambda: signal.SIGTERM if stop.exists() else 0)
    return None
