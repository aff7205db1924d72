"""The path of somebody new: a clone, the README's two commands, its environment, a report."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from ersac.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LOCK_KEYS = [3, 0, 2, 1, 1, 3, 2, 0, 1, 0]


def run(clone: Path, *command: str) -> str:
    """What a command in the clone prints; it has to succeed."""
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_the_readme_has_the_two_commands_and_a_short_environment():
    text = (ROOT / "README.md").read_text()
    shell = re.search(r"^```\n(make .*?)^```", text, re.MULTILINE | re.DOTALL)[1]
    commands = [line.split("#")[0].strip() for line in shell.splitlines()]
    assert commands == ["make train", "make test"]
    own = BLOCK.findall(text)[1].partition("result =")[0]
    body = [line for line in own.splitlines() if line.strip() and "import" not in line]
    assert len(body) <= 10


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_clone_trains_tests_and_learns_the_environment_of_the_readme(tmp_path):
    clone = tmp_path / "ersac"
    run(tmp_path, "git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(clone))
    run(clone, "make", "train", "ARGS=--depth 8 --seeds 2 --quiet --out runs/first")
    assert (clone / "runs" / "first" / "picture.png").exists()
    run(clone, "make", "test", "ARGS=tests/test_config.py tests/test_docs_site.py")
    code = BLOCK.findall((clone / "README.md").read_text())[1]
    assert "steps=60_000)" in code
    script = code.replace("steps=60_000)", 'steps=60_000, out="runs/lock", show=False)')
    (clone / "lock.py").write_text(script)
    program = str(clone / ".venv" / "bin")
    assert json.loads(run(clone, f"{program}/python", "lock.py").splitlines()[-1]) == LOCK_KEYS
    if "report" in COMMANDS:
        run(clone, f"{program}/ersac", "report", "runs/first", "runs/lock", "--out", "report.html")
        text = (clone / "report.html").read_text()
        assert "lambda" in text  # what the README passes
        assert "deep-sea" in text
