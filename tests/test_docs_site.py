"""The site: every page is in the navigation, links lead somewhere, and it builds unmoved."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The ids of the headings of a page, as Python-Markdown makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading.lower()).strip() for heading in headings)
    return {re.sub(r"[\s-]+", "-", heading) for heading in plain}


def test_the_navigation_has_every_page_once():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\nmarkdown_")[0]
    assert sorted(re.findall(r"(\S+\.md)$", nav, re.MULTILINE)) == PAGES


def test_the_index_names_every_page():
    text = (DOCS / "index.md").read_text()
    assert {page for page in PAGES if f"]({page})" not in text} == {"index.md"}


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page):
    path = DOCS / page
    for target in LINK.findall(FENCE.sub("", path.read_text())):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        other = (path.parent / file).resolve() if file else path
        assert other.is_file(), f"{page}: {target}"
        assert other.is_relative_to(DOCS), f"{page}: {target} is not part of the site"
        if anchor:
            assert anchor in anchors(other.read_text()), f"{page}: {target}"


def test_the_links_of_the_readme_lead_somewhere():
    for target in LINK.findall(FENCE.sub("", (ROOT / "README.md").read_text())):
        if not target.startswith("http"):
            file, _, anchor = target.partition("#")
            assert (ROOT / file).is_file(), target
            assert not anchor or anchor in anchors((ROOT / file).read_text()), target


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    """Strict mode fails for a missing page; griffe's notes on docstrings are warnings too."""
    pytest.importorskip("zensical")
    pytest.importorskip("mkdocstrings")
    for name in ("mkdocs.yml", "docs", "src"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "griffe" not in output, output
    assert "arning" not in output, output
    site = tmp_path / "site"
    assert {page.replace(".md", ".html") for page in PAGES} <= {
        path.relative_to(site).as_posix() for path in site.rglob("*.html")
    }
    api = (site / "api.html").read_text()
    for name in ("train", "load", "Result", "policy.policy.Policy.evaluate"):
        assert f'id="ersac.{name}"' in api, name
