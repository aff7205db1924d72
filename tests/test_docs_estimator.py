"""The estimator that docs/your-estimator.md adds: its very text is run."""

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gymnasium")
PAGE = Path(__file__).parent.parent / "docs" / "your-estimator.md"


def test_the_page_adds_an_estimator_in_forty_lines_that_trains_and_counts():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 40
    names: dict = {}
    exec(compile(code, str(PAGE), "exec"), names)
    result = names["result"]
    assert result.steps >= 2_000
    sigma2 = result.metrics.values["sigma2"][0]
    assert np.isfinite(sigma2).all()
    assert sigma2[-1] < 0.75 * sigma2[0]  # what was seen often is known
    assert sigma2[0] <= names["SCALE"] ** 2 * (1 + 1e-6)
