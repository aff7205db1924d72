"""docs/settings.md lists every setting; `python tests/test_docs_settings.py --write` writes it."""

import dataclasses
import functools
import sys
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path

from ersac import config
from ersac.cli import commands
from ersac.cli.help import default_text
from ersac.config import agent, env, run

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
HEAD = """# Settings

Every setting with its default and its meaning. In the shell `learning_rate` is `--learning-rate`,
and a switch that is on is turned off with `--no-` before its name. An agent's preset changes some
defaults: `ersac train ENV --agent NAME --help-all`, or `ersac.settings(env, agent)` in Python, has
those of an agent in an environment. This page is made from the docstrings in `src/ersac/config`.
"""
GROUPS = {
    "Environment": (env.DeepSea, env.Gymnax, env.Gym, env.Atari, env.Normalise),
    "Run": (run.Run, run.EvalDuring, run.Track, run.Evaluate),
    "Agent": (agent.ActorCritic, agent.BootDQN),
    "Risk": (agent.Seeking, agent.LocalSeeking, agent.Neutral, agent.Optimist),
    "Replay": (agent.OnPolicy, agent.Replay),
    "Uncertainty": (*config.UNCERTAINTIES.values(),),
}


def table(cls: type) -> list[str]:
    """The settings of a class as a table."""
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    owner = cls()
    for path, hint, value in config.leaves(owner):
        holder = functools.reduce(getattr, path[:-1], owner)
        text = config.field_docs(type(holder)).get(path[-1])
        if type(holder) is cls and text:
            default = default_text(value) or ("" if value is None else str(value).lower())
            cells = (f"`{config.keyword(path[-1], hint)}`", default, text)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def settings_page() -> str:
    """The page."""
    lines = [HEAD]
    for title, classes in GROUPS.items():
        lines += [f"## {title}", ""]
        for cls in classes:
            summary = textwrap.wrap(" ".join((cls.__doc__ or "").split()), 100)
            lines += [f"### {cls.__name__}", "", *summary, "", *table(cls), ""]
    return "\n".join(lines)


def test_the_page_has_every_setting_as_it_is():
    assert PAGE.read_text() == settings_page(), "python tests/test_docs_settings.py --write"


def nested_settings(cls: type) -> Iterator[type]:
    """The classes of the settings that are nested in a class."""
    for hint in typing.get_type_hints(cls).values():
        for part in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(part):
                yield part
                yield from nested_settings(part)


def test_the_page_has_the_options_of_train_and_eval():
    """Except those of the commands themselves, such as --out and --json."""
    options = (commands.TrainOptions, commands.EvalOptions)
    wanted = {cls for owner in options for cls in nested_settings(owner)}
    listed = {cls for classes in GROUPS.values() for cls in classes}
    assert wanted - listed == {commands.OutputOptions, agent.CustomEstimator}


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(settings_page())
