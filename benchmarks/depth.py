"""Does a step cost the same at every depth? Steps per second against depth, measured in one run with alternating repeats."""

import argparse
import itertools
import json
import statistics

from ersac import api
from ersac.loops import on_device

CHUNKS = 3  # of each depth in each repeat


def programs(depths: list[int], seeds: int) -> dict[int, on_device.Program]:
    """Every depth's run, compiled and past its first chunk."""
    return {depth: on_device.prepare(api.make_settings(depth=depth, seeds=seeds)) for depth in depths}


def measure(depths: list[int], seeds: int, repeats: int) -> dict[int, list[float]]:
    """Steps per second of each depth, a number a repeat; depths take turns, so that a slow minute hits all of them."""
    made = programs(depths, seeds)
    running = {depth: on_device.run(program) for depth, program in made.items()}
    for chunks in running.values():
        next(chunks)
    speeds: dict[int, list[float]] = {depth: [] for depth in depths}
    for _ in range(repeats):
        for depth, chunks in running.items():
            got = list(itertools.islice(chunks, CHUNKS))
            speeds[depth].append(sum(chunk.facts.ended.size for chunk in got) / sum(chunk.seconds for chunk in got))
    return speeds


def main() -> None:
    """Print steps/s and the ratio to the first depth, with its spread over repeats."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depths", type=int, nargs="+", default=[25, 50, 100, 250])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    speeds = measure(options.depths, options.seeds, options.repeats)
    first = speeds[options.depths[0]]
    told = {}
    for depth, values in speeds.items():
        ratios = [value / base for value, base in zip(values, first, strict=True)]
        median, low, high, speed = statistics.median(ratios), min(ratios), max(ratios), statistics.median(values)
        told[depth] = {"ratio": median, "low": low, "high": high, "steps_per_second": speed}
        print(f"depth {depth:4d}  {speed:10,.0f} steps/s  {median:.2f} of depth {options.depths[0]}  ({low:.2f} to {high:.2f})")
    if options.json:
        print(json.dumps({"seeds": options.seeds, "depths": told}))


if __name__ == "__main__":
    main()
