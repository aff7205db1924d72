"""The notebooks of docs run; `python tests/test_docs_notebooks.py --write` makes their pages.

A notebook is committed without outputs. Its page in the site has its text, its code and, in
docs/images, the pictures of the run that wrote the page.
"""

import base64
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"
IMAGES = FOLDER.parent / "images"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
nbformat = pytest.importorskip("nbformat")


def read_notebook(name: str):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def execute(name: str):
    """The notebook after running all of its cells; the first error is raised."""
    nbclient = pytest.importorskip("nbclient")
    notebook = read_notebook(name)
    return nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3").execute()


def pictures(cell) -> list[str]:
    """The PNG images that a cell shows, in base64."""
    data = [output.get("data", {}) for output in cell.get("outputs", [])]
    return [part["image/png"] for part in data if "image/png" in part]


def notebook_page(name: str, shown: list[int]) -> str:
    """The page of a notebook; `shown` are the numbers of the cells that show a picture."""
    notebook = read_notebook(name)
    parts = []
    for number, cell in enumerate(notebook.cells):
        parts.append(
            cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```"
        )
        if number in shown:
            parts.append(f"![Output of the code above](../images/{name}-{number}.png)")
    title, _, rest = parts[0].partition("\n")
    note = f"*This page is the notebook [{name}.ipynb]({name}.ipynb), which the tests run.*"
    return "\n\n".join([title, note, rest.strip(), *parts[1:]]) + "\n"


def stored_pictures(name: str) -> list[int]:
    return sorted(int(path.stem.rpartition("-")[2]) for path in IMAGES.glob(f"{name}-*.png"))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_valid_and_has_no_outputs(name):
    notebook = read_notebook(name)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert not any(cell.outputs or cell.execution_count for cell in code)


@pytest.mark.parametrize("name", NAMES)
def test_its_page_has_its_text_and_its_code(name):
    page = (FOLDER / f"{name}.md").read_text()
    assert page == notebook_page(name, stored_pictures(name)), (
        "python tests/test_docs_notebooks.py --write"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name):
    executed = execute(name)
    shown = [number for number, cell in enumerate(executed.cells) if pictures(cell)]
    assert shown == stored_pictures(name)
    text = "".join(
        output.get("text", "") for cell in executed.cells for output in cell.get("outputs", [])
    )
    if name == "your-environment":
        assert "not in the observation space" in text or "observation" in text
        assert "return 1.00, length 12 steps" in text
        assert "buttons: [1, 0, 0, 1, 1, 1, 0, 1, 0, 0, 1, 0]" in text


def write_pages() -> None:
    """Run the notebooks, store their pictures and write their pages."""
    for name in sys.argv[2:] or NAMES:
        for old in IMAGES.glob(f"{name}-*.png"):
            old.unlink()
        for number, cell in enumerate(execute(name).cells):
            for text in (output.get("text") for output in cell.get("outputs", [])):
                print(text or "", end="")
            for image in pictures(cell):
                (IMAGES / f"{name}-{number}.png").write_bytes(base64.b64decode(image))
        (FOLDER / f"{name}.md").write_text(notebook_page(name, stored_pictures(name)))


if __name__ == "__main__" and sys.argv[1:2] == ["--write"]:
    write_pages()
