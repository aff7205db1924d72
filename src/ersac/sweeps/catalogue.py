"""Sweeps as data: which lines, at which depths, with which seeds. No jax here.

A scale changes depths, seeds and episodes, never another setting: `smoke` takes minutes on two cores, `desk` hours, `paper` has the
paper's numbers. What is reported uses seeds from 1000; what is tuned, seeds below 100.
"""

import random
from typing import Any, NamedTuple

from ersac.agents.presets import PRESETS, TABLE_PRESETS
from ersac.config import (
    ActorCritic,
    BootDQN,
    Counts,
    DeepSea,
    Ensemble,
    Experiment,
    Replay,
    Run,
    check,
    override,
    replace_at,
    sea,
)
from ersac.runs import run_dir

SCALES = ("smoke", "desk", "paper")
TUNED, REPORTED = 0, 1000  # first seeds
FAR = 1200  # at depth 250, where seeds before these were looked at: they told of the prior, and of what is given up too soon


class SweepLine(NamedTuple):
    """One line of a figure: an agent's settings under a name."""

    name: str
    agent: str
    learner: ActorCritic | BootDQN
    deepest: int | None = (
        None  # beyond which it is known to fail, so that its budget would be wasted
    )
    stochastic: bool = False


class SweepSize(NamedTuple):
    """How much of a sweep is run at one scale."""

    depths: tuple[int, ...]
    seeds: int
    episodes: int


class Sweep(NamedTuple):
    """Every line at every depth with every seed."""

    what: str  # it is for, in a line
    lines: tuple[SweepLine, ...]
    sizes: dict[str, SweepSize]  # by scale
    first_seed: int = REPORTED
    stop_when_solved: bool = True


class Instance(NamedTuple):
    """One run of a sweep: one line, one depth, one seed."""

    line: str
    settings: Experiment  # of one seed

    @property
    def name(self) -> str:
        """A name that no run with other settings has."""
        seed = self.settings.run.seed
        return f"{self.line}-depth-{sea(self.settings).depth}-seed-{seed}-{run_dir.settings_hash(self.settings)[:8]}"


def instances(sweep: Sweep, size: SweepSize) -> list[Instance]:
    """Every run of a sweep, always in the same order."""
    seeds = range(sweep.first_seed, sweep.first_seed + size.seeds)
    return [
        Instance(
            line.name,
            check(_settings(line, depth, Run(1, seed, size.episodes, sweep.stop_when_solved))),
        )
        for depth in size.depths
        for line in sweep.lines
        if line.deepest is None or depth <= line.deepest
        for seed in seeds
    ]


def _settings(line: SweepLine, depth: int, run: Run) -> Experiment:
    return Experiment(DeepSea(depth, line.stochastic), line.agent, line.learner, run)


def sizes(smoke: SweepSize, desk: SweepSize, paper: SweepSize) -> dict[str, SweepSize]:
    """One size a scale."""
    return dict(zip(SCALES, (smoke, desk, paper), strict=True))


SEARCHED_IN: dict[str, tuple[float, float]] = {  # drawn between these, evenly in the logarithm
    "policy_rate": (0.02, 0.2),
    "value_rate": (0.05, 0.5),
    "reward_rate": (0.02, 0.2),
    "tau_learning_rate": (0.01, 0.1),
    "learning_rate": (1e-4, 2e-3),
    "value_weight": (0.05, 1.0),
}


SEARCHED = sizes(
    SweepSize((10,), 2, 2_000), SweepSize((20, 40), 4, 20_000), SweepSize((20, 30, 40), 16, 100_000)
)
ROBUSTNESS = sizes(
    SweepSize((10, 15), 3, 3_000),
    SweepSize((20, 40), 5, 20_000),
    SweepSize((10, 20, 30, 40, 50), 5, 100_000),
)


class LineFactory:
    """The lines of a study whose agents have one kind of network."""

    def __init__(self, network: str) -> None:
        """network: mlp, or table, whose records were made when `ersac` was the name of the sampled critic."""
        named = {"ersac": TABLE_PRESETS["ersac-sampled"], "ersac-expected": TABLE_PRESETS["ersac"]}
        boot = {name: PRESETS[name] for name in ("boot-dqn", "boot-dqn-large")}
        self.presets: dict[str, Any] = (
            PRESETS if network == "mlp" else {**TABLE_PRESETS, **boot, **named}
        )

    def line(self, name: str, agent: str, deepest: int | None = None, **changes: Any) -> SweepLine:
        """An agent's preset under a name, with some of its settings changed."""
        return SweepLine(name, agent, override(self.presets[agent], **changes), deepest)

    def counts(self) -> SweepLine:
        """ERSAC with visit counts as its source of sigma."""
        return SweepLine(
            "ersac-counts", "ersac", replace_at(self.presets["ersac"], ("uncertainty",), Counts())
        )

    def as_printed(self, variance: float, **ensemble: Any) -> SweepLine:
        """Replay as the paper adds it: the sampled critic, everything else as the on-policy agent has it."""
        learner = replace_at(self.presets["ersac"], ("buffer",), Replay())
        learner = replace_at(
            learner, ("uncertainty",), Ensemble(noise_variance=variance, **ensemble)
        )
        return SweepLine(f"as-printed-noise-{variance:g}", "ersac-replay", learner)

    def candidates(self, count: int) -> tuple[SweepLine, ...]:
        """ERSAC with settings drawn at random: always the same ones."""
        rng = random.Random(0)
        draw = lambda low, high: float(f"{low * (high / low) ** rng.random():.3g}")
        drawn = lambda: (
            {"lam": rng.choice((0.6, 0.8, 0.9, 0.95))}
            | {name: draw(*span) for name, span in SEARCHED_IN.items()}
        )
        return tuple(self.line(f"candidate-{n}", "ersac", None, **drawn()) for n in range(count))


def study(network: str) -> dict[str, Sweep]:
    """The sweeps of the DeepSea study, of agents with networks or with tables."""
    lines = LineFactory(network)
    line, is_table = lines.line, network == "table"
    ersac, counts = line("ersac", "ersac"), lines.counts()
    vanilla, optimism = (
        line("vanilla", "vanilla", deepest=20),
        line("optimism", "optimism", deepest=100),
    )
    replay, replay_max = (
        line("ersac-replay", "ersac-replay"),
        line("ersac-replay-max", "ersac-replay-max"),
    )
    far: dict[str, Any] = (
        {"gamma": 0.999, "lam": 0.95, "prior_scale": 0.1, "max_logit_gap": 8}
        if is_table
        else {"gamma": 0.999}
    )
    of_tables = lambda: (
        line("no-policy-rows", "ersac", policy_rate=0.0),
        line("no-value-rows", "ersac", value_rate=0.0),
        line("no-reward-rows", "ersac", reward_rate=0.0),
        line("no-limit", "ersac", advantage_limit=1e9),
        line("logit-limit", "ersac", max_logit_gap=8),
        line("shared-reward-heads", "ersac", shared_reward_heads=True),
        line("critic-apart", "ersac", value_weight=0.0),
        line("rows-only", "ersac", learning_rate=0.0),
    )
    of_networks = lambda: (
        line("sampled", "ersac-sampled"),
        line("two-passes", "ersac", passes=2),
        line("no-running-spread", "ersac", spread_decay=0.0),
        line("no-spread", "ersac", normalise_advantages=False),
        line("no-limit", "ersac", advantage_limit=1e9),
        line("narrow-estimator", "ersac", estimator_hidden=(64,)),
        line("two-layers", "ersac", hidden=(64, 64)),
        line("upper-1", "ersac", upper_percent=1),
        line("upper-30", "ersac", upper_percent=30),
        line("all-of-sigma", "ersac", sigma_scale=1.0),
    )
    return {
        "solve-time": Sweep(
            "episodes until solved against depth",
            (ersac, optimism, vanilla),
            sizes(
                SweepSize((5, 10, 15, 20), 3, 3_000),
                SweepSize((10, 20, 30, 40, 50), 5, 30_000),
                SweepSize(tuple(range(10, 101, 10)), 5, 100_000),
            ),
        ),
        "boot-dqn": Sweep(
            "Bootstrapped DQN beside it: an update a step is dear, so it has depths and seeds of its own",
            (
                line("boot-dqn", "boot-dqn", deepest=60),
                line("boot-dqn-large", "boot-dqn-large", deepest=60),
            ),
            sizes(
                SweepSize((5, 10), 2, 1_000),
                SweepSize((10, 20, 30, 40, 50), 5, 5_000),
                SweepSize(tuple(range(10, 61, 10)), 5, 100_000),
            ),
        ),
        "vanilla-wall": Sweep(
            "where actor-critic without optimism stops",
            (vanilla,),
            sizes(
                SweepSize((5, 8), 2, 2_000),
                SweepSize((10, 12, 14, 16, 18), 5, 100_000),
                SweepSize((10, 12, 14, 16, 18), 20, 1_000_000),
            ),
        ),
        "depth-100": Sweep(
            "a hundred seeds at depth 100, each to the end of its budget: who falls back after it was solved",
            (ersac,),
            sizes(
                SweepSize((15,), 8, 2_000),
                SweepSize((100,), 16, 100_000),
                SweepSize((100,), 100, 100_000),
            ),
            stop_when_solved=False,
        ),
        "depth-250": Sweep(
            "depth 250, with the discount and the mixing that the paper takes there",
            (line("ersac-far", "ersac", **far),),
            sizes(
                SweepSize((25,), 2, 5_000),
                SweepSize((250,), 10, 150_000),
                SweepSize((250,), 100, 1_000_000),
            ),
            first_seed=FAR,
        ),
        "expected": Sweep(
            "what it buys to know the bonus of every action",
            (
                line("ersac-expected", "ersac-expected")
                if is_table
                else line("ersac-sampled", "ersac-sampled"),
            ),
            sizes(
                SweepSize((5, 10), 2, 1_500),
                SweepSize((20, 40, 100), 20, 30_000),
                SweepSize(tuple(range(10, 101, 10)), 20, 100_000),
            ),
        ),
        "replay": Sweep(
            "episodes until solved against depth, with what is remembered and without",
            (replay, ersac, replay_max),
            sizes(
                SweepSize((5, 10, 15), 2, 1_500),
                SweepSize((10, 20, 30, 40, 50), 5, 10_000),
                SweepSize((*range(10, 101, 10), 125, 151), 5, 100_000),
            ),
        ),
        "replay-law": Sweep(
            "how the solve time with replay grows with depth",
            (replay,),
            sizes(
                SweepSize((5, 10, 15), 2, 1_500),
                SweepSize(tuple(range(10, 101, 10)), 5, 10_000),
                SweepSize((*range(10, 101, 10), 125, 151), 5, 100_000),
            ),
        ),
        "replay-100": Sweep(
            "depth 100: when the goal is first reached, and how soon every episode reaches it",
            (replay, ersac, replay_max),
            sizes(
                SweepSize((12,), 4, 1_500),
                SweepSize((100,), 20, 40_000),
                SweepSize((100,), 100, 100_000),
            ),
        ),
        "replay-noise": Sweep(
            "noise that is stored with each step, and none: what keeps sigma from being replayed away",
            (
                *(
                    line(f"noise-{variance:g}", "ersac-replay", noise_variance=variance)
                    for variance in (1e-5, 1e-4, 1e-3, 0.1, 0.0)
                ),
                *(
                    lines.as_printed(
                        variance,
                        **({"shared_reward_heads": True} if is_table else {"reward_rate": 0.3}),
                    )
                    for variance in (0.0025, 0.0)
                ),
            ),
            sizes(
                SweepSize((5, 10), 2, 1_000),
                SweepSize((20, 40), 5, 4_000),
                SweepSize((10, 20, 30, 40, 50), 10, 20_000),
            ),
        ),
        "replay-ablation": Sweep(
            "what each ingredient of ersac-replay-max buys",
            (
                replay_max,
                line("sampled-critic", "ersac-replay-max", critic="sampled"),
                line("trained-ensemble", "ersac-replay", updates=4),
                line("one-update", "ersac-replay-max", updates=1),
                line("sixteen-updates", "ersac-replay-max", updates=16),
                line("rollout-50", "ersac-replay-max", rollout=50),
                line("no-priorities", "ersac-replay-max", priority_exponent=0.0),
                line("newest-only", "ersac-replay-max", offline_fraction=0.0),
                line("rows-only", "ersac-replay-max", learning_rate=0.0),
            ),
            sizes(
                SweepSize((10,), 2, 500),
                SweepSize((20, 40), 5, 2_000),
                SweepSize((20, 40, 50, 100), 10, 10_000),
            ),
        ),
        "robustness-lambda": Sweep(
            "TD(lambda) from one step to the whole episode",
            tuple(
                line(f"lambda-{lam}", "ersac", lam=lam) for lam in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
            ),
            ROBUSTNESS,
        ),
        "robustness-rollout": Sweep(
            "steps between updates",
            tuple(line(f"rollout-{steps}", "ersac", rollout=steps) for steps in (1, 5, 10, 25, 50)),
            ROBUSTNESS,
        ),
        "robustness-tau": Sweep(
            "where tau starts, played and fixed",
            tuple(
                line(
                    f"tau-{tau0}-{'learned' if learned else 'fixed'}",
                    "ersac",
                    tau0=tau0,
                    learn_tau=learned,
                )
                for learned in (True, False)
                for tau0 in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
            ),
            ROBUSTNESS,
        ),
        "stochastic": Sweep(
            "DeepSea whose right moves slip",
            tuple(
                each._replace(name=f"{each.name}-stochastic", stochastic=True)
                for each in (ersac, optimism, vanilla)
            ),
            sizes(
                SweepSize((5, 10), 2, 3_000),
                SweepSize((10, 20, 30), 5, 30_000),
                SweepSize((10, 20, 30, 40, 50), 5, 100_000),
            ),
        ),
        "search": Sweep(
            "ERSAC's own settings, drawn at random, on seeds that are never reported",
            (ersac, *lines.candidates(31)),
            sizes(
                SweepSize((8,), 1, 1_000),
                SweepSize((60,), 4, 20_000),
                SweepSize((60, 100), 4, 60_000),
            ),
            first_seed=TUNED,
        ),
        "baselines": Sweep(
            "a fair chance for each baseline: its entropy weight and its bonus, searched on seeds that are never reported",
            (
                *(
                    line(f"vanilla-alpha-{alpha}", "vanilla", alpha=alpha)
                    for alpha in (0.001, 0.003, 0.01, 0.03, 0.1)
                ),
                *(
                    line(f"optimism-mu-{mu}-alpha-{alpha}", "optimism", mu=mu, alpha=alpha)
                    for mu in (0.3, 1.0, 3.0)
                    for alpha in (0.003, 0.01, 0.03)
                ),
            ),
            SEARCHED,
            first_seed=TUNED,
        ),
        "ablation": Sweep(
            "what each choice of ours buys",
            (
                ersac,
                counts,
                *(of_tables() if is_table else of_networks()),
            ),
            sizes(
                SweepSize((10,), 3, 3_000),
                SweepSize((20, 40), 8, 20_000),
                SweepSize((20, 40, 60, 80, 100), 16, 100_000),
            ),
        ),
        "reliability": Sweep(
            "many short runs, for those who want to kill them",
            (ersac, vanilla, optimism, counts),
            sizes(
                SweepSize((5, 6, 8, 10, 12), 10, 3_000),
                SweepSize((5, 6, 8, 10, 12), 10, 10_000),
                SweepSize((5, 6, 8, 10, 12), 25, 10_000),
            ),
            stop_when_solved=False,
        ),
    }


SWEEPS: dict[str, Sweep] = study("mlp") | {
    f"{name}-table": sweep for name, sweep in study("table").items()
}


def list_sweeps() -> str:
    """Every sweep, how many runs it has at each scale, and what it is for."""
    lines = [f"  {'sweep':<20}{''.join(f'{scale:>8}' for scale in SCALES)}  runs"]
    for name, sweep in SWEEPS.items():
        counts = (len(instances(sweep, sweep.sizes[scale])) for scale in SCALES)
        lines.append(f"  {name:<20}{''.join(f'{count:>8}' for count in counts)}  {sweep.what}")
    return (
        "usage: ersac sweep NAME --scale smoke|desk|paper [--engine local|ray --out DIR]\n\n"
        + "\n".join(lines)
        + "\n"
    )
