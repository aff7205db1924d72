"""Runs that tests kill: presets in turn, saved after every chunk on a slow disk.

Arguments: directory, episodes, seconds per write, presets.
"""

import math
import os
import shlex
import sys
import time
from pathlib import Path

from ersac import cli
from ersac.analysis import picture
from ersac.config.presets import PRESETS
from ersac.runs import checkpoint, checkpointer, disk

ARGV = shlex.split(
    "--depth 6 --seeds 2 --hidden 8 8 --rollout 20 --chunk 5 --quiet --resume "
    "--no-stop-when-solved --checkpoint-seconds 0"
)


def slowly(function, seconds: float):
    """Return a disk operation that sleeps after it: meanwhile the file has its temporary name."""

    def operation(*args):
        result = function(*args)
        time.sleep(seconds)
        return result

    return operation


def main(directory: Path, episodes: str, seconds: float, presets: list[str]) -> None:
    checkpointer.COST_SHARE = math.inf
    disk.OPS = disk.OPS._replace(write=slowly(os.write, seconds), fsync=slowly(os.fsync, seconds))
    picture.draw_picture, picture.picture_png = lambda *_: None, lambda _: b"a picture"
    save = checkpoint.save_checkpoint
    for preset in presets:
        settings = PRESETS[preset]
        buffer = getattr(settings, "buffer", None)
        # The largest replay would take seconds to save.
        small = ["--replay", "500"] if hasattr(settings, "replay") else []
        small += ["--capacity", "200"] if hasattr(buffer, "capacity") else []

        def announced_save(*args, preset=preset):
            print(preset, flush=True)
            save(*args)

        checkpoint.save_checkpoint = announced_save
        try:
            argv = ["train", "deep-sea", "--agent", preset, *ARGV, *small, "--episodes", episodes]
            cli.main([*argv, "--out", str(directory / preset)])
        except SystemExit as stop:
            if stop.code:
                raise
    print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4:])
