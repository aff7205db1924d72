"""Tables read back by the tools they are for equal the facts."""

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
    """A run of each of two agents that have ended, one that was stopped, and one whose facts are damaged."""
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
    facts = bytearray((home / "damaged" / "facts.npz").read_bytes())
    facts[len(facts) // 2] ^= 1
    (home / "damaged" / "facts.npz").write_bytes(facts)
    (home / "empty").mkdir()
    return home


@pytest.fixture
def ersac(runs, capsys, monkeypatch):
    """A command inside the directory of the runs, without jax: its exit code, its lines, and its complaints."""
    monkeypatch.chdir(runs)

    def command(*argv):
        with pytest.raises(SystemExit) as stop:
            cli.main(list(argv))
        out, err = capsys.readouterr()
        return stop.value.code, out.splitlines(), err.splitlines()

    return command


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_row_an_episode_whatever_became_of_other_runs(runs, ersac, tmp_path, suffix):
    to = tmp_path / "new" / f"all.{suffix}"
    code, out, err = ersac(
        "export",
        "ersac",
        "stopped",
        "damaged",
        "empty",
        "gone",
        "vanilla",
        "--to",
        str(to),
        "--json",
    )
    assert code == 0
    assert [line.split(": ")[1] for line in err] == ["left out"] * 4
    assert [
        next(name for name in ("stopped", "damaged", "empty", "gone") if name in line)
        for line in err
    ] == [
        "stopped",
        "damaged",
        "empty",
        "gone",
    ]
    assert json.loads(out[-1]) == {
        "to": str(to),
        "what": "episodes",
        "rows": 520,
        "runs": 2,
        "left_out": ["stopped", "damaged", "empty", "gone"],
    }
    table = pandas.read_csv(to) if suffix == "csv" else pandas.read_parquet(to)
    assert list(table.columns) == ["run", "agent", "depth", "seed", "episode", "goal", "return"]
    assert table["goal"].dtype == bool
    assert set(table["depth"]) == {5}
    assert set(zip(table["run"], table["agent"], strict=True)) == {
        ("ersac", "ersac"),
        ("vanilla", "vanilla"),
    }
    for run in ("ersac", "vanilla"):
        for facts in run_dir.read_results(runs / run)[0]:
            mine = table[(table["run"] == run) & (table["seed"] == facts.seed)]
            np.testing.assert_array_equal(mine["episode"], np.arange(1, 131))
            np.testing.assert_array_equal(mine["goal"], facts.goals)
            np.testing.assert_array_equal(mine["return"].astype(np.float32), facts.returns)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_metrics(runs, ersac, tmp_path, suffix):
    to = tmp_path / f"metrics.{suffix}"
    assert ersac("export", "ersac", "--to", str(to), "--what", "metrics", "--quiet") == (0, [], [])
    table = pandas.read_csv(to) if suffix == "csv" else pandas.read_parquet(to)
    seeds, metrics, _ = run_dir.read_results(runs / "ersac")
    for place, facts in enumerate(seeds):
        mine = table[table["seed"] == facts.seed]
        np.testing.assert_array_equal(mine["step"], metrics.step)
        for name in ("tau", "entropy", "sigma2"):
            np.testing.assert_array_equal(
                mine[name].astype(np.float32), metrics.values[name][place]
            )


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_seeds_carry_their_verdicts_and_every_setting(runs, ersac, tmp_path, suffix):
    to = tmp_path / f"seeds.{suffix}"
    assert ersac("export", "ersac", "vanilla", "--to", str(to), "--what", "seeds")[0] == 0
    table = pandas.read_csv(to) if suffix == "csv" else pandas.read_parquet(to)
    assert list(table["seed"]) == [3, 4, 0, 1]
    assert list(table["first_seed"]) == [3, 3, 0, 0]
    assert list(table["hidden"]) == ["8 8"] * 4
    assert list(table["risk"]) == ["Seeking", "Seeking", "Neutral", "Neutral"]
    assert list(table["tau0"].isna()) == [False, False, True, True]
    told = [
        row
        for run in ("ersac", "vanilla")
        for row in json.loads((runs / run / "summary.json").read_text())["per_seed"]
    ]
    for name in ("episodes", "first_goal", "solved_bsuite", "solved_reliable"):
        assert [None if pandas.isna(value) else value for value in table[name]] == [
            row[name] for row in told
        ]
    if suffix == "parquet":
        assert {str(table[name].dtype) for name in ("seed", "episodes")} == {"int64"}


def test_what_cannot_be_is_one_line(ersac, tmp_path, monkeypatch):
    there = tmp_path / "there.csv"
    there.write_text("precious")
    for argv, words in [
        (("export",), "which runs"),
        (("export", "ersac"), "which runs"),
        (("export", "ersac", "--to", str(there)), "already exists"),
        (("export", "ersac", "--to", "x.cvs"), "must end in .csv or .parquet; did you mean .csv?"),
        (
            ("export", "ersac", "--to", "x.csv", "--what", "episode"),
            "unknown table 'episode'; did you mean episodes?",
        ),
        (("export", "ersac", "--too", "x.csv"), "did you mean --to?"),
        (("export", "stopped", "--to", "x.csv"), "nothing to export"),
    ]:
        code, out, err = ersac(*argv)
        assert (code, out) == (2, [])
        assert words in err[-1]
    assert there.read_text() == "precious"
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert ersac("export", "ersac", "--to", "x.parquet") == (
        2,
        [],
        ['ersac: --to x.parquet needs pyarrow: pip install "ersac[track]"'],
    )
