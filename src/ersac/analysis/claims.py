"""The claims of the paper as data: what is measured, from which records, against which threshold.

A verdict is computed by `judge` and never typed: records that do not cover what a claim needs give
`not at this scale`, others are compared with the threshold. No jax here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ersac.analysis import figures
from ersac.analysis.figures import SolveRun
from ersac.analysis.quantities import (
    Measurement,
    atari_speedup,
    best_fixed_less_learned,
    deepest_solved,
    difference_of_shares,
    exponent,
    first_goal_or_inf,
    games_above,
    games_exponent,
    lacking_games,
    largest_lambda_is_fastest,
    latch_episodes,
    neighbour_of_best_fixed,
    number_at,
    ratio_of_medians,
    reached_share,
    select_line,
    share_of_lines,
)

REPRODUCED, FAILED, TOO_SMALL = "reproduced", "not reproduced", "not at this scale"
VERDICTS = (REPRODUCED, FAILED, TOO_SMALL)
THEORY = "theory"  # the record of exact experiments, which is no sweep
ATARI = "atari57"  # the sweep of the Atari figures, whose claims are judged from their numbers
THEORY_GAMES = "games"  # results/theory/games.json: `ersac theory games`


class Threshold(NamedTuple):
    """The values of a quantity that count as reproduced, ends included."""

    low: float | None = None
    high: float | None = None

    def includes(self, value: float) -> bool:
        """Whether a value is between the ends."""
        above = self.low is None or value >= self.low
        return above and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        """Return the threshold as text."""
        if self.low is None:
            return f"at most {self.high:g}"
        return f"at least {self.low:g}" if self.high is None else f"{self.low:g} to {self.high:g}"


class Needs(NamedTuple):
    """Records of DeepSea without which a claim is not judged."""

    line: str
    depth: int  # the deepest runs must be at least this deep
    seeds: int = 1  # at that depth
    episodes: int = 0  # their budget


def nothing_missing(numbers: Mapping[str, Any]) -> list[str]:
    """What the numbers of a record lack, where any record will do."""
    return []


class Claim(NamedTuple):
    """A statement of the paper, and the rule that judges it."""

    label: str  # in the paper
    statement: str
    paper: str  # the paper's number
    quantity: str  # what is measured here
    threshold: Threshold
    records: tuple[str, ...]  # sweeps, a figure of Atari, THEORY or THEORY_GAMES
    measure: Callable[[Any], Measurement | None]  # of runs, or of the numbers of a record
    needs: tuple[Needs, ...] = ()
    lacking: Callable[[Mapping[str, Any]], list[str]] = nothing_missing  # of numbers


def covers(runs: Sequence[SolveRun], need: Needs) -> bool:
    """Whether the records have what a claim needs."""
    deep = [
        run
        for run in select_line(runs, need.line)
        if run.depth >= need.depth and run.budget >= need.episodes
    ]
    return len(deep) >= need.seeds


EXACT = 1e-9  # of double precision, relative
LEARNED = tuple(f"tau-{tau0}-learned" for tau0 in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0))

THEORY_CLAIMS = (
    Claim(
        "e-kpi",
        "A Gaussian value has the certainty equivalent mean + variance / (2 tau).",
        "identity",
        "largest error over a grid of tau, by quadrature",
        Threshold(high=1e-6),
        (THEORY,),
        number_at("certainty_error"),
    ),
    Claim(
        "e-jstar",
        "The Boltzmann policy attains the optimal J-values.",
        "identity",
        "largest relative error over random MDPs",
        Threshold(high=EXACT),
        (THEORY,),
        number_at("boltzmann_error"),
    ),
    Claim(
        "ass-upper-bound",
        "For every tau the optimistic value is at least the posterior mean of the optimal value.",
        "assumption",
        "smallest margin over random MDPs and tau, in standard errors",
        Threshold(low=-4),
        (THEORY,),
        number_at("optimism_margin"),
    ),
    Claim(
        "ass-strong-duality",
        "The game over all policies has a saddle point, which K-learning finds.",
        "gap zero",
        "largest relative duality gap over random MDPs",
        Threshold(high=EXACT),
        (THEORY,),
        number_at("duality_gap"),
    ),
    Claim(
        "e-saddle",
        "Simultaneous gradient ascent-descent finds the same saddle point.",
        "gap zero",
        "largest relative duality gap after exact gradient steps",
        Threshold(high=1e-5),
        (THEORY,),
        number_at("gradient_gap"),
    ),
    Claim(
        "l-kl",
        "Dist, tau times the KL divergence to the Boltzmann policy, is the suboptimality E J* - J.",
        "identity",
        "largest relative error over random MDPs",
        Threshold(high=EXACT),
        (THEORY,),
        number_at("lemma_error"),
    ),
    Claim(
        "l-decomp",
        "The Bayesian regret of any policy is at most Dist plus Optimism.",
        "bound",
        "smallest margin over random policies and tau, in standard errors",
        Threshold(low=-4),
        (THEORY,),
        number_at("decomposition_margin"),
    ),
    Claim(
        "t-main",
        "At the saddle point regret is at most the smallest Dist plus the smallest Optimism.",
        "bound",
        "smallest margin over random MDPs, in standard errors",
        Threshold(low=-4),
        (THEORY,),
        number_at("theorem_margin"),
    ),
    Claim(
        "e-pol-grad",
        "The payoff that a deep agent differentiates has the gradients of the game.",
        "identity",
        "largest relative error in both players' gradients",
        Threshold(high=EXACT),
        (THEORY,),
        number_at("gradient_error"),
    ),
    Claim(
        "a-kac",
        "The policy loss as printed in Algorithm 1, with - tau H, ascends the game.",
        "cosine 1",
        "median cosine of its gradient with that of the game",
        Threshold(low=0.999),
        (THEORY,),
        number_at("printed_cosine"),
    ),
    Claim(
        "l-opt-regret",
        "The sum of Optimism over episodes is at most sigma sqrt(S A T), up to logarithms.",
        "bound",
        "Optimism of K-learning as a share of the bound, with constants",
        Threshold(high=1),
        (THEORY,),
        number_at("optimism_over_bound"),
    ),
    Claim(
        "c-basic",
        "The Bayesian regret of K-learning is at most sigma sqrt(S A T), up to logarithms.",
        "bound",
        "regret as a share of the bound, with constants",
        Threshold(high=1),
        (THEORY,),
        number_at("regret_over_bound"),
    ),
    Claim(
        "c-basic",
        "The regret of K-learning grows no faster than the square root of time.",
        "exponent 0.5",
        "exponent of cumulative regret over its last decade",
        Threshold(high=0.6),
        (THEORY,),
        number_at("regret_exponent"),
    ),
    Claim(
        "s-app-DeepSea",
        "Exact K-learning solves DeepSea within the cube of its depth.",
        "exponent 3",
        "exponent of episodes until solved (rule bsuite) in depth, transitions known",
        Threshold(high=3),
        (THEORY,),
        number_at("deep_sea", "exponent"),
    ),
    Claim(
        "s-intro",
        "Thompson sampling cannot handle a constrained problem: its regret is linear.",
        "linear",
        "exponent of its regret in the constrained bandit",
        Threshold(low=0.95),
        (THEORY_GAMES,),
        games_exponent("thompson", "constrained bandit"),
    ),
    Claim(
        "s-intro",
        "K-learning handles a constrained problem: its regret is sublinear.",
        "sublinear",
        "exponent of its regret in the constrained bandit",
        Threshold(high=0.9),
        (THEORY_GAMES,),
        games_exponent("k-learning", "constrained bandit"),
    ),
)

ON_POLICY_CLAIMS = (
    Claim(
        "f-DeepSea_solved_v_boot_dqn",
        "ERSAC solves DeepSea to depth 100.",
        "depth 100",
        "largest depth at which most seeds are solved",
        Threshold(low=100),
        ("solve-time",),
        deepest_solved("ersac"),
        (Needs("ersac", 100, 5, 100_000),),
    ),
    Claim(
        "f-DeepSea_solved_v_boot_dqn",
        "Vanilla actor-critic does not get past a depth of about 14.",
        "depth 14",
        "largest depth at which most seeds are solved within 100,000 episodes",
        Threshold(10, 18),
        ("vanilla-wall",),
        deepest_solved("vanilla"),
        (Needs("vanilla", 18, 5, 100_000),),
    ),
    Claim(
        "f-DeepSea_solved_v_boot_dqn",
        "Simple optimism gets to a depth of about 50.",
        "depth 50",
        "largest depth at which most seeds are solved within 100,000 episodes",
        Threshold(40, 60),
        ("solve-time",),
        deepest_solved("optimism"),
        (Needs("optimism", 60, 5, 100_000),),
    ),
    Claim(
        "f-DeepSea_solved_v_boot_dqn",
        "Bootstrapped DQN fails beyond a depth of about 50.",
        "depth 50",
        "largest depth at which most seeds are solved within 100,000 episodes",
        Threshold(40, 59),
        ("boot-dqn",),
        deepest_solved("boot-dqn"),
        (Needs("boot-dqn", 60, 5, 100_000),),
    ),
    Claim(
        "f-DeepSea_solved_v_boot_dqn",
        "Bootstrapped DQN is faster than ERSAC without replay at small depths.",
        "much faster",
        "episodes of ERSAC over those of Bootstrapped DQN, depths up to 20",
        Threshold(low=1.5),
        ("solve-time", "boot-dqn"),
        ratio_of_medians("ersac", "boot-dqn", max_depth=20),
        (Needs("ersac", 20, 3), Needs("boot-dqn", 20, 3)),
    ),
    Claim(
        "f-solve_time_v_depth",
        "The solve time of ERSAC grows no faster than the square of the depth.",
        "exponent 2",
        "exponent of a power law of the medians",
        Threshold(high=2.2),
        ("solve-time",),
        exponent("ersac"),
        (Needs("ersac", 50, 5),),
    ),
    Claim(
        "f-solve_time_v_depth",
        "The solve time of ERSAC is quadratic in depth.",
        "exponent 2",
        "distance of 2 from the 95 % interval of the exponent",
        Threshold(high=0),
        ("solve-time",),
        exponent("ersac", 2),
        (Needs("ersac", 100, 5),),
    ),
    Claim(
        "f-depth_100_kimpala_100_seeds",
        "At depth 100 the on-policy agent reaches the goal in 99 of 100 seeds.",
        "99 of 100",
        "upper end of the 95 % interval of the share of seeds that reach the goal",
        Threshold(low=0.99),
        ("depth-100",),
        reached_share("ersac"),
        (Needs("ersac", 100, 100, 100_000),),
    ),
    Claim(
        "f-depth_250",
        "At depth 250 ERSAC reaches the goal in 99 of 100 seeds within a million episodes.",
        "99 of 100",
        "upper end of the 95 % interval of the share of seeds that reach the goal",
        Threshold(low=0.99),
        ("depth-250",),
        reached_share("ersac-far"),
        (Needs("ersac-far", 250, 100, 1_000_000),),
    ),
    Claim(
        "f-robustness_lambda",
        "Every lambda of at least 0.6 solves most or all depths.",
        "most or all",
        "share of runs with lambda 0.6, 0.8 and 1 that are solved",
        Threshold(low=0.9),
        ("robustness-lambda",),
        share_of_lines("lambda-0.6", "lambda-0.8", "lambda-1.0"),
        (Needs("lambda-0.6", 40, 5),),
    ),
    Claim(
        "f-robustness_lambda",
        "Larger values of lambda do better.",
        "larger is better",
        "rank correlation (Kendall) of lambda with the median solve time",
        Threshold(high=-0.5),
        ("robustness-lambda",),
        largest_lambda_is_fastest,
        (Needs("lambda-0.6", 40, 5),),
    ),
    Claim(
        "f-robustness_rollout",
        "A rollout of 5 steps solves more than 60 % of the depths.",
        "60 %",
        "share of runs that are solved",
        Threshold(low=0.6),
        ("robustness-rollout",),
        share_of_lines("rollout-5"),
        (Needs("rollout-5", 40, 5),),
    ),
    Claim(
        "f-robustness_rollout",
        "A rollout of 25 steps solves practically all depths.",
        "practically all",
        "share of runs that are solved",
        Threshold(low=0.95),
        ("robustness-rollout",),
        share_of_lines("rollout-25"),
        (Needs("rollout-25", 40, 5),),
    ),
    Claim(
        "f-robustness_rollout",
        "With rollouts of one step the advantage over vanilla actor-critic is small.",
        "small",
        "share of runs that are solved, all deeper than vanilla gets",
        Threshold(high=0.2),
        ("robustness-rollout",),
        share_of_lines("rollout-1"),
        (Needs("rollout-1", 40, 5),),
    ),
    Claim(
        "f-robustness_tau",
        "A learned tau solves almost all depths, over a wide range of initial values.",
        "almost all",
        "share of runs that are solved, initial tau from 0.01 to 10",
        Threshold(low=0.95),
        ("robustness-tau",),
        share_of_lines(*LEARNED),
        (Needs(LEARNED[0], 40, 5), Needs(LEARNED[-1], 40, 5)),
    ),
    Claim(
        "f-robustness_tau",
        "Some fixed tau matches the learned one.",
        "matches",
        "share solved by the best fixed tau, less the share solved with tau learned",
        Threshold(low=-0.1),
        ("robustness-tau",),
        best_fixed_less_learned,
        (Needs("tau-0.01-fixed", 40, 5),),
    ),
    Claim(
        "f-robustness_tau",
        "A small change of a fixed tau makes the agent unreliable.",
        "unreliable",
        "share solved by a fixed tau three times larger or smaller than the best",
        Threshold(high=0.5),
        ("robustness-tau",),
        neighbour_of_best_fixed,
        (Needs("tau-0.01-fixed", 40, 5),),
    ),
)

REPLAY_CLAIMS = (
    Claim(
        "f-replay_v_no_replay",
        "Replay saves a factor of about four in episodes.",
        "4",
        "episodes of ersac over those of ersac-replay, geometric mean over depths",
        Threshold(low=3),
        ("replay",),
        ratio_of_medians("ersac", "ersac-replay"),
        (Needs("ersac", 50, 5), Needs("ersac-replay", 50, 5)),
    ),
    Claim(
        "f-replay_v_no_replay_not_log",
        "With replay DeepSea is solved to depth 151.",
        "depth 151",
        "largest depth at which most seeds are solved",
        Threshold(low=151),
        ("replay",),
        deepest_solved("ersac-replay"),
        (Needs("ersac-replay", 151, 5),),
    ),
    Claim(
        "f-solve_time_v_depth_kimpala",
        "With replay the solve time grows no faster than the square of the depth.",
        "exponent 2",
        "exponent of a power law of the medians",
        Threshold(high=2.2),
        ("replay-law",),
        exponent("ersac-replay"),
        (Needs("ersac-replay", 50, 5),),
    ),
    Claim(
        "f-solve_time_v_depth_kimpala",
        "With replay the solve time is quadratic in depth.",
        "exponent 2",
        "distance of 2 from the 95 % interval of the exponent",
        Threshold(high=0),
        ("replay-law",),
        exponent("ersac-replay", 2),
        (Needs("ersac-replay", 100, 5),),
    ),
    Claim(
        "f-depth_100_kimpala_100_seeds",
        "At depth 100 replay finds the goal sooner.",
        "sooner",
        "episodes of ersac until the first goal over those of ersac-replay",
        Threshold(low=1.1),
        ("replay-100",),
        ratio_of_medians("ersac", "ersac-replay", first_goal_or_inf),
        (Needs("ersac", 100, 10), Needs("ersac-replay", 100, 10)),
    ),
    Claim(
        "f-depth_100_kimpala_100_seeds",
        "At depth 100 replay latches on sooner.",
        "sooner",
        "episodes of ersac from first goal to solved over those of ersac-replay",
        Threshold(low=1.1),
        ("replay-100",),
        ratio_of_medians("ersac", "ersac-replay", latch_episodes),
        (Needs("ersac", 100, 10), Needs("ersac-replay", 100, 10)),
    ),
    Claim(
        "f-depth_100_kimpala_100_seeds",
        "At depth 100 replay reaches the goal in 93 of 100 seeds.",
        "93 of 100",
        "upper end of the 95 % interval of the share of seeds that reach the goal",
        Threshold(low=0.93),
        ("replay-100",),
        reached_share("ersac-replay"),
        (Needs("ersac-replay", 100, 20),),
    ),
    Claim(
        "s-off-policy",
        "At depth 100 replay is less reliable than the on-policy agent.",
        "93 against 99",
        "share of seeds of ersac that reach the goal, less that of ersac-replay",
        Threshold(low=0.01),
        ("replay-100",),
        difference_of_shares("ersac", "ersac-replay", lambda run: bool(run.goals.any())),
        (Needs("ersac", 100, 20), Needs("ersac-replay", 100, 20)),
    ),
    Claim(
        "f-replay_noise_v_no_noise",
        "Replay as the paper describes it needs stored noise.",
        "dramatic",
        "share solved with noise, less the share solved without",
        Threshold(low=0.2),
        ("replay-noise",),
        difference_of_shares("as-printed-noise-0.0025", "as-printed-noise-0"),
        (Needs("as-printed-noise-0", 40, 5),),
    ),
    Claim(
        "f-replay_noise_v_no_noise",
        "The replay agent of this library needs stored noise.",
        "dramatic",
        "share solved with noise of variance 0.0001, less the share solved without",
        Threshold(low=0.2),
        ("replay-noise",),
        difference_of_shares("noise-0.0001", "noise-0"),
        (Needs("noise-0", 40, 5),),
    ),
)

ATARI_CLAIMS = (
    Claim(
        "f-atari_human_normalized_median",
        "ERSAC reaches the peak median score of the actor-critic in 1.8 times fewer frames.",
        "1.8",
        "frames of the actor-critic at its peak over frames of ERSAC at the same median",
        Threshold(low=1.4),
        ("f-atari_human_normalized_median",),
        atari_speedup,
        lacking=lacking_games(57),
    ),
    Claim(
        "f-atari_hard_exp",
        "ERSAC is better in four of seven games that are hard to explore.",
        "4 of 7",
        "games in which the final score of ERSAC is higher",
        Threshold(low=4),
        ("f-atari_hard_exp",),
        games_above,
        lacking=lacking_games(7),
    ),
    Claim(
        "f-atari_all_games",
        "ERSAC is better in most of the 57 games.",
        "most",
        "games in which the final score of ERSAC is higher",
        Threshold(low=29),
        ("f-atari_all_games",),
        games_above,
        lacking=lacking_games(57),
    ),
)

CLAIMS = {
    "Theory, exact": THEORY_CLAIMS,
    "DeepSea, on-policy": ON_POLICY_CLAIMS,
    "DeepSea, with replay": REPLAY_CLAIMS,
    "Atari": ATARI_CLAIMS,
}


class Evidence(NamedTuple):
    """What a claim is judged by."""

    runs: Mapping[str, Sequence[SolveRun]]  # by sweep
    numbers: Mapping[str, Mapping[str, Any]]  # of theory, games and figures, by name
    names: Mapping[str, str]  # how each of them is called on the page, with its source


class Judgement(NamedTuple):
    """A claim with what was measured and its verdict."""

    claim: Claim
    measured: str | None
    value: float | None
    verdict: str
    records: list[str]
    missing: list[str]  # what the records would need to have

    def as_json(self) -> dict[str, Any]:
        """Return the fields that a program reads."""
        return {
            "label": self.claim.label,
            "statement": self.claim.statement,
            "paper": self.claim.paper,
            "quantity": self.claim.quantity,
            "measured": self.measured,
            "value": self.value,
            "threshold": str(self.claim.threshold),
            "verdict": self.verdict,
            "records": self.records,
            "missing": self.missing,
        }


def judge(claim: Claim, evidence: Evidence) -> Judgement:
    """Measure a claim and compare it with its threshold."""
    absent = [
        name
        for name in claim.records
        if not evidence.runs.get(name) and name not in evidence.numbers
    ]
    if absent:
        return Judgement(
            claim, None, None, TOO_SMALL, [], [f"records of {name}" for name in absent]
        )
    records = [evidence.names[name] for name in claim.records]
    if claim.records[0] in evidence.numbers:
        numbers = evidence.numbers[claim.records[0]]
        found, missing = claim.measure(numbers), claim.lacking(numbers)
    else:
        runs = [run for name in claim.records for run in evidence.runs[name]]
        missing = [describe_need(need) for need in claim.needs if not covers(runs, need)]
        # A line that was never run cannot be measured, not even in part.
        measurable = all(select_line(runs, need.line) for need in claim.needs)
        found = claim.measure(runs) if measurable else None
    if found is None:
        missing = missing or ["a record with this quantity"]
        return Judgement(claim, None, None, TOO_SMALL, records, missing)
    if missing:
        return Judgement(claim, found.text, found.value, TOO_SMALL, records, missing)
    holds = found.value is not None and claim.threshold.includes(found.value)
    verdict = REPRODUCED if holds else FAILED
    return Judgement(claim, found.text, found.value, verdict, records, [])


def describe_need(need: Needs) -> str:
    """What records a claim needs, as text."""
    budget = f" with {need.episodes:,} episodes" if need.episodes else ""
    seeds = f"{need.seeds} seeds" if need.seeds > 1 else "a seed"
    return f"{seeds} of {need.line} at depth {need.depth}{budget}"


def needed_sweeps() -> list[str]:
    """The sweeps of all figures and claims, each once, in the order of the figures."""
    of_figures = [name for spec in figures.FIGURES.values() for name in spec.sweeps]
    all_claims = [claim for group in CLAIMS.values() for claim in group]
    others = {THEORY, THEORY_GAMES, *(claim.label for claim in ATARI_CLAIMS)}
    of_claims = [name for claim in all_claims for name in claim.records if name not in others]
    return list(dict.fromkeys([*of_figures, *of_claims, ATARI]))
