"""The Python code of docs/recipes.md runs."""

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gymnasium")
PAGE = Path(__file__).parent.parent / "docs" / "recipes.md"
RECIPES = {
    title: code
    for title, code in re.findall(r"## (.*?)\n.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
}
NEEDS = {"Search settings with Optuna": "optuna", "Read what a run has recorded": "pandas"}


def run(title: str) -> dict:
    """Return the names that a recipe defines."""
    names: dict = {}
    exec(compile(RECIPES[title], f"{PAGE}: {title}", "exec"), names)
    return names


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_runs(title, tmp_path, monkeypatch):
    if title in NEEDS:
        pytest.importorskip(NEEDS[title])
    monkeypatch.chdir(tmp_path)
    names = run(title)
    match title:
        case "Evaluate during training, and keep the best policy":
            assert len(names["result"].evaluations) == 2
            best = max(row["mean_return"] for row in names["result"].evaluations)
            assert names["best"].evaluate(5, show=False).mean_return == best
            assert (tmp_path / "runs" / "pole" / "best-policy.npz").exists()
        case "Stop by a rule of your own":
            assert names["result"].stopped
            assert names["result"].steps < 20_000
        case "Record metrics of your own":
            assert [steps for steps, _ in names["confidence"]] == (
                names["result"].metrics.step.tolist()
            )
        case "Search settings with Optuna":
            assert len(names["study"].trials) == 4
            assert names["study"].best_value > 0
        case "Read what a run has recorded":
            assert len(names["table"]) == len(names["returns"]) == len(names["lengths"])
            np.testing.assert_array_equal(names["table"]["step"], names["steps"])
