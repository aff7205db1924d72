"""A tiny Atari sweep in this process, or on a two-node Ray cluster that this process starts.

Arguments: local DIRECTORY, or cluster DIRECTORY. On the cluster the first worker that has saved a
checkpoint is killed with SIGKILL, and later the whole second machine is lost.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ersac import cli, config
from ersac.config import Atari
from ersac.runs import run_dir
from ersac.sweeps import ladder, ladder_tasks

TINY = {"hidden": (8,), "rollout": 8, "chunk": 4, "checkpoint_seconds": 0.0}
STEPS = 512
TASKS = {
    game: ladder_tasks.Task(Atari(id=game, envs=2, lockstep=True), STEPS)
    for game in ("boxing", "pong")
}
WORDS = ["--agents", "ersac,vanilla", "--quiet"]


def shrink() -> None:
    """Make the sweep tiny, with a checkpoint after every chunk."""
    from ersac.runs import checkpointer

    checkpointer.COST_SHARE = float("inf")
    ladder_tasks.LADDERS["atari57"] = ladder_tasks.LADDERS["atari57"]._replace(
        tasks=TASKS, sizes={"smoke": ladder_tasks.LadderSize(tuple(TASKS), 1)}
    )
    make_settings = ladder.cell_settings
    ladder.cell_settings = lambda *args: config.override(make_settings(*args), **TINY)


def find_worker(home: Path) -> tuple[str, int] | None:
    """A run with a checkpoint and the process that works on it."""
    for path in home.glob("*/lock"):
        if (
            list(path.parent.glob("checkpoints/*.npz"))
            and not (path.parent / run_dir.SUMMARY).exists()
        ):
            with contextlib.suppress(ValueError):
                return path.parent.name, int(json.loads(path.read_bytes())["pid"])
    return None


def disturb(home: Path, lose_machine: Callable[[], None]) -> None:
    """Kill a worker, and then lose a machine."""
    while (found := find_worker(home)) is None:
        time.sleep(0.05)
    os.kill(found[1], signal.SIGKILL)
    print(f"killed the worker of {found[0]}", flush=True)
    time.sleep(5)
    lose_machine()
    print("lost a machine", flush=True)


def run_on_cluster(home: Path) -> None:
    """Start two machines, run the sweep and disturb it."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": 10**8},
    )
    second = cluster.add_node(num_cpus=1, object_store_memory=10**8)
    lose_machine = lambda: cluster.remove_node(second, allow_graceful=False)
    threading.Thread(target=disturb, args=(home, lose_machine), daemon=True).start()
    try:
        ray = ["--engine", "ray", "--address", cluster.address, "--cores", "1"]
        cli.main(["sweep", "atari57", "--out", str(home), *ray, *WORDS])
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    shrink()
    if sys.argv[1] == "cluster":
        run_on_cluster(Path(sys.argv[2]))
    else:
        cli.main(["sweep", "atari57", "--out", sys.argv[2], *WORDS])
