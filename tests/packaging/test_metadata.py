"""The package: its extras, bounds and what a wheel contains."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import ersac

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def test_no_extra_is_unused_and_all_has_no_development_tools():
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    pages = "\n".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    for extra in EXTRAS.keys() - {"all", "dev"}:
        assert f"[{extra}]" in pages or f'"{extra}"' in source, extra
    (everything,) = EXTRAS["all"]
    assert "dev" not in everything
    for extra in EXTRAS.keys() - {"all", "dev", "cuda"}:  # cuda replaces jax's device
        assert extra in everything


def test_the_programs_of_the_docs_come_with_an_extra():
    """Those of the blocks of commands, besides ersac and what builds and installs it."""
    blocks = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    lines = [line for block in blocks.findall(pages) for line in block.splitlines()]
    called = {line.split()[0] for line in lines if line.strip()} & {"tensorboard", "wandb", "ray"}
    assert called >= {"tensorboard", "wandb"}
    users = {row for name, extra in EXTRAS.items() if name != "dev" for row in extra}
    assert called <= {re.split(r"[\[<>=]", row)[0] for row in users}


def test_the_version_and_the_authors_are_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text()
    version = PROJECT["version"]
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == version == ersac.__version__
    assert f"## {version} " in (ROOT / "CHANGELOG.md").read_text()
    authors = re.search(r"^authors:\n  - name: (.*)$", citation, re.MULTILINE)[1]
    assert [author["name"] for author in PROJECT["authors"]] == [authors]
    paper = re.search(r"^  url: (.*)$", citation, re.MULTILINE)[1]
    assert PROJECT["urls"]["Paper"] == paper
    assert paper in (ROOT / "README.md").read_text()
    assert f"license: {PROJECT['license']}\n" in citation


def test_a_source_distribution_has_no_records():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert "/results" in build["targets"]["sdist"]["exclude"]


def test_gymnax_brings_six_which_it_imports():
    assert "six" in EXTRAS["gymnax"]


def test_no_bound_excludes_a_newer_version():
    rows = [row for name, extra in EXTRAS.items() if name != "dev" for row in extra]
    assert not [row for row in [*PROJECT["dependencies"], *rows] if "<" in row or "==" in row]


def test_every_python_that_is_declared_is_tried():
    code = (ROOT / "tests" / "packaging" / "fresh_installs.py").read_text()
    (versions,) = re.findall(r"^PYTHONS = (.*)$", code, re.MULTILINE)
    tried = list(ast.literal_eval(versions))
    names = [row.rpartition(" :: ")[2] for row in PROJECT["classifiers"]]
    assert [name for name in names if name.startswith("3.")] == tried
    assert PROJECT["requires-python"] == f">={tried[0]}"


@pytest.mark.slow
def test_the_wheel_is_typed_and_has_no_tests(tmp_path):
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*pip, "-w", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "ersac/py.typed" in names
    assert "ersac/zoo/index.json" in names
    assert "ersac/zoo/cartpole.npz" in names
    assert not [name for name in names if not name.startswith("ersac")]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_wheel_works_in_fresh_environments():
    """All of them: minutes each, and packages are downloaded."""
    script = ROOT / "tests" / "packaging" / "fresh_installs.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
