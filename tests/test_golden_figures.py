"""Figures and comparisons of the committed sweeps have the numbers in golden_figures.json.

An intended change of them is written by `python tests/test_golden_figures.py --write`.
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
# A sweep that no figure of the paper is made of is drawn in each of the three ways there are.
ANY_SWEEP = ("f-replay_v_no_replay", "f-robustness_lambda", "f-depth_250")
SWEEPS = [  # packs in results/: the sweep's name and its scale
    "ablation-table-desk",
    "boot-dqn-table-desk",
    "depth-100-table-paper",
    "depth-250-table-desk",
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
GENERAL = "general"  # runs in other environments, which are no sweep
COMPARED = ["solve-time-table-paper", "stochastic-table-desk", "boot-dqn-table-desk", GENERAL]


def instances(name: str) -> list[catalogue.Instance]:
    sweep, _, scale = name.rpartition("-")
    return catalogue.instances(catalogue.SWEEPS[sweep], catalogue.SWEEPS[sweep].sizes[scale])


def figure_numbers(name: str, out: Path) -> dict[str, Any]:
    """What `ersac figure` computes from a sweep, by the label of the figure."""
    packed = pack.read_pack(RESULTS / f"{name}.json")
    wanted = [(packed, instance) for instance in instances(name)]
    made_of, _, scale = name.rpartition("-table-")
    own = [label for label, spec in figures.FIGURES.items() if spec.sweeps == (made_of,)]
    found = {
        label: figures.make_figure(label, wanted, scale, "", out) for label in own or ANY_SWEEP
    }
    return {label: only_numbers(told) for label, told in found.items()}


def only_numbers(figure: dict[str, Any]) -> dict[str, Any]:
    """What a figure shows; missing runs without the hash of their settings, which names decide."""
    missing = [name.rpartition("-")[0] for name in figure["missing"]]
    return {"runs": figure["runs"], "missing": missing, "numbers": figure["numbers"]}


def comparisons(name: str) -> dict[str, Any]:
    """What `ersac compare` computes from a pack."""
    return compare.comparisons_json(compare.compare_runs([RESULTS / f"{name}.json"], pytest.fail))


def as_read(value: Any) -> Any:
    """As it is once it was written to JSON."""
    return json.loads(json.dumps(value))


def assert_close(ours: Any, golden: Any, where: str = "") -> None:
    """The same structure, and the same numbers up to rounding."""
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


def test_every_committed_sweep_is_checked(golden):
    committed = {path.name.partition(".")[0] for path in RESULTS.glob("*-table-*")}
    assert committed == set(SWEEPS) == set(golden["figures"])


@pytest.mark.parametrize("name", SWEEPS)
def test_figure_numbers(golden, monkeypatch, tmp_path, name):
    monkeypatch.setattr(figures, "figure_png", lambda figure: b"")  # takes longer than all the rest
    assert_close(as_read(figure_numbers(name, tmp_path)), golden["figures"][name])


@pytest.mark.parametrize("name", COMPARED)
def test_comparisons(golden, name):
    assert_close(as_read(comparisons(name)), golden["comparisons"][name])


def write() -> None:
    """Make what this source computes the golden numbers."""
    with tempfile.TemporaryDirectory() as out:
        drawn = {name: figure_numbers(name, Path(out)) for name in SWEEPS}
    golden = {"figures": drawn, "comparisons": {name: comparisons(name) for name in COMPARED}}
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/test_golden_figures.py --write")
    write()
