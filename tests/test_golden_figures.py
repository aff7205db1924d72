"""Figures and comparisons of the committed sweeps have the numbers in golden_figures.json.

After an intended change run `python tests/test_golden_figures.py --write`.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ersac.analysis import compare, figures, pack
from ersac.sweeps import catalogue

RESULTS = Path(__file__).parents[1] / "results"
GOLDEN = Path(__file__).with_name("golden_figures.json")
RTOL = 1e-12
# Sweeps without a figure of their own in the paper are drawn in all three styles.
ANY_SWEEP = ("f-replay_v_no_replay", "f-robustness_lambda", "f-depth_250")
SWEEPS = [  # packs in results/, as NAME-SCALE
    "ablation-table-desk",
    "boot-dqn-table-desk",
    "depth-100-table-paper",
    "depth-250-table-desk",
    "local-desk",
    "local-100-paper",
    "replay-table-desk",
    "replay-100-table-desk",
    "replay-ablation-table-desk",
    "replay-law-table-desk",
    "replay-noise-table-desk",
    "robustness-lambda-table-desk",
    "robustness-rollout-table-desk",
    "robustness-tau-table-desk",
    "solve-time-table-paper",
    "stochastic-table-desk",
    "vanilla-wall-table-desk",
]
GENERAL = "general"  # runs in other environments, not a sweep
COMPARED = ["solve-time-table-paper", "stochastic-table-desk", "boot-dqn-table-desk", GENERAL]


def instances(name: str) -> list[catalogue.Instance]:
    """Return the runs of a sweep at one scale."""
    sweep, _, scale = name.rpartition("-")
    return catalogue.instances(catalogue.SWEEPS[sweep], catalogue.SWEEPS[sweep].sizes[scale])


def figure_numbers(name: str, out: Path) -> dict[str, Any]:
    """Return the numbers of `ersac figure` for a sweep, by figure label."""
    packed = pack.read_pack(RESULTS / f"{name}.json")
    runs = [(packed, instance) for instance in instances(name)]
    sweep, _, scale = name.replace("-table", "").rpartition("-")
    labels = [label for label, spec in figures.FIGURES.items() if spec.sweeps == (sweep,)]
    return {
        label: only_numbers(figures.make_figure(label, runs, scale, "", out))
        for label in labels or ANY_SWEEP
    }


def only_numbers(figure: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a figure; missing runs without the hash of their settings."""
    missing = [name.rpartition("-")[0] for name in figure["missing"]]
    return {"runs": figure["runs"], "missing": missing, "numbers": figure["numbers"]}


def comparisons(name: str) -> dict[str, Any]:
    """Return the numbers of `ersac compare` for a pack."""
    return compare.comparisons_json(compare.compare_runs([RESULTS / f"{name}.json"], pytest.fail))


def through_json(value: Any) -> Any:
    """Return a value as it is after writing and reading JSON."""
    return json.loads(json.dumps(value))


def assert_close(ours: Any, golden: Any, where: str = "") -> None:
    """Assert the same structure, and the same numbers up to rounding."""
    assert type(ours) is type(golden), where
    if isinstance(golden, dict):
        assert list(ours) == list(golden), where
        for key in golden:
            assert_close(ours[key], golden[key], f"{where}/{key}")
    elif isinstance(golden, list):
        assert len(ours) == len(golden), where
        for i, (one, other) in enumerate(zip(ours, golden, strict=True)):
            assert_close(one, other, f"{where}/{i}")
    elif isinstance(golden, float):
        assert ours == pytest.approx(golden, rel=RTOL, abs=0), where
    else:
        assert ours == golden, where


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text())


def test_every_committed_sweep_has_golden_numbers(golden):
    committed = {path.stem for path in RESULTS.glob("*.npz")} - {GENERAL}
    assert committed == set(SWEEPS) == set(golden["figures"])


@pytest.mark.parametrize("name", SWEEPS)
def test_figures_have_their_golden_numbers(golden, monkeypatch, tmp_path, name):
    monkeypatch.setattr(figures, "figure_png", lambda figure: b"")  # slow, and not compared
    assert_close(through_json(figure_numbers(name, tmp_path)), golden["figures"][name])


@pytest.mark.parametrize("name", COMPARED)
def test_comparisons_have_their_golden_numbers(golden, name):
    assert_close(through_json(comparisons(name)), golden["comparisons"][name])


def write() -> None:
    """Write the numbers of this source to golden_figures.json."""
    with tempfile.TemporaryDirectory() as out:
        drawn = {name: figure_numbers(name, Path(out)) for name in SWEEPS}
    golden = {"figures": drawn, "comparisons": {name: comparisons(name) for name in COMPARED}}
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/test_golden_figures.py --write")
    write()
