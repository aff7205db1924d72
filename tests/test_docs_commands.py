"""Every command in README and docs can be pasted: the real parser accepts it."""

import contextlib
import re
import shlex
from pathlib import Path

import pytest

from ersac.cli import commands, report, reproduce, score, sweep, theory, watch, zoo
from ersac.cli.main import dispatch

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(?:bash|sh|shell|console)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS = {"ersac", "pip", "make", "python", "tensorboard", "wandb", "eval", "ray", "export"}
PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b|\.\.\.|\\\||\[")  # NAME, ..., |


def shell_lines(text: str) -> list[str]:
    """The lines of blocks of shell commands; blocks that do not begin with a command are none."""
    lines = []
    for block in BLOCK.findall(text):
        joined = block.replace("\\\n", " ").splitlines()
        if joined and joined[0].split(" ")[0].split("=")[0] in PROGRAMS | {"RAY_ADDRESS"}:
            lines += [line for line in joined if line.strip() and not line.startswith("#")]
    return lines


def inline_commands(text: str) -> list[str]:
    """Commands in running text and tables, without those that have placeholders."""
    spans = re.findall(
        r"(?<!`)`(ersac [^`]+)`(?!`)", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    )
    return [" ".join(span.split()) for span in spans if not PLACEHOLDER.search(span)]


LINES = [(page, line) for page in PAGES for line in shell_lines(page.read_text())]
INLINE = [(page, line) for page in PAGES for line in inline_commands(page.read_text())]


class Parsed(Exception):
    """The options were accepted, and nothing has been run."""


@pytest.fixture
def stop_after_parsing(monkeypatch):
    real = commands.parse

    def parse(*args):
        raise Parsed(real(*args))

    for module in (commands, report, reproduce, score, sweep, theory, watch, zoo):
        monkeypatch.setattr(module, "parse", parse)


def parse_command(words: list[str]) -> None:
    """Pass a command to the real parser; a SettingsError is a failure."""
    match words:
        case ["bench" | "doctor" | "completion", *_] | []:
            return
    try:
        with contextlib.suppress(SystemExit):  # of --help
            assert dispatch(words) == 0
    except Parsed as parsed:
        (options,) = parsed.args
        if isinstance(options, sweep.SweepOptions) and not options.name.endswith(".toml"):
            from ersac.sweeps import catalogue, ladder_tasks

            assert options.name in {"", *catalogue.SWEEPS, *ladder_tasks.LADDERS}


def test_there_are_commands_to_try():
    assert len(LINES) > 20
    assert len(INLINE) > 20


@pytest.mark.parametrize(("page", "line"), LINES, ids=lambda x: getattr(x, "name", x))
def test_a_line_of_a_block_can_be_pasted(page, line, stop_after_parsing):
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    assert words[0] in PROGRAMS, f"{page.name}: prose needs a # before it: {line}"
    if words[0] == "ersac":
        parse_command(words[1:])
    if words[0] == "pip":
        packages = [word for word in words[2:] if not word.startswith("-")]
        assert all(re.fullmatch(r"\.(\[[\w,]+\])?|[\w\[\]=.>-]+", word) for word in packages), line
        assert "or" not in packages
        assert not any(word.startswith("ersac") for word in packages), "it is not on an index"


@pytest.mark.parametrize(("page", "line"), INLINE, ids=lambda x: getattr(x, "name", x))
def test_a_command_in_running_text_is_accepted(page, line, stop_after_parsing):
    parse_command(shlex.split(line)[1:])
