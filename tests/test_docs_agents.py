"""docs/agents.md has a section for every agent; `python tests/test_docs_agents.py --write`.

The tables of settings between the markers are made from the presets.
"""

import re
import sys
from pathlib import Path

from ersac import config
from ersac.cli.help import default_text
from ersac.config import presets
from ersac.config.agent import ActorCritic

PAGE = Path(__file__).parent.parent / "docs" / "agents.md"
BLOCK = re.compile(r"<!-- settings: (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)
NAMES = """
    tau0 tau_scale tau_learning_rate tau_min alpha mu members prior_scale sigma_scale
    reward_rate noise_variance outputs predictor_rate critic objective clip rollout gamma lam
    passes minibatch capacity batch updates policy_rate value_rate hidden learning_rate replay
    target_period mask_share
"""
MATTER = NAMES.split()
COLUMNS = {  # heading -> what `preset` is given
    "one environment (DeepSea)": {},
    "16 environments": {"env": config.Gym()},
    "`--network table`": {"network": "table"},
}


def values_of(agent_name: str, arguments: dict) -> dict[str, tuple[str, str]]:
    """The keyword and the default of the settings of an agent that matter."""
    agent = presets.preset(agent_name, **arguments)
    found = {}
    for path, hint, value in config.leaves(agent):
        text = default_text(value) or ("none" if value is None else str(value).lower())
        found[path[-1]] = (config.keyword(path[-1], hint), text)
    return {name: found[name] for name in MATTER if name in found}


def table(agent_name: str) -> str:
    """The settings of an agent in each setup that it has."""
    columns = {}
    for heading, arguments in COLUMNS.items():
        if arguments.get("network") == "table" and agent_name not in presets.TABLE_PRESETS:
            continue
        columns[heading] = values_of(agent_name, arguments)
    lines = ["| setting | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in MATTER:
        cells = [column.get(name, (None, ""))[1] for column in columns.values()]
        keywords = {column[name][0] for column in columns.values() if name in column}
        for keyword in keywords:
            lines.append(f"| `{keyword}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def agents_page(text: str) -> str:
    """The page with its tables as the presets are."""
    make = lambda found: f"<!-- settings: {found[1]} -->\n\n{table(found[1])}\n<!-- end -->"
    return BLOCK.sub(make, text)


def test_the_tables_are_those_of_the_presets():
    text = PAGE.read_text()
    assert text == agents_page(text), "python tests/test_docs_agents.py --write"


def test_every_agent_has_a_section_with_its_use_its_settings_and_its_limits():
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S))
    assert set(presets.PRESETS) <= set(sections)
    for name in presets.PRESETS:
        for part in ("**When to use it:**", "**What matters:**", "**Known limits:**"):
            assert part in sections[name], f"{name}: {part}"
        assert BLOCK.search(sections[name])[1] == name


def test_every_option_that_a_section_names_is_one_of_its_agent():
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S))
    for name, agent in presets.PRESETS.items():
        known = {config.option(path[-1], hint) for path, hint, _ in config.leaves(agent)}
        known |= {"--network", "--envs", "--steps", "--agent"}
        if isinstance(agent, ActorCritic):
            known.add("--uncertainty")
        prose = BLOCK.sub("", sections[name])
        named = set(re.findall(r"`(--[a-z0-9-]+)", prose))
        # ERSAC's scale of rewards with noise is that of any estimator of sigma.
        assert named <= known, (name, named - known)


def test_the_metrics_that_are_shown_are_explained():
    rows = PAGE.read_text().partition("## Metrics")[2].partition("\n## ")[0]
    for agent in presets.PRESETS.values():
        assert all(f"`{metric}`" in rows for metric in agent.METRICS)


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(agents_page(PAGE.read_text()))
