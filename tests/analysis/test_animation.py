"""The animation of a DeepSea run: exact maps, one frame a chunk, a sound GIF."""

import io
import itertools
import json

import numpy as np
import pytest
from PIL import Image

from ersac import api, config
from ersac.analysis import animation
from ersac.analysis.animation import MapFrame, pass_probabilities
from ersac.cli.main import main
from ersac.runs import run_dir

DEPTH = 4


def make_frames(count: int, depth: int = DEPTH) -> list[MapFrame]:
    rng = np.random.default_rng(0)
    visits = np.tril(rng.integers(1, 50, (depth, depth)))
    maps = (visits, rng.uniform(0, 0.1, (depth, depth)), rng.uniform(size=(depth, depth)))
    return [MapFrame(10 * n, n / count, *maps) for n in range(1, count + 1)]


def test_occupancy_is_that_of_all_action_sequences():
    right = np.random.default_rng(1).uniform(size=(DEPTH, DEPTH))
    expected = np.zeros((DEPTH, DEPTH))
    for moves in itertools.product((False, True), repeat=DEPTH - 1):
        column, probability, cells = 0, 1.0, [(0, 0)]
        for row, move in enumerate(moves):
            probability *= right[row, column] if move else 1 - right[row, column]
            column = min(column + 1, DEPTH - 1) if move else max(column - 1, 0)
            cells.append((row + 1, column))
        for cell in cells:
            expected[cell] += probability
    np.testing.assert_allclose(pass_probabilities(right), expected, atol=1e-12)


def test_occupancy_of_right_moves_is_the_diagonal():
    np.testing.assert_array_equal(pass_probabilities(np.ones((DEPTH, DEPTH))), np.eye(DEPTH))


@pytest.mark.parametrize(("episodes", "frames", "chunk"), [(1000, 70, 6), (10, 100, 1)])
def test_a_run_is_cut_into_about_as_many_chunks_as_frames(episodes, frames, chunk):
    settings = api.make_settings("deep-sea", depth=20)  # rollouts of 50 steps
    shortened = animation.shorten_chunks(settings, episodes, frames)
    assert shortened.run.chunk == chunk
    assert config.override(shortened, chunk=settings.run.chunk) == settings


def test_a_gif_has_every_frame_and_stays_at_the_last(tmp_path):
    path = tmp_path / "sea.gif"
    size = animation.write_animation(make_frames(5), "a <title> with $", path)
    image = Image.open(io.BytesIO(path.read_bytes()))
    assert (image.n_frames, size) == (5, path.stat().st_size)
    assert image.size == tuple(round(side * animation.DPI) for side in animation.SIZE)
    durations = []
    for number in range(5):
        image.seek(number)
        durations.append(image.info["duration"])
    assert durations == [animation.FRAME_MS] * 4 + [animation.LAST_FRAME_MS]


def test_visits_that_grow_are_seen_in_the_picture():
    """Frames share their colour scales, so a cell that is visited more often changes colour."""
    first, last = make_frames(2)
    last = last._replace(visits=first.visits * 20, episode=first.episode)
    images = animation.draw_frames([first, last._replace(goal_share=first.goal_share)], "")
    panel = [image[:, : image.shape[1] // 3].astype(int) for image in images]
    assert np.abs(panel[0] - panel[1]).max() > 50


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), "which run, and where to?"),
        (("run", "--out", "sea.mp4"), "--out must be a .gif file, not sea.mp4"),
        (("run", "--out", "sea.gif", "--frames", "1"), "--frames must be a whole number between 2"),
        (("run", "--out", "taken.gif"), "already exists"),
    ],
)
def test_bad_input_is_one_line(argv, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.gif").write_text("precious")
    with pytest.raises(SystemExit) as stop:
        main(["animate", *argv])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err
    assert (tmp_path / "taken.gif").read_text() == "precious"


@pytest.mark.slow
def test_the_repeated_run_has_the_maps_of_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    changes = {"depth": 6, "seeds": 1, "seed": 3, "hidden": (8,), "episodes": 300, "chunk": 12}
    run = api.train("deep-sea", out="run", show=False, stop_when_solved=False, **changes)
    collected: list[MapFrame] = []
    original = animation.write_animation

    def write(frames, title, path):
        collected.extend(frames)
        return original(frames, title, path)

    monkeypatch.setattr(animation, "write_animation", write)
    with pytest.raises(SystemExit) as stop:
        main(["animate", "run", "--out", "run.gif", "--frames", "9", "--json", "--quiet"])
    assert stop.value.code == 0
    result = json.loads(capsys.readouterr().out)
    assert result["frames"] == len(collected) == 9
    last = run.map_snapshots[-1]
    np.testing.assert_array_equal(collected[-1].visits, last.visits)
    np.testing.assert_array_equal(collected[-1].sigma, last.sigma)
    assert (tmp_path / "run.gif").read_bytes().startswith(b"GIF89a")
    assert run_dir.read_settings(tmp_path / "run").run.chunk == 12
