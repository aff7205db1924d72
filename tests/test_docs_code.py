"""The Python code of the pages without a test of their own runs."""

import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import ersac

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# pages with a test_docs_*.py of their own
ELSEWHERE = {"recipes.md", "scoreboard.md", "theory.md", "your-estimator.md"}
HERE = {"README.md", "getting-started.md", "zoo.md", "your-environment.md", "commands.md"}
HERE |= {"tracking.md"}
MOST_STEPS = 2_000  # of the examples of docs/your-environment.md, which show real budgets


def blocks(page: str) -> list[str]:
    path = ROOT / page if page == "README.md" else ROOT / "docs" / page
    return BLOCK.findall(path.read_text())


def run_blocks(page: str, names: dict, only: slice = slice(None)) -> dict:
    """The names that the blocks of a page define, one after another."""
    for number, code in enumerate(blocks(page)[only]):
        exec(compile(code, f"{page}, block {number}", "exec"), names)
    return names


def test_every_page_with_code_is_run_by_a_test():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert {path.name for path in pages if BLOCK.search(path.read_text())} == ELSEWHERE | HERE


def test_the_code_of_the_zoo_page_runs():
    assert "CombinationLock" not in repr(run_blocks("zoo.md", {})["policy"])


@pytest.mark.slow
def test_the_code_of_getting_started_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_blocks("getting-started.md", {})
    assert names["policy"].settings.env.depth == 8
    assert names["result"].evaluate(episodes=4, show=False).mean_return > 0


@pytest.mark.slow
def test_the_first_code_of_the_readme_solves_deep_sea(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run_blocks("README.md", {}, slice(0, 1))["result"]
    assert all(solved is not None for solved in result.summary()["solved_reliable"])
    assert (tmp_path / "deep-sea.png").exists()
    assert (tmp_path / "policy.npz").exists()


@pytest.mark.slow
def test_the_code_of_the_tracking_page_reads_an_exported_table(tmp_path, monkeypatch):
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    rows = {"agent": ["ersac"], "depth": [20], "solved_reliable": [818.0]}
    pandas.DataFrame(rows).to_parquet("seeds.parquet")
    run_blocks("tracking.md", {})


@pytest.mark.slow
def test_the_sweep_of_the_commands_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = run_blocks("commands.md", {})["sweep"]
    assert (len(sweep.runs), sweep.failed, sweep.missing) == (12, {}, {})


class Walk(gymnasium.Env):
    """What docs/your-environment.md calls MyEnv."""

    def __init__(self, size: int = 4) -> None:
        self.observation_space = gymnasium.spaces.Box(0, size, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        obs = np.full(1, self.steps, np.float32)
        return obs, float(action), self.steps == self.size, False, {}


@pytest.mark.slow
def test_the_code_of_your_environment_runs(tmp_path, monkeypatch):
    """With smaller budgets, and the names that the page leaves to its reader."""
    pytest.importorskip("flax")
    monkeypatch.chdir(tmp_path)
    train = ersac.train
    monkeypatch.setattr(
        ersac,
        "train",
        lambda *args, **changes: train(
            *args, **changes | {"steps": MOST_STEPS, "seed": 7, "show": False}
        ),
        raising=False,
    )
    names = run_blocks("your-environment.md", {"ersac": ersac, "MyEnv": Walk}, slice(0, 2))
    names["result"] = ersac.train("gym:CartPole-v1")
    obs = np.zeros(4, np.float32)
    names |= {"obs": obs, "observations": np.stack([obs] * 3)}
    run_blocks("your-environment.md", names, slice(2, 3))
    assert len(names["actions"]) == 3
    assert (tmp_path / "policy.gif").read_bytes().startswith(b"GIF")
