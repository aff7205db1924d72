"""Small trained agents that come with the package: `zoo:NAME`. No jax here."""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ersac import config
from ersac.runs import disk

ZOO = "zoo:"  # the prefix of a name
DIRECTORY = Path(__file__).parents[1] / "zoo"
INDEX = DIRECTORY / "index.json"


class ZooAgent(NamedTuple):
    """What is recorded about a trained agent; benchmarks/make_zoo.py writes it."""

    name: str
    env: str
    agent: str
    command: str  # that trained it
    settings_hash: str
    seed: int
    steps: int  # of training
    episodes: int  # of the evaluation, in environments not seen in training
    sample: bool  # whether actions were sampled; otherwise they were the most probable ones
    mean_return: float
    low: float  # of the 95 % interval of the mean
    high: float
    goal_share: float
    bytes: int  # of the file

    @property
    def path(self) -> Path:
        """The file of the agent."""
        return DIRECTORY / f"{self.name}.npz"


@cache
def zoo_agents() -> dict[str, ZooAgent]:
    """The agents that come with the package, by name."""
    index = json.loads(disk.read(INDEX, disk.MAX_TEXT))
    return {entry["name"]: ZooAgent(**entry) for entry in index["agents"]}


def zoo_file(path: Path) -> Path:
    """The file of `zoo:NAME`; any other path as it is."""
    name = str(path)
    if not name.startswith(ZOO):
        return path
    return config.pick("agent of the zoo", name.removeprefix(ZOO), zoo_agents()).path
