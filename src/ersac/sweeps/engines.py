"""Who runs the batches of a sweep: this process, one after the other, or Ray. No jax here."""

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ersac.packages import require_package
from ersac.runs import disk, exits, run_dir
from ersac.sweeps.runner import GO_ON, Batch, Engine, Outcome, Told, attempt

POLL_SECONDS = 1.0
RETRIES = 5  # of a batch whose worker died
STORE_BYTES = 100_000_000  # for what passes between driver and workers, which is next to nothing
# The first is for systems on which Ray is never a cluster: without it Ray listens on every address of the machine.
ALONE = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
STOP = "stop"  # the file that asks workers on any machine to save and leave


def local(todo: Sequence[Batch], told: Told, poll: Callable[[], int]) -> Iterator[Outcome]:
    """One batch after the other: each uses every core."""
    for batch in todo:
        if number := poll():
            raise exits.Stopped(number, f"stopped; {GO_ON}")
        yield attempt(batch, partial(told, batch), poll)


def on_ray(todo: Sequence[Batch], told: Told, poll: Callable[[], int]) -> Iterator[Outcome]:
    """A task a batch, on this machine or on the cluster that RAY_ADDRESS names, whose machines must all see the sweep's directory.

    A task takes as many cores as this machine has: with the same cores under it, a batch has the same bits. If its worker dies, the
    next one goes on from the last checkpoint.
    """
    if not todo:
        return
    cores, stop = run_dir.fingerprint()["visible_cores"], todo[0].home / STOP
    ray = _start_ray(cores)
    try:
        task = ray.remote(num_cpus=cores, max_retries=RETRIES)(_on_worker)
        pending = {task.remote(_absolute(batch)): batch for batch in todo}
        number = 0
        while pending:
            for reference in ray.wait(list(pending), timeout=POLL_SECONDS)[0]:
                batch = pending.pop(reference)
                try:
                    outcome = ray.get(reference)
                except ray.exceptions.RayError as error:
                    outcome = Outcome(
                        batch,
                        {},
                        f"its worker died {RETRIES + 1} times: {str(error).splitlines()[0]}",
                    )
                if outcome is not None:
                    yield outcome._replace(batch=batch)
            for batch in pending.values():
                if batch.directory.exists():
                    told(batch, batch.steps_saved())
            if not number and (number := poll()):
                disk.write(stop, b"")
        if number:
            raise exits.Stopped(number, f"stopped; {GO_ON}")
    finally:
        ray.shutdown()
        if stop.exists():
            disk.remove([stop])


ENGINES: dict[str, Engine] = {"local": local, "ray": on_ray}


def require_engine(engine: str) -> None:
    """SettingsError where an engine is not installed."""
    if engine == "ray":
        require_package("--engine ray", "ray", "ray")


def _start_ray(cores: int) -> Any:
    """Ray on this machine, shut to all others and without its dashboard; or a cluster that somebody else has started."""
    address = os.environ.get("RAY_ADDRESS", "local")
    told: dict[str, Any] = {
        "address": address,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    if address == "local":
        os.environ.update(ALONE)  # which Ray reads when it is imported
        told |= {"num_cpus": cores, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    import ray

    ray.init(**told)
    return ray


def _on_worker(batch: Batch) -> Outcome | None:
    """Run a batch where Ray wants it; None if it was stopped."""
    stop = batch.home / STOP
    if stop.exists():
        return None
    with contextlib.suppress(exits.Stopped):
        return attempt(batch, lambda steps: None, lambda: signal.SIGTERM if stop.exists() else 0)
    return None


def _absolute(batch: Batch) -> Batch:
    """The batch as a worker elsewhere can find it."""
    return batch._replace(home=Path(batch.home).absolute())
