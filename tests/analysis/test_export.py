"""Exported tables, read back by pandas, equal the records."""

import json
import shutil
import sys

import numpy as np
import pandas
import pytest

from ersac import api, cli, display
from ersac.analysis import picture
from ersac.runs import run_dir

SMALL = {
    "depth": 5,
    "seeds": 2,
    "hidden": (8, 8),
    "rollout": 20,
    "chunk": 5,
    "episodes": 130,
    "stop_when_solved": False,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Ended runs of two agents, a stopped run, and one whose results are damaged."""
    home = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picture, "draw_picture", lambda *_: None)
        patch.setattr(picture, "picture_png", lambda _: b"a picture")
        for agent, seed in (("ersac", 3), ("vanilla", 0)):
            api.run_experiment(
                api.make_settings(agent=agent, seed=seed, **SMALL),
                home / agent,
                display.NullDisplay(),
            )
    shutil.copytree(home / "ersac", home / "stopped")
    (home / "stopped" / "summary.json").unlink()
    shutil.copytree(home / "ersac", home / "damaged")
    data = bytearray((home / "damaged" / "facts.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (home / "damaged" / "facts.npz").write_bytes(data)
    (home / "empty").mkdir()
    return home


@pytest.fixture
def ersac(runs, capsys, monkeypatch):
    """Runs a command in the directory of the runs: exit code, stdout and stderr lines."""
    monkeypatch.chdir(runs)

    def command(*argv):
        with pytest.raises(SystemExit) as stop:
            cli.main(list(argv))
        out, err = capsys.readouterr()
        return stop.value.code, out.splitlines(), err.splitlines()

    return command


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_episodes_are_exported_and_unreadable_runs_left_out(runs, ersac, tmp_path, suffix):
    to = tmp_path / "new" / f"all.{suffix}"
    code, out, err = ersac(
        "export",
        "ersac",
        "damaged",
        "empty",
        "gone",
        "vanilla",
        "--to",
        str(to),
        "--json",
    )
    assert code == 0
    assert [line.split(": ")[1] for line in err] == ["left out"] * 3
    assert [
        next(name for name in ("damaged", "empty", "gone") if name in line) for line in err
    ] == ["damaged", "empty", "gone"]
    assert json.loads(out[-1]) == {
        "to": str(to),
        "what": "episodes",
        "rows": 520,
        "runs": 2,
        "left_out": ["damaged", "empty", "gone"],
    }
    table = pandas.read_csv(to) if suffix == "csv" else pandas.read_parquet(to)
    assert list(table.columns) == [
        *("run", "agent", "depth", "seed", "episode", "step", "length", "goal", "return")
    ]
    assert set(table["length"]) == {5}
    assert table["goal"].dtype == bool
    assert set(table["depth"]) == {5}
    assert set(zip(table["run"], table["agent"], strict=True)) == {
        ("ersac", "ersac"),
        ("vanilla", "vanilla"),
    }
    for run in ("ersac", "vanilla"):
        for stats in run_dir.read_results(runs / run)[0]:
            rows = table[(table["run"] == run) & (table["seed"] == stats.seed)]
            np.testing.assert_array_equal(rows["episode"], np.arange(1, 131))
            np.testing.assert_array_equal(rows["step"], 5 * np.arange(1, 131))
            np.testing.assert_array_equal(rows["goal"], stats.goals)
            np.testing.assert_array_equal(rows["return"].astype(np.float32), stats.returns)


def test_a_run_that_has_not_ended_is_exported_up_to_its_checkpoint(ersac, tmp_path):
    to = tmp_path / "all.csv"
    code, out, err = ersac("export", "stopped", "--to", str(to), "--json")
    assert (code, json.loads(out[-1])["rows"]) == (0, 260)
    assert err == [
        "ersac: stopped was stopped: its checkpoint after 700 steps; "
        "resume with: ersac resume stopped"
    ]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_metrics(runs, ersac, tmp_path, suffix):
    to = tmp_path / f"metrics.{suffix}"
    assert ersac("export", "ersac", "--to", str(to), "--what", "metrics", "--quiet") == (0, [], [])
    table = pandas.read_csv(to) if suffix == "csv" else pandas.read_parquet(to)
    seeds, metrics, _ = run_dir.read_results(runs / "ersac")
    for index, stats in enumerate(seeds):
        rows = table[table["seed"] == stats.seed]
        np.testing.assert_array_equal(rows["step"], metrics.step)
        for name in ("tau", "entropy", "sigma2", "value", "payoff", "critic", "reward"):
            np.testing.assert_array_equal(
                rows[name].astype(np.float32), metrics.values[name][index]
            )


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_seeds_have_their_metrics_and_every_setting(runs, ersac, tmp_path, suffix):
    to = tmp_path / f"seeds.{suffix}"
    assert ersac("export", "ersac", "vanilla", "--to", str(to), "--what", "seeds")[0] == 0
    table = pandas.read_csv(to) if suffix == "csv" else pandas.read_parquet(to)
    assert list(table["seed"]) == [3, 4, 0, 1]
    assert list(table["first_seed"]) == [3, 3, 0, 0]
    assert list(table["hidden"]) == ["8 8"] * 4
    assert list(table["risk"]) == ["Seeking", "Seeking", "Neutral", "Neutral"]
    assert list(table["tau0"].isna()) == [False, False, True, True]
    summaries = [
        row
        for run in ("ersac", "vanilla")
        for row in json.loads((runs / run / "summary.json").read_text())["per_seed"]
    ]
    for name in ("episodes", "first_goal", "solved_bsuite", "solved_reliable"):
        assert [None if pandas.isna(value) else value for value in table[name]] == [
            row[name] for row in summaries
        ]
    if suffix == "parquet":
        assert {str(table[name].dtype) for name in ("seed", "episodes")} == {"int64"}


def test_errors_are_one_line(ersac, tmp_path, monkeypatch):
    existing = tmp_path / "there.csv"
    existing.write_text("precious")
    for argv, words in [
        (("export",), "which runs"),
        (("export", "ersac"), "which runs"),
        (("export", "ersac", "--to", str(existing)), "already exists"),
        (("export", "ersac", "--to", "x.cvs"), "must end in .csv or .parquet; did you mean .csv?"),
        (
            ("export", "ersac", "--to", "x.csv", "--what", "episode"),
            "unknown table 'episode'; did you mean episodes?",
        ),
        (("export", "ersac", "--too", "x.csv"), "did you mean --to?"),
        (("export", "missing", "--to", "x.csv"), "nothing to export"),
    ]:
        code, out, err = ersac(*argv)
        assert (code, out) == (2, [])
        assert words in err[-1]
    assert existing.read_text() == "precious"
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert ersac("export", "ersac", "--to", "x.parquet") == (
        2,
        [],
        ['ersac: --to x.parquet needs pyarrow: pip install ".[track]" in a checkout of ersac'],
    )
