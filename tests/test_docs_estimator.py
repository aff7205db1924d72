"""The Python code of docs/your-estimator.md runs."""

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gymnasium")
PAGE = Path(__file__).parent.parent / "docs" / "your-estimator.md"


def test_the_estimator_of_the_page_trains_and_its_sigma2_falls():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 40
    names: dict = {}
    exec(compile(code, str(PAGE), "exec"), names)
    result = names["result"]
    assert result.steps >= 2_000
    sigma2 = result.metrics.values["sigma2"][0]
    assert np.isfinite(sigma2).all()
    assert sigma2[-1] < 0.75 * sigma2[0]  # visited states become certain
    assert sigma2[0] <= names["SCALE"] ** 2 * (1 + 1e-6)
