"""The data and the tables of a report, and the command that writes it."""

import base64
import json
import math
import re
import shutil

import numpy as np
import pytest

import ersac
from ersac.analysis import scores
from ersac.cli import main
from ersac.config import SettingsError
from ersac.report import collect, curves, page, tables
from ersac.runs import run_dir
from ersac.runs.run_dir import MapSnapshot


def decode_levels(packed: dict) -> np.ndarray:
    """What the page computes, by the definition of 16-bit levels; or floats."""
    if "floats" in packed:
        return decode_floats(packed["floats"])
    levels = np.frombuffer(base64.b64decode(packed["data"]), "<u2").astype(float)
    values = packed["low"] + levels / 65534 * (packed["high"] - packed["low"])
    return np.where(levels == 65535, np.nan, values)


def decode_floats(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f4")


def test_levels_are_as_exact_as_a_screen():
    values = np.array([-3.0, 0.1, math.nan, 7.0, 2.5, math.inf])
    decoded = decode_levels(curves.encode_levels(values))
    finite = np.isfinite(values)
    np.testing.assert_allclose(decoded[finite], values[finite], atol=10 / 65534)
    assert np.isnan(decoded[~finite]).all()
    assert decode_levels(curves.encode_levels(np.full(3, 2.0))).tolist() == [2, 2, 2]


def test_thinned_curves_have_their_ends_and_more_points_early():
    index = curves.thin(10_000, 300)
    assert (index[0], index[-1]) == (0, 9_999)
    assert 200 <= len(index) <= 300
    assert np.all(np.diff(index) > 0)
    assert np.diff(index)[:20].max() < np.diff(index)[-20:].min()
    assert curves.thin(7, 300).tolist() == list(range(7))


def test_a_report_shows_every_run_in_its_state(runs):
    found = {run.name: run for run in collect.collect_runs([runs.home])}
    states = {path.name: found[str(path)].state for path in runs[1:]}
    assert states == {
        "first": "ended",
        "second": "ended",
        "other": "ended",
        "stopped": "stopped",
        "damaged": "damaged",
    }
    assert found[str(runs.damaged)].record is None
    assert "facts.npz is not what a run wrote" in found[str(runs.damaged)].why
    assert found[str(runs.stopped)].hint == f"ersac resume {runs.stopped}"
    stopped = ersac.read(runs.stopped)
    record = found[str(runs.stopped)].record
    assert record is not None
    assert [len(stats.goals) for stats in record.seeds] == [len(s.goals) for s in stopped.seeds]
    with pytest.raises(SettingsError, match="does not exist"):
        collect.collect_runs([runs.home / "nowhere"])
    with pytest.raises(SettingsError, match="no run in"):
        collect.collect_runs([runs.first / run_dir.CHECKPOINTS])


def test_agents_are_pooled_and_told_apart_by_as_few_settings_as_needed(runs):
    found = collect.collect_runs([runs.home])
    groups = tables.group_runs(found)
    assert [(group.label, len(group.members)) for group in groups] == [
        ("ersac, tau0 0.03", 3),
        ("ersac, tau0 0.5", 1),
    ]
    assert tables.distinguishing_settings(
        [
            {"a": "1", "b": "1", "network": "mlp"},
            {"a": "2", "b": "2", "network": "table"},
            {"a": "3", "b": "2", "network": "table"},
        ]
    ) == ["a"]


def test_the_table_of_agents_has_medians_and_intervals_over_all_seeds(runs):
    found = collect.collect_runs([runs.first, runs.second])
    (group,) = tables.group_runs(found)
    cells = tables.agent_row_cells(group, found, tables.score_runs(found))
    goals = [stats.goals for path in (runs.first, runs.second) for stats in ersac.read(path).seeds]
    shares = [float(array[-100:].mean()) for array in goals]
    low, high = scores.median_interval(shares)
    assert cells[4].number == pytest.approx(np.median(shares))
    assert cells[4].text == f"{np.median(shares):.0%} ({low:.0%} to {high:.0%})"
    solved = [scores.solved_reliable(array) for array in goals]
    count = sum(at is not None for at in solved)
    assert cells[5].number == count / 4
    low, high = scores.wilson_interval(count, 4)
    assert cells[5].text == f"{count} of 4 ({low:.0%} to {high:.0%})"


@pytest.mark.parametrize(
    ("env", "reached", "cell"),
    [
        ({"id": "MountainCarContinuous-v0"}, False, "0 of 2"),  # solved at a return of 90
        ({"id": "Pendulum-v1"}, False, "-"),  # Gymnasium says of no return that it is solved
        ({"id": "Pendulum-v1", "target": -200.0}, False, "0 of 2"),
        ({"id": "Pendulum-v1"}, True, "0 of 2"),  # one episode reached a goal
        ({"name": "Breakout-MinAtar"}, False, "-"),
    ],
)
def test_solved_is_shown_where_something_counts_as_solved(runs, env, reached, cell):
    (run,) = collect.collect_runs([runs.first])
    assert run.record is not None
    seeds = [stats._replace(goals=np.zeros(len(stats.goals), bool)) for stats in run.record.seeds]
    if reached:
        seeds[0].goals[3] = True
    record = run.record._replace(
        depth=None, seeds=seeds, settings=run.record.settings | {"env": env}
    )
    found = [run._replace(record=record)]
    (scores_of_run,) = tables.score_runs(found)
    assert tables.run_row_cells(found[0], "ersac", scores_of_run)[6].text == cell


def test_a_single_seed_has_no_interval():
    assert tables.score_cell(tables.Scores([0.5], [None]), True) == ("50%", 0.5)
    assert tables.solved_cells(tables.Scores([0.5], [None]), True)[1].text == "not solved"


def test_curves_are_those_of_the_records(runs):
    found = collect.collect_runs([runs.first])
    ((group,),) = [curves.encode_groups(found, [[0]])]
    stored = run_dir.read_finished_run(runs.first)
    seed = group["seeds"][1]
    goals = stored.seeds[1].goals
    packed = seed["values"]["goals"]
    episodes = decode_floats(seed["axes"][packed["axes"]]["episodes"])
    steps = decode_floats(seed["axes"][packed["axes"]]["steps"])
    np.testing.assert_array_equal(steps, episodes * 6)
    expected = [goals[max(0, n - 100) : n].mean() for n in episodes.astype(int)]
    np.testing.assert_allclose(decode_levels(packed), expected, atol=1e-4)
    tau, sigma2 = (stored.metrics.values[name][1] for name in ("tau", "sigma2"))
    for name, values in {
        "tau": tau,
        "sigma": np.sqrt(sigma2),
        "bonus": sigma2 / (2 * tau),
    }.items():
        packed = seed["values"][name]
        np.testing.assert_allclose(decode_levels(packed), values, rtol=1e-6)
        axes = seed["axes"][packed["axes"]]
        np.testing.assert_array_equal(decode_floats(axes["steps"]), stored.metrics.step)
        ended = [(np.arange(1, 301) * 6 <= step).sum() for step in stored.metrics.step]
        np.testing.assert_array_equal(decode_floats(axes["episodes"]), ended)


def test_bands_are_quantiles_of_all_seeds_and_ended_seeds_count_with_their_last_value():
    grid = np.arange(1.0, 101.0)
    seeds = [
        {"return": curves.PageCurve(x, 10 * x, level + 0 * x)}
        for level, x in ((0.0, grid), (1.0, grid[:50]), (2.0, grid), (4.0, grid))
    ]
    band = curves.encode_bands(seeds)["return"]["steps"]
    x = decode_floats(band["x"])
    assert (x[0], x[-1]) == (10, 1000)
    for name, value in {"low": 0.75, "middle": 1.5, "high": 2.5}.items():
        np.testing.assert_allclose(decode_levels(band[name]), value, atol=1e-4)


def test_many_seeds_are_thinned_and_their_bands_are_of_all(runs, monkeypatch):
    monkeypatch.setattr(curves, "MAX_SEEDS", 2)
    found = collect.collect_runs([runs.first, runs.second])
    (group,) = curves.encode_groups(found, [[0, 1]])
    assert (len(group["seeds"]), group["total"]) == (2, 4)
    assert set(group["bands"]) == set(group["seeds"][0]["values"])


def test_maps_come_back_from_disk_and_from_the_page(runs):
    stored = run_dir.read_finished_run(runs.first)
    assert len(stored.map_snapshots) > 2
    assert [s.episode for s in stored.map_snapshots] == sorted(
        {s.episode for s in stored.map_snapshots}
    )
    encoded = curves.encode_map_frames(stored.map_snapshots)
    cells = np.tril_indices(6)
    for frame, snapshot in zip(encoded["frames"], stored.map_snapshots, strict=True):
        visits = np.expm1(decode_levels(frame["log_visits"]))
        np.testing.assert_allclose(visits, snapshot.visits[cells], rtol=1e-3, atol=0.1)
        right = np.frombuffer(base64.b64decode(frame["right"]), np.uint8)
        np.testing.assert_array_equal(right, snapshot.moves_right[cells])


def test_the_greedy_moves_are_those_of_the_policy(runs):
    from ersac.envs.deep_sea import action_map

    result = ersac.read(runs.first)
    right = action_map(6, 0)
    last = result.map_snapshots[-1].moves_right
    for row, column in ((0, 0), (3, 1), (5, 5), (4, 4)):
        action = int(result.policy(row * 6 + column))
        assert last[row, column] == (action == right[row, column])


def test_maps_of_older_records_have_no_greedy_moves():
    maps = {"episode": np.array([3]), "visits": np.ones((1, 2, 2)), "sigma": np.ones((1, 2, 2))}
    (snapshot,) = run_dir.decode_maps(maps)
    assert (snapshot.episode, snapshot.moves_right) == (3, None)
    assert curves.encode_map_frames([snapshot])["frames"][0]["right"] is None
    again = run_dir.decode_maps(run_dir.encode_maps([snapshot]))[0]
    assert again.moves_right is None
    with pytest.raises(ValueError, match="instead of"):
        run_dir.decode_maps(maps | {"sigma": np.ones((1, 2, 3))})


def test_maps_beyond_the_budget_of_a_page_are_left_out(runs, monkeypatch):
    monkeypatch.setattr(curves, "MAP_BYTES", 1)
    found = collect.collect_runs([runs.first, runs.second, runs.other])
    groups = tables.group_runs(found)
    assert [shown["run"] for shown in page.choose_maps(found, groups)] == [str(runs.first)]


def test_settings_that_differ_are_listed_by_combination(runs):
    table = tables.settings_table(collect.collect_runs([runs.home]))
    assert table["names"] == ["tau0"]
    assert sorted(table["rows"]) == [("0.03", "3"), ("0.5", "1")]


def test_the_command_of_a_run_is_a_line_that_can_be_pasted(runs):
    (run,) = collect.collect_runs([runs.first])
    record = run.record
    assert record is not None
    line = lambda words: collect.command_line(record._replace(fingerprint={"command": words}))
    assert line(["ersac", "train", "a b"]) == "ersac train 'a b'"
    assert line(["__main__.py", "train"]) == "ersac train"
    assert line(["mine.py", "-x"]) == "python mine.py -x"
    assert (line(None), line("text"), collect.command_line(None)) == ("", "", "")


def test_a_reader_reads_again_only_what_has_changed(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs.first, run)
    read = collect.run_reader()
    (before,) = read(run)
    assert read(run)[0] is before
    (run / run_dir.SUMMARY).write_text("{}")
    assert read(run)[0].state == "damaged"


def test_ersac_report_writes_one_file_and_overwrites_none(runs, tmp_path, capsys):
    out = tmp_path / "report.html"
    with pytest.raises(SystemExit) as ended:
        main(["report", str(runs.home), "--out", str(out), "--json"])
    assert ended.value.code == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    states = {"ended": 3, "stopped": 1, "damaged": 1}
    assert printed == {"out": str(out), "bytes": out.stat().st_size, "runs": 5, **states}
    text = out.read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "connect-src 'none'" in policy[1]
    assert "unsafe-inline" not in policy[1].partition("script-src")[2].partition(";")[0]
    with pytest.raises(SystemExit) as refused:
        main(["report", str(runs.home), "--out", str(out)])
    assert refused.value.code == 2
    assert "already exists" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["report", str(runs.home)])
    assert "or --serve" in capsys.readouterr().err


def test_packs_are_reported_too(runs, tmp_path):
    from ersac.analysis import pack

    records = [pack.read_run(runs.first), pack.read_run(runs.other)]
    path = tmp_path / "two.json"
    pack.write_pack(pack.Pack(path, "two", "ersac sweep two", False, {"third": "nan"}, records))
    found = collect.collect_runs([path])
    assert [run.state for run in found] == ["ended", "ended", "failed"]
    content = page.report_content(found)
    assert content["data"]["maps"] == []
    assert set(content["data"]["groups"][0]["seeds"][0]["values"]) == {"goals", "return"}
    path.write_text("{}")
    assert [run.state for run in collect.collect_runs([path])] == ["damaged"]


def test_names_cannot_leave_their_place_on_the_page(runs, tmp_path):
    run = tmp_path / "<img src=x onerror=alert(1)>"
    shutil.copytree(runs.first, run)
    text = page.render_report(collect.collect_runs([run]), "</title><b>")
    assert "<img src=x" not in text
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert data is not None
    assert json.loads(data[1])["maps"][0]["run"] == str(run)


def test_videos_are_embedded_when_they_are_small(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs.first, run)
    (run / "small.mp4").write_bytes(b"video")
    (run / "large.gif").write_bytes(bytes(page.MAX_VIDEO + 1))
    large, small = page.embed_videos(collect.collect_runs([run]))
    assert "source" not in large
    assert small["source"] == "data:video/mp4;base64," + base64.b64encode(b"video").decode()


def test_a_picture_needs_two_snapshots_at_most():
    from ersac.analysis.picture import select_map_snapshots

    grid = np.zeros((8, 8))
    snapshots = []
    for columns in (1, 3, 4, 7):
        visits = grid.copy()
        visits[:, :columns] = 1
        snapshots.append(MapSnapshot(columns, visits, grid))
    assert [s.episode for s in select_map_snapshots(snapshots)] == [4, 7]
    assert select_map_snapshots(snapshots[:1]) == snapshots[:1]
    assert select_map_snapshots([]) == []
