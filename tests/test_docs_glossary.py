"""docs/glossary.md has the words that are shown without an explanation."""

import re
from pathlib import Path

from ersac import config

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "glossary.md").read_text()
ROWS = re.findall(r"^\| ([\w, -]+) \|", PAGE, re.MULTILINE)[1:]  # without the head
WORDS = [word for row in ROWS for word in row.split(", ")]


def test_the_words_are_sorted_and_occur_elsewhere():
    assert sorted(ROWS, key=lambda row: row.lower().replace("-", "")) == ROWS
    others = " ".join(p.read_text().lower() for p in DOCS.glob("*.md") if p.name != "glossary.md")
    assert [word for word in WORDS if word.lower() not in others] == []


def test_what_the_live_table_shows_is_explained():
    shown = {"goal", "solved", "seed", "staleness"}
    for agent in (config.ActorCritic, config.BootDQN):
        shown |= {name.removesuffix("2") for name in agent.METRICS}
    assert shown <= set(WORDS)


def test_the_words_of_the_settings_are_explained():
    """Those that are not everyday words of reinforcement learning."""
    settings = (DOCS / "settings.md").read_text()
    words = ("sigma", "tau", "K", "bonus", "chunk", "entropy", "member", "payoff", "per visit")
    words += ("prior", "rollout", "row", "solved", "V-trace")
    assert [word for word in words if word not in settings] == []
    assert set(words) <= set(WORDS)
