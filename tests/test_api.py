"""The Python API: `ersac.train` and its results, and the recorder."""

import subprocess
import sys

import numpy as np
import pytest

import ersac
from ersac import api
from ersac.runs import run_dir
from ersac.runs.recorder import MAP_SNAPSHOTS, Recorder

SMALL = {"depth": 6, "seeds": 2, "episodes": 300, "chunk": 10, "hidden": (8, 8), "show": False}


def test_train_returns_what_it_writes(tmp_path):
    result = ersac.train(
        "deep-sea", agent="ersac", out=tmp_path / "run", stop_when_solved=False, **SMALL
    )
    # The budget of episodes, not the end of the last chunk.
    assert [len(stats.goals) for stats in result.seeds] == [300, 300]
    seeds, metrics, snapshots = run_dir.read_results(tmp_path / "run")
    for returned, written in zip(result.seeds, seeds, strict=True):
        np.testing.assert_array_equal(returned.goals, written.goals)
        np.testing.assert_array_equal(returned.returns, written.returns)
    np.testing.assert_array_equal(result.metrics.values["tau"], metrics.values["tau"])
    assert result.steps_per_second == pytest.approx(result.steps / result.run_seconds)
    assert 0 < result.run_seconds < result.wall_seconds
    seed_count, rollouts_per_chunk, steps_per_rollout, chunks = 2, 10, 50, len(metrics.step)
    assert result.steps == seed_count * rollouts_per_chunk * steps_per_rollout * chunks
    np.testing.assert_array_equal(result.map_snapshots[-1].sigma, snapshots[-1].sigma)
    with pytest.raises(ersac.SettingsError, match="already exists"):
        ersac.train("deep-sea", out=tmp_path / "run", **SMALL)


@pytest.mark.parametrize("cuts", [[3, 50, 51, 700, 1100], range(7, 2000, 7)], ids=["long", "short"])
def test_the_recorder_solves_at_the_episode_of_solved_reliable(cuts):
    settings = api.make_settings(depth=5, seeds=1, episodes=2000)
    rng = np.random.default_rng(0)
    goals = rng.random(2000) < np.linspace(0.2, 1.2, 2000)
    recorder = Recorder(settings)
    for part in np.split(goals, cuts):
        recorder._update_solved(0, part)
        recorder.episodes[0] += len(part)
    from ersac.analysis.scores import solved_reliable

    assert recorder.solved_at[0] == solved_reliable(goals)


def test_map_snapshots_are_few_and_evenly_spaced():
    recorder = Recorder(api.make_settings(depth=2, seeds=1))
    for chunk in range(1, 1000):
        recorder.chunks, recorder.episodes[0] = chunk, chunk
        if recorder.wants_map_snapshot():
            recorder.add_map_snapshot(recorder.make_map_snapshot(*[np.eye(2)] * 3))
    episodes = [snapshot.episode for snapshot in recorder.map_snapshots]
    assert MAP_SNAPSHOTS / 2 <= len(episodes) <= MAP_SNAPSHOTS
    assert len(set(np.diff(episodes))) == 1


def test_importing_ersac_does_not_import_jax():
    code = "import sys, ersac, ersac.cli, ersac.api; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("uncertainty", ["ensemble", "posterior", "counts"])
@pytest.mark.parametrize("agent", ["ersac", "vanilla", "optimism"])
def test_every_agent_runs_with_every_uncertainty(agent, uncertainty):
    result = ersac.train("deep-sea", agent=agent, uncertainty=uncertainty, **SMALL)
    assert np.isfinite(result.metrics.values["entropy"]).all()
    assert result.summary()["agent"] == agent
    tau = result.metrics.values["tau"]
    moved = not np.allclose(tau[:, 0], tau[:, -1])
    assert moved == (agent == "ersac")
