"""docs/equations.md is made of citations.

`python tests/test_docs_equations.py --write` writes the page.
"""

import sys
from pathlib import Path

from ersac.analysis import equations
from ersac.analysis.equations import Citation, Citations
from ersac.analysis.paper import RESULTS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "equations.md"
HEAD = """# Equations, code and tests

Where each equation and result of the paper is implemented, and where it is tested. Docstrings and
comments cite the paper's labels in brackets; this page is made of those citations by
`python tests/test_docs_equations.py --write`.

| label | what it is | code | tests |
|---|---|---|---|
"""
NOT_USED: dict[str, str] = {}  # label -> why nothing in src cites it


def list_citations(citations: list[Citation], folder: str) -> str:
    """Citations for a cell of a table, grouped by file."""
    files: dict[str, list[str]] = {}
    for citation in citations:
        files.setdefault(citation.file.removeprefix(folder), []).append(citation.name)
    return "; ".join(
        f"`{file}`" + (f" ({', '.join(filter(None, names))})" if any(names) else "")
        for file, names in files.items()
    )


def equations_page(citations: Citations) -> str:
    """The page."""
    lines = []
    for label, (code, tests) in citations.items():
        listed = NOT_USED.get(label) or list_citations(code, "src/ersac/")
        cells = (f"`{label}`", RESULTS[label], listed, list_citations(tests, "tests/"))
        lines.append(f"| {' | '.join(cells)} |")
    return HEAD + "\n".join(lines) + "\n"


def test_the_page_has_the_citations_of_the_code():
    page = equations_page(equations.find_citations(ROOT))
    assert PAGE.read_text() == page, "python tests/test_docs_equations.py --write"


def test_every_equation_is_cited_and_tested_or_listed_as_not_used():
    for label, (code, tests) in equations.find_citations(ROOT).items():
        assert bool(code) != (label in NOT_USED), label
        assert tests or label in NOT_USED, f"no test cites {label}"


def test_a_citation_belongs_to_the_innermost_function(tmp_path):
    folder = tmp_path / "src"
    folder.mkdir()
    code = (  # braces stand for brackets, which would be citations of this file
        '"""Of a module {e-kpi}."""\n'
        "class Game:\n"
        '    """{before l-kl, e-saddle}"""\n'
        "    def value(self):\n"
        "        # {proof of\n"
        "        # t-main}\n"
        "        return x{0}  # {e-saddle} {e-saddle}\n"
        'y = "{unknown-label}"\n'
    )
    code = code.replace("{", "[").replace("}", "]")
    (folder / "game.py").write_text(code)
    found = equations.find_citations(tmp_path)
    of = lambda label: [str(citation) for citation in found[label].code]
    assert of("e-kpi") == ["src/game.py"]
    assert of("l-kl") == ["src/game.py:Game"]
    assert of("t-main") == ["src/game.py:value"]
    assert of("e-saddle") == ["src/game.py:Game", "src/game.py:value"]
    assert not any(cited.tests for cited in found.values())
    assert list(found) == list(RESULTS)


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(equations_page(equations.find_citations(ROOT)))
