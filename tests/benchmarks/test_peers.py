"""benchmarks/peers.py without Stable-Baselines3: what it records, and what the ladder reads."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import peers
from ersac.analysis.ladder_table import read_peer
from ersac.envs.gym.spaces import observation_codec
from ersac.sweeps.ladder_tasks import TASKS


def test_missing_packages_are_named_with_the_pip_command():
    """Stable-Baselines3 is not a dependency of ersac: the test hides it."""
    path = Path(__file__).parents[2] / "benchmarks" / "peers.py"
    code = (
        "import runpy, sys; sys.modules['stable_baselines3'] = None;"
        " runpy.run_path(sys.argv.pop(), run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.startswith(
        "peers: stable_baselines3 not installed: pip install stable-baselines3 gymnasium"
    )
    assert done.stderr.count("\n") == 1


def test_recorder_counts_goals_as_the_ladder_does_and_nothing_beyond_the_budget():
    recorder = peers.EpisodeRecorder(budget=3, target=0.5)
    for episode_return, info in ((0.4, {}), (0.5, {}), (0.0, {"is_success": True}), (1.0, {})):
        recorder.count_step()
        recorder.end_episode(episode_return, info)
    assert recorder.as_json() == {
        "returns": [0.4, 0.5, 0.0],
        "goals": [False, True, True],
        "when": [1, 2, 3],
    }
    assert recorder.mean_return() == pytest.approx(0.3)


def test_peer_observations_equal_ours():
    """One-hot codes of a grid, in the same order."""
    recorder = peers.EpisodeRecorder(budget=10, target=None)
    theirs = peers.make_recorded_env("doorkey-16-fixed", 4, recorder)
    ours = TASKS["doorkey-16-fixed"].make_gym_env(4)
    _, encode = observation_codec(ours.observation_space)
    batch = lambda obs: {key: np.asarray(value)[None] for key, value in obs.items()}
    np.testing.assert_array_equal(theirs.reset(seed=0)[0], encode(batch(ours.reset(seed=0)[0]))[0])
    np.testing.assert_array_equal(theirs.step(2)[0], encode(batch(ours.step(2)[0]))[0])
    assert recorder.steps == 1


def walk_right(task: str, seed: int, steps: int, recorder: peers.EpisodeRecorder) -> None:
    """An agent that presses action 1 in one environment, as Stable-Baselines3 would step it."""
    env = peers.make_recorded_env(task, seed, recorder)
    env.reset(seed=seed)
    while recorder.steps < steps:
        _, _, terminated, truncated, _ = env.step(1)
        if terminated or truncated:
            env.reset()


@pytest.fixture
def without_sb3(monkeypatch):
    monkeypatch.setattr(peers, "PACKAGES", {"gymnasium": "gymnasium"})
    monkeypatch.setitem(peers.AGENTS, "ppo", walk_right)


def test_main_writes_what_the_ladder_reads(without_sb3, tmp_path, capsys):
    path = tmp_path / "peers" / "a.json"
    argv = ["--task", "deep-sea-10", "--agent", "ppo", "--steps", "35", "--json", str(path)]
    peers.main([*argv, "--seed", "1001"])
    peer = read_peer(path)
    assert (peer.task, peer.agent, peer.steps) == ("deep-sea-10", "sb3-ppo", 35)
    assert peer.stats.seed == 1001
    assert peer.stats.steps.tolist() == [10, 20, 30]  # episodes of DeepSea 10 have ten steps
    assert set(json.loads(path.read_text())["versions"]) == set(peers.VERSIONS)
    assert capsys.readouterr().out.startswith("3 episodes; mean return ")
    with pytest.raises(SystemExit, match="already exists"):
        peers.main(argv)
