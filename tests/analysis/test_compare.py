"""Comparisons of agents: by hand, and of the committed packs."""

import json
from pathlib import Path

import numpy as np
import pytest

import ersac
from ersac import cli
from ersac.analysis import compare, pack, scores

GENERAL = Path(__file__).parents[2] / "results" / "general.json"


def test_running_means_are_those_of_slices():
    returns = np.random.default_rng(0).normal(size=250)
    slices = [returns[max(0, n - 100) : n].mean() for n in range(1, 251)]
    np.testing.assert_allclose(scores.running_means(returns), slices, rtol=1e-12)
    assert len(scores.running_means(np.zeros(0))) == 0


def test_the_probability_of_improvement_counts_pairs_and_halves_ties():
    assert scores.probability_of_improvement([1, 2], [0, 2, 3]) == pytest.approx((1 + 1 + 0.5) / 6)
    assert scores.probability_of_improvement([5], [1, 2]) == 1


def test_the_interval_of_a_median_covers_it():
    rng, covered = np.random.default_rng(0), 0
    for _ in range(300):
        low, high = scores.median_interval(rng.normal(size=9))
        assert low < high
        covered += low <= 0 <= high
    assert 0.9 <= covered / 300 <= 0.995


def test_a_curve_is_nan_before_its_first_episode():
    curve = compare.Curve(np.array([10, 20, 40]), np.array([1.0, 2.0, 3.0]), 50)
    np.testing.assert_array_equal(curve.at(np.array([9, 10, 19, 20, 45])), [np.nan, 1, 1, 2, 3])


def test_steps_to_reach_a_level_for_good():
    steps = np.arange(1, 6)
    assert compare.steps_to_reach(steps, np.array([0.0, 3, 1, 2, 3]), 2) == 4
    assert compare.steps_to_reach(steps, np.array([2.0, 2, 2, 2, 2]), 2) == 1
    assert compare.steps_to_reach(steps, np.array([np.nan, 2, 2, 2, 2]), 2) == 2
    assert compare.steps_to_reach(steps, np.array([3.0, 3, 3, 3, 1]), 2) is None


def run_compare(capsys, *argv):
    with pytest.raises(SystemExit) as stop:
        cli.main(["compare", *map(str, argv)])
    out, err = capsys.readouterr()
    return stop.value.code, out.splitlines(), err.splitlines()


def test_the_comparison_of_a_committed_pack(capsys):
    """Medians and pairs of seeds, recomputed from the summaries."""
    code, out, err = run_compare(capsys, "gone", GENERAL, "--json")
    assert (code, err) == (
        0,
        ["ersac: left out: cannot read gone/settings.json: No such file or directory"],
    )
    comparisons = json.loads(out[-1])["comparisons"]
    (found,) = (pair for pair in comparisons if pair["env"] == "gym:MiniGrid-Empty-16x16-v0")
    ends = {"ersac": [], "vanilla": []}
    for run in pack.read_pack(GENERAL).runs:
        if run.env == found["env"]:
            ends[run.agent] += [seed["mean_return"] for seed in run.summary["per_seed"]]
    assert (
        found["agent"],
        found["other"],
        found["seeds"],
        found["other_seeds"],
        found["steps"],
    ) == ("ersac", "vanilla", 8, 8, 200_000)
    assert found["score"] == pytest.approx(np.median(ends["ersac"]), rel=1e-5)
    assert found["other_score"] == pytest.approx(np.median(ends["vanilla"]), rel=1e-5)
    assert found["improvement"] == np.mean(
        [one > another for one in ends["ersac"] for another in ends["vanilla"]]
    )
    assert (
        min(ends["ersac"]) - 1e-6
        <= found["low"]
        < found["score"]
        < found["high"]
        <= max(ends["ersac"]) + 1e-6
    )
    assert 0 < found["steps_to_other"] < 200_000
    assert len(comparisons) == 7
    assert len(out) == 1 + 4 * 7  # and four lines for a person


def test_one_agent_alone_is_an_error(tmp_path, capsys):
    general = pack.read_pack(GENERAL)
    runs = [run for run in general.runs if run.env == "gym:CartPole-v1"]
    assert len(runs) == 5
    pack.write_pack(general._replace(path=tmp_path / "cartpole.json", runs=runs))
    code, _, err = run_compare(capsys, tmp_path / "cartpole.json")
    assert code == 2
    assert err == [
        "ersac: nothing to compare: name runs of two agents in one environment, each of which has"
        " ended an episode"
    ]
    assert run_compare(capsys)[::2] == (2, ["ersac: which runs? ersac compare PATH [PATH ...]"])


@pytest.mark.parametrize(
    ("steps", "line"),
    [
        (32, "nothing to compare: "),
        (300, "gym:CartPole-v1: a seed has ended no episode by 1 steps"),
    ],
)
def test_a_run_without_an_ended_episode_is_an_error(tmp_path, capsys, monkeypatch, steps, line):
    """In 32 steps no episode of 16 CartPoles ends; and a run may end before another's first."""
    for agent in ("ersac", "vanilla"):
        ersac.train(
            "gym:CartPole-v1",
            agent=agent,
            steps=steps,
            rollout=2,
            hidden=(8,),
            lockstep=True,
            show=False,
            out=tmp_path / agent,
        )
    if steps == 300:
        monkeypatch.setattr(compare.Curve, "end", 1)
    code, _, err = run_compare(capsys, tmp_path / "ersac", tmp_path / "vanilla")
    assert (code, len(err)) == (2, 1)
    assert err[0].startswith(f"ersac: {line}")
