"""Print digests of every seed of twenty short runs as JSON; two processes must print the same."""

import hashlib
import itertools
import json

import numpy as np

from ersac import api
from ersac.config import Experiment
from ersac.loops import device
from ersac.runs import checkpoint

CHUNKS = 3
SHARED = {"depth": 5, "seeds": 3, "hidden": (8, 8), "rollout": 10, "chunk": 4}
# Few compiled programs, many runs: floats and seeds compile nothing.
PROGRAMS = [
    {},
    {"agent": "vanilla"},
    {"agent": "optimism", "uncertainty": "counts"},
    {"stochastic": True, "noise_variance": 0.1},
]
NUMBERS = [
    {},
    {"seed": 1000},
    {"gamma": 0.9, "lam": 0.5},
    {"learning_rate": 1e-2, "policy_rate": 0.5},
    {"mapping_seed": None, "value_rate": 1.0},
]
CONFIGS = [SHARED | program | numbers for program in PROGRAMS for numbers in NUMBERS]
MANY = SHARED | {"seeds": 64, "mapping_seed": 42}


def digests(settings: Experiment) -> list[str]:
    """Return a digest of every seed: learner, environment, random state, episodes, metrics."""
    program = device.prepare_device(settings)
    chunks = list(itertools.islice(device.run_device(program), CHUNKS))
    outputs = [(chunk.episodes, chunk.metrics) for chunk in chunks]
    arrays, _ = checkpoint.flatten((device.snapshot_device(program, chunks[-1].carry), outputs))
    seeds = [hashlib.sha256() for _ in range(settings.run.seeds)]
    for name in sorted(arrays):
        for seed, part in zip(seeds, np.asarray(arrays[name]), strict=True):
            seed.update(name.encode() + part.tobytes())
    return [seed.hexdigest() for seed in seeds]


if __name__ == "__main__":
    print(json.dumps([digests(api.make_settings(**settings)) for settings in [*CONFIGS, MANY]]))
