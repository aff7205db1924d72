"""`ersac reproduce`: one page of every figure and claim, from packs, from runs and from nothing."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from ersac import display
from ersac.analysis import atari_figures, claims, figures, quantities, reproduction
from ersac.analysis.paper import FIGURES_OF_PAPER
from ersac.cli.main import main
from ersac.runs import disk, exits, run_dir
from ersac.runs.results import Result
from ersac.runs.run_dir import EpisodeStats, Metrics
from ersac.sweeps import campaign, catalogue, ladder
from ersac.sweeps.runner import Outcome
from ersac.theory import checks

pytest.importorskip("jinja2")
ROOT = Path(__file__).parents[2]
HEADINGS = (
    "Scope of reproducibility",
    "Methodology",
    "Results",
    "What was easy",
    "What was difficult",
    "Deviations from the paper",
)


def ersac(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    return stop.value.code


def reproduce(out: Path, *words: str) -> tuple[dict, str]:
    """The JSON object of a reproduction, and its page."""
    assert ersac("reproduce", *words, "--out", str(out), "--quiet") == 0
    return json.loads((out / "reproduction.json").read_text()), (
        out / "reproduction.html"
    ).read_text()


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """What the committed packs allow at the scale `desk`."""
    out = tmp_path_factory.mktemp("committed")
    return reproduce(out, "--scale", "desk", "--records", str(ROOT / "results"))


def test_the_page_has_the_six_headings_every_figure_and_every_claim(committed):
    result, page = committed
    places = [page.index(f">{heading}</h2>") for heading in HEADINGS]
    assert places == sorted(places)
    labels = [figure["label"] for figure in result["figures"]]
    assert labels == list(FIGURES_OF_PAPER)
    for label in labels:
        assert f'<figure id="{label}">' in page
    drawn = [figure for figure in result["figures"] if figure["file"]]
    assert {figure["label"] for figure in drawn} >= figures.FIGURES.keys()
    assert page.count('src="data:image/png;base64,') == len(drawn)
    assert all(figure["missing"] for figure in result["figures"] if not figure["file"])
    every = [claim for group in claims.CLAIMS.values() for claim in group]
    assert [row["statement"] for row in result["claims"]] == [claim.statement for claim in every]
    assert all(row["verdict"] in claims.VERDICTS for row in result["claims"])
    assert page.count('<span class="badge ') == len(every)


def test_the_page_needs_nothing_from_elsewhere(committed):
    _, page = committed
    assert not re.search(r"<script|<link|@import|url\(|(src|href)=\"(?!data:image|#)", page)


def test_verdicts_are_those_of_the_records(committed):
    result, _ = committed
    rows = {row["statement"]: row for row in result["claims"]}
    lost = rows["At depth 100 the on-policy agent reaches the goal in 99 of 100 seeds."]
    assert lost["verdict"] == claims.FAILED
    assert lost["measured"].startswith("95 of 100 seeds at depth 100")
    assert lost["records"] == ["depth-100-table-paper (100 of 100 runs; tables)"]
    law = rows["The solve time of ERSAC grows no faster than the square of the depth."]
    stored = json.loads(
        (ROOT / "results" / "figures" / "f-solve_time_v_depth-paper.json").read_text()
    )
    assert law["value"] == pytest.approx(stored["numbers"]["fit"]["ersac"]["exponent"])
    assert rows["Replay saves a factor of about four in episodes."]["value"] == pytest.approx(
        np.exp(np.mean(np.log([500 / 131, 1151 / 255, 2484 / 441, 3816 / 652, 5131 / 1041])))
    )
    deep = rows["At depth 250 ERSAC reaches the goal in 99 of 100 seeds within a million episodes."]
    assert (deep["verdict"], deep["measured"][:7]) == (claims.TOO_SMALL, "6 of 10")
    assert rows["The policy loss as printed in Algorithm 1, with - tau H, ascends the game."][
        "verdict"
    ] == (claims.FAILED)
    assert sum(result["verdicts"].values()) == len(rows)


def rounded(numbers: dict) -> dict:
    """Numbers as JSON, without the last digits, which depend on the processor."""
    return json.loads(json.dumps(numbers), parse_float=lambda text: f"{float(text):.9g}")


def test_figures_from_packs_have_the_committed_numbers(committed):
    result, _ = committed
    for figure in result["figures"]:
        stored = ROOT / "results" / "figures" / f"{figure['label']}-{figure['scale']}.json"
        if figure["sources"] and stored.exists():
            numbers = json.loads(stored.read_text())["numbers"]
            assert rounded(figure["numbers"]) == rounded(numbers), figure["label"]


def test_without_records_only_the_diagram_is_drawn_and_nothing_is_judged(tmp_path):
    empty = tmp_path / "<b>none"
    empty.mkdir()
    result, page = reproduce(tmp_path / "out", "--scale", "smoke", "--records", str(empty))
    drawn = [figure["label"] for figure in result["figures"] if figure["file"]]
    assert drawn == ["f-DeepSea"]
    assert {row["verdict"] for row in result["claims"]} == {claims.TOO_SMALL}
    assert "<b>none" not in page  # what is not ours is text
    assert "&lt;b&gt;none" in page
    assert sorted(disk.names(empty)) == []


def test_a_sweep_whose_package_is_missing_is_left_out_with_the_reason(monkeypatch):
    monkeypatch.setattr(campaign, "is_missing", lambda package: package == "ale_py")
    assert campaign.why_not("atari57") == "needs ale_py: pip install '.[atari]'"
    planned = campaign.plan_sweeps(["atari57", "depth-250"], "smoke", "", Path("none"), no_training)
    assert list(planned.refused) == ["atari57"]
    assert [plan.title for plan in planned.plans] == ["depth-250-smoke"]
    assert campaign.why_not("depth-251") == "there is no sweep depth-251"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--scale", "tiny"), "unknown scale 'tiny'"),
        (("--records", "nowhere"), "--records nowhere does not exist"),
        (("--engine", "rays"), "did you mean ray?"),
        (("--scales", "desk"), "did you mean --scale?"),
    ],
)
def test_bad_input_is_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ersac("reproduce", *words) == exits.SETTINGS
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def no_training(*args, **kwargs):
    raise AssertionError("nothing is trained")


def write_run(home: Path, instance: catalogue.Instance, solved: int | None) -> None:
    """The records of a run that is solved at an episode; None: its numbers were not finite."""
    directory = home / instance.name
    disk.make_directory(directory)
    run_dir.write_settings(directory, instance.settings)
    if solved is None:
        run_dir.write_failure(directory, instance.settings, "loss is nan")
        return
    goals = np.zeros(solved, bool)
    goals[-80:] = True
    stats = EpisodeStats(instance.settings.run.seed, goals, goals.astype(np.float32))
    metrics = Metrics(np.zeros(1), {})
    result = Result(instance.settings, [stats], metrics, [], 1000, 1.0, 1.0, 1.0, [])
    run_dir.write_results(directory, result.seeds, metrics, [], None, result.summary())


def test_a_run_that_failed_counts_as_not_solved(tmp_path):
    name = "robustness-rollout"
    wanted = catalogue.instances(catalogue.SWEEPS[name], catalogue.SWEEPS[name].sizes["smoke"])
    for instance in wanted[:-1]:
        solved = None if instance.line == "rollout-5" else 200
        write_run(tmp_path / f"{name}-smoke", instance, solved)
    source = reproduction.Reader(tmp_path).find(name, ("mlp", "table"), ("smoke",))
    assert (source.ended, source.failed, len(source.wanted)) == (14, 3, 15)
    assert source.describe() == (
        "robustness-rollout-smoke (14 of 15 runs, 3 of them not finite; networks)"
    )
    runs = reproduction.solve_runs(source)
    assert len(runs) == 14
    assert quantities.share_of_lines("rollout-5")(runs).value == 0
    assert quantities.share_of_lines("rollout-25")(runs).value == 1
    result, _ = reproduce(tmp_path / "out", "--records", str(tmp_path))
    row = next(row for row in result["claims"] if "A rollout of 5" in row["statement"])
    assert (row["verdict"], row["measured"]) == (claims.TOO_SMALL, "0 of 3 runs solved")
    figure = next(f for f in result["figures"] if f["label"] == "f-robustness_rollout")
    assert figure["scale"] == "smoke"
    assert figure["missing"] == "4 of 15 runs"  # those that failed have no record to draw


def test_atari_is_drawn_and_measured_but_not_judged_below_the_papers_scale(tmp_path):
    pytest.importorskip("ale_py")
    plan = ladder.plan_ladder(claims.ATARI, "smoke")
    for cell in plan.cells[:-1]:
        directory = tmp_path / plan.title / cell.name
        disk.make_directory(directory)
        run_dir.write_settings(directory, cell.settings)
        steps = np.arange(500, cell.settings.run.steps + 1, 500)
        top = 5.0 if cell.agent == "ersac-replay" else 2.0
        returns = np.linspace(0, top, len(steps)).astype(np.float32)
        stats = EpisodeStats(cell.settings.run.seed, np.zeros(len(steps), bool), returns, steps)
        metrics = Metrics(np.zeros(1), {})
        result = Result(cell.settings, [stats], metrics, [], 1000, 1.0, 1.0, 1.0, [])
        run_dir.write_results(directory, [stats], metrics, [], None, result.summary())
    result, page = reproduce(tmp_path / "out", "--records", str(tmp_path))
    drawn = {figure["label"]: figure for figure in result["figures"] if figure["file"]}
    assert drawn.keys() == {"f-DeepSea", *atari_figures.ATARI_FIGURES}
    assert drawn["f-atari_all_games"]["missing"] == "1 of 6 runs"
    rows = {row["label"]: row for row in result["claims"] if row["group"] == "Atari"}
    assert {row["verdict"] for row in rows.values()} == {claims.TOO_SMALL}
    assert rows["f-atari_all_games"]["measured"] == "2 of 2 games"
    assert rows["f-atari_human_normalized_median"]["measured"].endswith(" times, 2 games")
    assert rows["f-atari_hard_exp"]["missing"] == ["5 seeds in 7 games with 200,000,000 frames"]
    assert "atari57-smoke (5 of 6 runs; networks)" in page


def test_complete_records_are_preferred_then_networks_then_the_smaller_scale(tmp_path):
    def write(name, scale, share):
        sweep = catalogue.SWEEPS[name]
        wanted = catalogue.instances(sweep, sweep.sizes[scale])
        for instance in wanted[: int(share * len(wanted))]:
            write_run(tmp_path / f"{name}-{scale}", instance, 200)

    find = lambda scales: (
        reproduction.Reader(tmp_path).find("vanilla-wall", ("mlp", "table"), scales).title
    )
    write("vanilla-wall-table", "desk", 1)
    assert find(("smoke", "desk")) == "vanilla-wall-table-desk"
    write("vanilla-wall", "desk", 0.5)
    assert find(("smoke", "desk")) == "vanilla-wall-table-desk"
    write("vanilla-wall", "smoke", 1)
    assert find(("smoke", "desk")) == "vanilla-wall-smoke"
    assert find(("desk", "paper")) == "vanilla-wall-table-desk"


class Lines:
    """A display that stores what it is shown."""

    def __init__(self):
        self.lines, self.closed = [], 0

    def prepare(self):
        pass

    def show(self, status):
        self.lines.append(display.format_campaign_status(status))

    def close(self):
        self.closed += 1


def writing_engine(order, stop_after=None):
    """An engine that writes the records of every unit; a signal comes after some of them."""

    def engine(todo, on_steps, poll):
        for unit in todo:
            if stop_after is not None and len(order) == stop_after:
                raise exits.Stopped(15, "stopped")
            on_steps(unit, unit.steps // 2)
            for instance in unit.instances:
                write_run(unit.home, instance, 200)
            order.append(unit.home.name)
            yield Outcome(unit, {})

    return engine


def test_one_progress_display_covers_all_sweeps_and_a_second_call_runs_nothing(tmp_path):
    names = ["vanilla-wall", "depth-250", "boot-dqn"]
    plans = lambda: campaign.plan_sweeps(names, "smoke", "", tmp_path, no_training).plans
    order, screen = [], Lines()
    with pytest.raises(exits.Stopped):
        campaign.run_plans(plans(), writing_engine(order, 3), screen, lambda: 0)
    assert order == ["depth-250-smoke", "vanilla-wall-smoke", "vanilla-wall-smoke"]
    assert screen.closed == 1
    assert screen.lines[0].split("  ")[2:] == [
        "sweep 2/3 depth-250-smoke",
        "runs 0/14",
        "failed 0",
    ]
    order, screen = [], Lines()
    reports = campaign.run_plans(plans(), writing_engine(order), screen, lambda: 0)
    assert order == ["boot-dqn-smoke"] * 4
    assert list(reports) == ["boot-dqn-smoke"]
    shares = [int(line.partition("%")[0]) for line in screen.lines]
    assert shares == sorted(shares)
    assert (shares[0] > 20, shares[-1]) == (True, 100)  # what had ended before counts
    assert screen.lines[-1].endswith("runs 14/14  failed 0")
    assert campaign.run_plans(plans(), writing_engine(order), Lines(), lambda: 0) == {}
    assert len(order) == 4


def test_the_cost_of_a_sweep_follows_its_agents():
    cost = {}
    for agent in ("vanilla-wall", "replay-law", "boot-dqn"):
        sweep = catalogue.SWEEPS[agent]
        settings = catalogue.instances(sweep, sweep.sizes["smoke"])[0].settings
        cost[agent] = campaign.step_seconds(settings)
    assert cost["vanilla-wall"] < cost["replay-law"] < cost["boot-dqn"]


def test_the_smoke_scale_is_planned_within_its_time():
    """Forty minutes on two cores, by the estimate that the time left is computed with."""
    planned = campaign.plan_sweeps(claims.needed_sweeps(), "smoke", "", Path("none"), no_training)
    assert set(planned.refused) <= {claims.ATARI}
    seconds = sum(campaign.unit_seconds(unit) for plan in planned.plans for unit in plan.units)
    assert seconds < 35 * 60


def test_every_number_that_a_theory_claim_reads_is_measured():
    record = reproduction.read_theory(ROOT / "results", "desk")[claims.THEORY]
    for claim in claims.THEORY_CLAIMS:
        if claim.records == (claims.THEORY,):
            assert claim.measure(record) is not None, claim.label


def test_damaged_theory_is_not_read(tmp_path):
    path = reproduction.theory_path(tmp_path, "desk")
    path.parent.mkdir()
    source = reproduction.theory_path(ROOT / "results", "desk")
    path.write_bytes(source.read_bytes().replace(b'"episodes": 2000', b'"episodes": 2001'))
    assert reproduction.read_theory(tmp_path, "desk") == {}
    path.write_bytes(source.read_bytes())
    found = reproduction.read_theory(tmp_path, "smoke")  # a larger scale serves
    assert found[claims.THEORY]["scale"] == "desk"
    assert reproduction.read_theory(tmp_path, "paper") == {}


@pytest.mark.slow
def test_the_measured_theory_is_that_of_the_record(monkeypatch):
    monkeypatch.setitem(checks.SIZES, "smoke", checks.CheckSize(20, 8, 100, (5, 8), 3))
    numbers = checks.measure_theory("smoke")
    assert max(numbers[name] for name in ("boltzmann_error", "lemma_error", "gradient_error")) < (
        1e-12
    )
    assert numbers["duality_gap"] < 1e-12
    assert numbers["gradient_gap"] < 1e-6
    assert min(numbers["optimism_margin"], numbers["theorem_margin"]) > -4
    assert numbers["printed_cosine"] < 0.99
    assert 0 < numbers["regret_over_bound"] < numbers["optimism_over_bound"] < 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_smoke_reproduction_of_some_figures_runs_and_then_takes_seconds(tmp_path, monkeypatch):
    chosen = ("f-DeepSea", "f-depth_250", "f-solve_time_v_depth_kimpala")
    monkeypatch.setattr(campaign, "is_missing", lambda package: package == "ale_py")
    monkeypatch.setattr(figures, "FIGURES", {name: figures.FIGURES[name] for name in chosen})
    listed = {name: FIGURES_OF_PAPER[name] for name in chosen}
    monkeypatch.setattr(reproduction, "FIGURES_OF_PAPER", listed)
    chosen_claims = [claim for claim in claims.ON_POLICY_CLAIMS if claim.records == ("depth-250",)]
    monkeypatch.setattr(claims, "CLAIMS", {"DeepSea": tuple(chosen_claims)})
    monkeypatch.setitem(checks.SIZES, "smoke", checks.CheckSize(10, 4, 50, (5, 8), 2))
    monkeypatch.chdir(tmp_path)
    result, page = reproduce(tmp_path / "out", "--scale", "smoke")
    assert {f["label"] for f in result["figures"] if f["file"]} == set(chosen)
    (row,) = result["claims"]
    assert (row["verdict"], "of 2 seeds at depth 25" in row["measured"]) == (claims.TOO_SMALL, True)
    monkeypatch.setattr(campaign.runner, "run_plan", None)  # nothing is run again
    again, _ = reproduce(tmp_path / "again", "--scale", "smoke")
    without_files = lambda r: [{**f, "file": None} for f in r["figures"]]
    assert without_files(again) == without_files(result)
    assert again["claims"] == result["claims"]
    assert page.count("data:image/png") == len(chosen)
