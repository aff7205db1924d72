"""The table of docs/zoo.md is that of the index; `python tests/test_docs_zoo.py --write`."""

import re
import sys
from pathlib import Path

from ersac.policy.zoo import zoo_agents

PAGE = Path(__file__).parent.parent / "docs" / "zoo.md"
BLOCK = re.compile(r"(<!-- zoo -->\n).*?(<!-- end -->)", re.DOTALL)


def table() -> str:
    """A row for each agent that comes with the package."""
    lines = ["| name | return (95 %) | episodes | settings | kB | trained with |", "|---" * 6 + "|"]
    for agent in zoo_agents().values():
        interval = f"{agent.mean_return:.4g} ({agent.low:.4g} to {agent.high:.4g})"
        sampled = ", `--sample`" if agent.sample else ""
        cells = [f"`zoo:{agent.name}`", interval, f"{agent.episodes}{sampled}"]
        cells += [f"`{agent.settings_hash}`", f"{agent.bytes / 1e3:,.0f}", f"`{agent.command}`"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def zoo_page(text: str) -> str:
    """The page with its table as the index is."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{table()}\n{found[2]}", text)


def test_the_table_is_that_of_the_index():
    text = PAGE.read_text()
    assert BLOCK.search(text)
    assert text == zoo_page(text), "python tests/test_docs_zoo.py --write"


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(zoo_page(PAGE.read_text()))
