"""Every claim has a verdict that is computed from records, and the page says what it is."""

import numpy as np
import pytest

from ersac.analysis import claims, figures, quantities
from ersac.analysis.claims import Evidence, Needs, Threshold
from ersac.analysis.figures import SolveRun
from ersac.analysis.paper import FIGURES_OF_PAPER, RESULTS, SECTIONS
from ersac.sweeps import catalogue

EVERY = [claim for group in claims.CLAIMS.values() for claim in group]
DEEP_SEA = [*claims.ON_POLICY_CLAIMS, *claims.REPLAY_CLAIMS]


def make_run(line, depth, solved, budget=1_000_000, found=None):
    """A run that reaches the goal at `found` and in every episode from `solved` - 80 on."""
    goals = np.zeros(budget if solved is None else solved, bool)
    if solved is not None:
        goals[solved - 80 :] = True
    if found is not None:
        goals[found - 1] = True
    return SolveRun(line, depth, budget, goals)


def evidence(runs=None, numbers=None):
    names = [*(runs or {}), *(numbers or {})]
    return Evidence(runs or {}, numbers or {}, {name: f"records of {name}" for name in names})


def test_every_claim_is_of_a_label_of_the_paper_and_of_records_that_exist():
    labels = {**RESULTS, **SECTIONS, **FIGURES_OF_PAPER}
    sweeps = {*catalogue.SWEEPS, claims.THEORY, claims.THEORY_GAMES, *FIGURES_OF_PAPER}
    for claim in EVERY:
        assert claim.label in labels, claim.label
        assert set(claim.records) <= sweeps, claim.records
    statements = [claim.statement for claim in EVERY]
    assert len(set(statements)) == len(statements)


def test_every_line_that_a_claim_needs_is_a_line_of_its_sweep():
    for claim in DEEP_SEA:
        lines = {line.name for name in claim.records for line in catalogue.SWEEPS[name].lines}
        assert {need.line for need in claim.needs} <= lines, claim.statement


def test_the_papers_scale_covers_what_every_claim_needs():
    for claim in DEEP_SEA:
        sweeps = [catalogue.SWEEPS[name] for name in claim.records]
        runs = [
            SolveRun(line.name, depth, sweep.sizes["paper"].episodes, np.zeros(0, bool))
            for sweep in sweeps
            for line in sweep.lines
            for depth in sweep.sizes["paper"].depths
            if line.max_depth is None or depth <= line.max_depth
            for _ in range(sweep.sizes["paper"].seeds)
        ]
        missing = [need for need in claim.needs if not claims.covers(runs, need)]
        assert not missing, (claim.statement, missing)


def test_every_figure_of_the_paper_is_in_the_list_and_known_or_atari():
    assert len(FIGURES_OF_PAPER) == 15
    others = FIGURES_OF_PAPER.keys() - figures.FIGURES.keys()
    assert all(label.startswith("f-atari") for label in others)
    assert figures.FIGURES.keys() <= FIGURES_OF_PAPER.keys()


def test_without_records_nothing_is_judged():
    for claim in EVERY:
        row = claims.judge(claim, evidence())
        assert (row.verdict, row.measured) == (claims.TOO_SMALL, None)
        assert row.missing


def one(statement):
    (found,) = [claim for claim in EVERY if statement in claim.statement]
    return found


def judge_runs(claim, runs):
    by_sweep = {name: runs for name in claim.records}
    return claims.judge(claim, evidence(by_sweep))


def test_a_verdict_follows_the_records():
    claim = one("on-policy agent reaches the goal in 99 of 100 seeds")
    runs = lambda reached: [
        make_run("ersac", 100, 500 if seed < reached else None, 100_000) for seed in range(100)
    ]
    assert judge_runs(claim, runs(99)).verdict == claims.REPRODUCED
    assert judge_runs(claim, runs(98)).verdict == claims.REPRODUCED  # 99 % is in its interval
    assert judge_runs(claim, runs(97)).verdict == claims.FAILED
    row = judge_runs(claim, runs(95))
    assert row.verdict == claims.FAILED
    assert row.measured.startswith("95 of 100 seeds at depth 100 (95 %: 89% to 98%)")
    few = judge_runs(claim, runs(99)[:50])
    assert (few.verdict, few.missing) == (
        claims.TOO_SMALL,
        ["100 seeds of ersac at depth 100 with 100,000 episodes"],
    )
    assert few.measured.startswith("50 of 50")
    shallow = [run._replace(depth=50) for run in runs(99)]
    assert judge_runs(claim, shallow).verdict == claims.TOO_SMALL
    short = [run._replace(budget=99_999) for run in runs(99)]
    assert judge_runs(claim, short).verdict == claims.TOO_SMALL


@pytest.mark.parametrize(
    ("power", "quadratic", "slower"), [(2, True, True), (1.5, False, True), (3, False, False)]
)
def test_the_law_of_the_solve_time(power, quadratic, slower):
    depths = range(10, 101, 10)
    runs = [
        make_run("ersac", depth, round(2 * depth**power * (0.9 + 0.05 * seed)) + 80)
        for depth in depths
        for seed in range(5)
    ]
    verdict = lambda holds: claims.REPRODUCED if holds else claims.FAILED
    runs = [run for run in runs if run.depth >= 30]  # the constant bends the law at the low end
    law, bound = one("solve time of ERSAC is quadratic"), one("solve time of ERSAC grows no faster")
    assert judge_runs(law, runs).verdict == verdict(quadratic)
    assert judge_runs(bound, runs).verdict == verdict(slower)


def test_the_deepest_solved_depth_is_where_most_seeds_are_solved():
    claim = one("Vanilla")
    solved = {10: 3, 14: 3, 16: 2, 18: 0}
    runs = [
        make_run("vanilla", depth, 1000 if seed < count else None, 100_000)
        for depth, count in solved.items()
        for seed in range(5)
    ]
    row = judge_runs(claim, runs)
    assert (row.value, row.verdict) == (14, claims.REPRODUCED)
    assert row.measured == "depth 14 (10: 3/5, 14: 3/5, 16: 2/5, 18: 0/5)"


def test_ratios_are_geometric_means_over_the_depths_that_both_solve():
    claim = one("Replay saves a factor of about four")
    times = {10: (400, 200), 20: (1600, 200), 50: (None, 300)}
    runs = [
        make_run(line, depth, solved, 10_000)
        for depth, pair in times.items()
        for line, solved in zip(("ersac", "ersac-replay"), pair, strict=True)
        for _ in range(5)
    ]
    row = judge_runs(claim, runs)
    assert row.value == pytest.approx(4)  # of 2 and 8
    assert row.verdict == claims.REPRODUCED
    never = [run._replace(goals=np.zeros(10, bool)) for run in runs if run.line == "ersac-replay"]
    row = judge_runs(claim, [run for run in runs if run.line == "ersac"] + never)
    assert (row.value, row.verdict) == (None, claims.FAILED)


def test_latching_is_counted_from_the_first_goal():
    assert quantities.latch_episodes(make_run("ersac", 10, 500, found=100)) == 400
    assert quantities.first_goal_or_inf(make_run("ersac", 10, 500, found=100)) == 100
    assert quantities.latch_episodes(make_run("ersac", 10, None, 1000, found=100)) == np.inf


def tau_runs(shares):
    return [
        make_run(f"tau-{tau}-{how}", 40, 200 if seed < solved else None, 300)
        for (tau, how), solved in shares.items()
        for seed in range(5)
    ]


def test_claims_about_tau_compare_the_right_lines():
    taus = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    learned = {(tau, "learned"): 5 for tau in taus}
    fixed = dict(zip(((tau, "fixed") for tau in taus), (1, 5, 2, 0, 0, 0, 0), strict=True))
    runs = tau_runs(learned | fixed)
    rows = {
        claim.statement.split()[0]: judge_runs(claim, runs)
        for claim in EVERY
        if claim.label == "f-robustness_tau"
    }
    assert rows["Some"].value == 0
    assert rows["Some"].measured == "100% with tau fixed at 0.03, 100% with tau learned"
    assert (rows["A"].verdict) == claims.REPRODUCED
    near = judge_runs(one("A small change of a fixed tau"), runs)
    assert (near.value, near.measured) == (0.2, "20% at 0.01, 100% at 0.03")


def test_larger_lambdas_are_compared_by_rank():
    runs = lambda order: [
        make_run(f"lambda-{lam}", 40, 300 - 20 * rank)
        for rank, lam in enumerate(order)
        for _ in range(5)
    ]
    rising = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    assert quantities.largest_lambda_is_fastest(runs(rising)).value == -1
    assert quantities.largest_lambda_is_fastest(runs(rising[::-1])).value == 1


def test_theory_is_judged_from_numbers():
    good = {
        "certainty_error": 1e-12,
        "printed_cosine": 0.8,
        "duality_gap": 1e-3,
        "deep_sea": {"exponent": 1.3},
    }
    rows = {
        claim.label: claims.judge(claim, evidence(numbers={claims.THEORY: good}))
        for claim in claims.THEORY_CLAIMS
    }
    assert rows["e-kpi"].verdict == claims.REPRODUCED
    assert rows["a-kac"].verdict == claims.FAILED
    assert rows["ass-strong-duality"].verdict == claims.FAILED
    assert rows["s-app-DeepSea"].verdict == claims.REPRODUCED
    assert rows["l-kl"].verdict == claims.TOO_SMALL  # the record does not have it
    assert rows["s-intro"].verdict == claims.TOO_SMALL


def atari_numbers(games, seeds=5, frames=200_000_000, ours=2.0):
    rows = [
        {"game": game, "agent": agent, "seeds": seeds, "frames": frames, "score": score}
        for game in games
        for agent, score in zip(quantities.ATARI_AGENTS, (ours, 1.0), strict=True)
    ]
    pair = dict(zip(("agent", "other"), quantities.ATARI_AGENTS, strict=True))
    return {"games": games, "rows": rows, "comparisons": [pair | {"speedup": ours}]}


def test_claims_about_atari_are_judged_from_the_numbers_of_the_figures():
    games = [f"game-{n}" for n in range(57)]
    every = lambda numbers: {
        claim.label: claims.judge(claim, evidence(numbers={claim.label: numbers})).verdict
        for claim in claims.ATARI_CLAIMS
    }
    assert set(every(atari_numbers(games)).values()) == {claims.REPRODUCED}
    assert set(every(atari_numbers(games, ours=0.5)).values()) == {claims.FAILED}
    assert set(every(atari_numbers(games, seeds=4)).values()) == {claims.TOO_SMALL}
    assert set(every(atari_numbers(games, frames=10**6)).values()) == {claims.TOO_SMALL}
    seven = every(atari_numbers(games[:7]))
    assert seven["f-atari_hard_exp"] == claims.REPRODUCED
    assert seven["f-atari_all_games"] == claims.TOO_SMALL
    never = atari_numbers(games)
    never["comparisons"][0]["speedup"] = None
    assert every(never)["f-atari_human_normalized_median"] == claims.FAILED


def test_a_threshold_includes_its_ends():
    assert Threshold(10, 18).includes(10)
    assert Threshold(10, 18).includes(18)
    assert not Threshold(10, 18).includes(18.01)
    assert not Threshold(low=10).includes(9.9)
    assert Threshold(low=10).includes(np.inf)
    texts = [str(Threshold(10, 18)), str(Threshold(low=3)), str(Threshold(high=1e-9))]
    assert texts == ["10 to 18", "at least 3", "at most 1e-09"]


def test_needs_are_counted_at_the_depth_or_deeper():
    runs = [make_run("a", depth, None, 100) for depth in (10, 40, 50)]
    assert claims.covers(runs, Needs("a", 40, 2, 100))
    assert not claims.covers(runs, Needs("a", 40, 3, 100))
    assert not claims.covers(runs, Needs("b", 10))
