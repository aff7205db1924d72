"""The Python code of docs/theory.md runs, from top to bottom."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "theory.md"


@pytest.mark.slow
def test_the_code_of_the_theory_page_runs():
    text = PAGE.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert len(blocks) >= 10
    namespace: dict[str, object] = {}
    for block in blocks:
        # Leading blank lines, so that a traceback has the line numbers of the page.
        source = "\n" * (text[: block.start(1)].count("\n")) + block[1]
        exec(compile(source, str(PAGE), "exec"), namespace)
