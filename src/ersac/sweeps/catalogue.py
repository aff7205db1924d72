"""Sweeps as data: which agents, at which depths, with which seeds. No jax here.

A scale changes depths, seeds and episodes, never another setting: `smoke` takes minutes on two
cores, `desk` hours, `paper` has the paper's numbers. Reported results use seeds from 1000, tuning
uses seeds below 100.
"""

import random
from typing import Any, NamedTuple

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
    deep_sea_env,
    override,
    replace_at,
)
from ersac.config.presets import PRESETS, TABLE_PRESETS
from ersac.runs import run_dir

SCALES = ("smoke", "desk", "paper")
TUNING_SEED, REPORT_SEED = 0, 1000  # the first of each
DEPTH_250_SEED = 1200  # earlier seeds were used to choose the settings of depth 250
LOCAL_SEED = 1100  # some of the seeds before it were tried with other settings of ersac-local


class SweepLine(NamedTuple):
    """One line of a figure: an agent's settings under a name."""

    name: str
    agent: str
    learner: ActorCritic | BootDQN
    max_depth: int | None = None  # deeper, it is known to fail: its budget would be wasted
    stochastic: bool = False


class SweepSize(NamedTuple):
    """How much of a sweep is run at one scale."""

    depths: tuple[int, ...]
    seeds: int
    episodes: int


class Sweep(NamedTuple):
    """Every line at every depth with every seed."""

    purpose: str  # one line for `ersac sweep`
    lines: tuple[SweepLine, ...]
    sizes: dict[str, SweepSize]  # by scale
    first_seed: int = REPORT_SEED
    stop_when_solved: bool = True


class Instance(NamedTuple):
    """One run of a sweep: one line, one depth, one seed."""

    line: str
    settings: Experiment  # of one seed

    @property
    def name(self) -> str:
        """A directory name that no run with other settings has."""
        depth, seed = deep_sea_env(self.settings).depth, self.settings.run.seed
        digest = run_dir.settings_hash(self.settings)[:8]
        return f"{self.line}-depth-{depth}-seed-{seed}-{digest}"


def instances(sweep: Sweep, size: SweepSize) -> list[Instance]:
    """Every run of a sweep, always in the same order."""
    seeds = range(sweep.first_seed, sweep.first_seed + size.seeds)
    run = lambda seed: Run(1, seed, size.episodes, sweep.stop_when_solved)
    return [
        Instance(line.name, check(_settings(line, depth, run(seed))))
        for depth, line in _depths_and_lines(sweep, size)
        for seed in seeds
    ]


def count_instances(sweep: Sweep, size: SweepSize) -> int:
    """How many instances a sweep has, without making them."""
    return size.seeds * len(_depths_and_lines(sweep, size))


def _depths_and_lines(sweep: Sweep, size: SweepSize) -> list[tuple[int, SweepLine]]:
    return [
        (depth, line)
        for depth in size.depths
        for line in sweep.lines
        if line.max_depth is None or depth <= line.max_depth
    ]


def _settings(line: SweepLine, depth: int, run: Run) -> Experiment:
    return Experiment(DeepSea(depth, line.stochastic), line.agent, line.learner, run)


def sizes(smoke: SweepSize, desk: SweepSize, paper: SweepSize) -> dict[str, SweepSize]:
    """The sizes by scale."""
    return dict(zip(SCALES, (smoke, desk, paper), strict=True))


SEARCH_RANGES: dict[str, tuple[float, float]] = {  # drawn log-uniformly between these
    "policy_rate": (0.02, 0.2),
    "value_rate": (0.05, 0.5),
    "reward_rate": (0.02, 0.2),
    "tau_learning_rate": (0.01, 0.1),
    "learning_rate": (1e-4, 2e-3),
    "value_weight": (0.05, 1.0),
}
BASELINE_SIZES = sizes(
    SweepSize((10,), 2, 2_000), SweepSize((20, 40), 4, 20_000), SweepSize((20, 30, 40), 16, 100_000)
)
ROBUSTNESS_SIZES = sizes(
    SweepSize((10,), 3, 3_000),
    SweepSize((20, 40), 5, 20_000),
    SweepSize((10, 20, 30, 40, 50), 5, 100_000),
)


class LineFactory:
    """Makes the lines of sweeps whose agents have one network type, mlp or table."""

    def __init__(self, network: str) -> None:
        self.is_table = network == "table"
        # The records of table sweeps are from before `ersac-sampled` was renamed from `ersac`.
        renamed = {
            "ersac": TABLE_PRESETS["ersac-sampled"],
            "ersac-expected": TABLE_PRESETS["ersac"],
        }
        boot = {name: PRESETS[name] for name in ("boot-dqn", "boot-dqn-large")}
        self.presets: dict[str, Any] = (
            {**TABLE_PRESETS, **boot, **renamed} if self.is_table else PRESETS
        )

    def line(
        self, name: str, agent: str, max_depth: int | None = None, **changes: Any
    ) -> SweepLine:
        """An agent's preset under a name, with some settings changed."""
        return SweepLine(name, agent, override(self.presets[agent], **changes), max_depth)

    def counts(self) -> SweepLine:
        """ERSAC with visit counts as its estimator of sigma."""
        learner = replace_at(self.presets["ersac"], ("uncertainty",), Counts())
        return SweepLine("ersac-counts", "ersac", learner)

    def as_printed(self, variance: float, **ensemble: Any) -> SweepLine:
        """Replay as the paper describes it: the sampled critic, all else as on-policy."""
        learner = replace_at(self.presets["ersac"], ("buffer",), Replay())
        estimator = Ensemble(noise_variance=variance, **ensemble)
        learner = replace_at(learner, ("uncertainty",), estimator)
        return SweepLine(f"as-printed-noise-{variance:g}", "ersac-replay", learner)

    def candidates(self, count: int) -> tuple[SweepLine, ...]:
        """ERSAC with randomly drawn settings: the same ones in every process."""
        rng = random.Random(0)
        log_uniform = lambda low, high: float(f"{low * (high / low) ** rng.random():.3g}")
        draw = lambda: (
            {"lam": rng.choice((0.6, 0.8, 0.9, 0.95))}
            | {name: log_uniform(*bounds) for name, bounds in SEARCH_RANGES.items()}
        )
        return tuple(self.line(f"candidate-{n}", "ersac", None, **draw()) for n in range(count))

    def baselines(self) -> tuple[SweepLine, SweepLine, SweepLine]:
        """ERSAC, optimism and vanilla, the latter two as deep as they get."""
        return (
            self.line("ersac", "ersac"),
            self.line("optimism", "optimism", max_depth=100),
            self.line("vanilla", "vanilla", max_depth=20),
        )


def depth_sweeps(lines: LineFactory) -> dict[str, Sweep]:
    """Solve times against depth, and single depths."""
    line = lines.line
    ersac, optimism, vanilla = lines.baselines()
    far: dict[str, Any] = {"gamma": 0.999}
    if lines.is_table:
        far |= {"lam": 0.95, "prior_scale": 0.1, "max_logit_gap": 8}
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
            "Bootstrapped DQN; one update per step is slow, so it has its own depths and seeds",
            (
                line("boot-dqn", "boot-dqn", max_depth=60),
                line("boot-dqn-large", "boot-dqn-large", max_depth=60),
            ),
            sizes(
                SweepSize((5, 10), 2, 1_000),
                SweepSize((10, 20, 30, 40, 50), 5, 5_000),
                SweepSize(tuple(range(10, 61, 10)), 5, 100_000),
            ),
        ),
        "vanilla-wall": Sweep(
            "the depth at which actor-critic without optimism stops solving",
            (vanilla,),
            sizes(
                SweepSize((5, 8), 2, 2_000),
                SweepSize((10, 12, 14, 16, 18), 5, 100_000),
                SweepSize((10, 12, 14, 16, 18), 20, 1_000_000),
            ),
        ),
        "depth-100": Sweep(
            "a hundred seeds at depth 100, to the end of the budget: which fall back",
            (ersac,),
            sizes(
                SweepSize((15,), 8, 2_000),
                SweepSize((100,), 16, 100_000),
                SweepSize((100,), 100, 100_000),
            ),
            stop_when_solved=False,
        ),
        "depth-250": Sweep(
            "depth 250, with the paper's discount and lambda for it",
            (line("ersac-far", "ersac", **far),),
            sizes(
                SweepSize((25,), 2, 5_000),
                SweepSize((250,), 10, 150_000),
                SweepSize((250,), 100, 1_000_000),
            ),
            first_seed=DEPTH_250_SEED,
        ),
        "expected": Sweep(
            "the effect of knowing the bonus of every action",
            (
                line("ersac-expected", "ersac-expected")
                if lines.is_table
                else line("ersac-sampled", "ersac-sampled"),
            ),
            sizes(
                SweepSize((5, 10), 2, 1_500),
                SweepSize((20, 40, 100), 20, 30_000),
                SweepSize(tuple(range(10, 101, 10)), 20, 100_000),
            ),
        ),
    }


def replay_sweeps(lines: LineFactory) -> dict[str, Sweep]:
    """Agents with a replay buffer."""
    line = lines.line
    ersac = line("ersac", "ersac")
    replay = line("ersac-replay", "ersac-replay")
    replay_max = line("ersac-replay-max", "ersac-replay-max")
    return {
        "replay": Sweep(
            "episodes until solved against depth, with and without replay",
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
            "depth 100: when the goal is first reached, and when every episode reaches it",
            (replay, ersac, replay_max),
            sizes(
                SweepSize((12,), 4, 1_500),
                SweepSize((100,), 20, 40_000),
                SweepSize((100,), 100, 100_000),
            ),
        ),
        "replay-noise": Sweep(
            "replay with and without stored reward noise, which keeps sigma from collapsing",
            (
                *(
                    line(f"noise-{variance:g}", "ersac-replay", noise_variance=variance)
                    for variance in (1e-5, 1e-4, 1e-3, 0.1, 0.0)
                ),
                *(
                    lines.as_printed(
                        variance,
                        **(
                            {"shared_reward_heads": True}
                            if lines.is_table
                            else {"reward_rate": 0.3}
                        ),
                    )
                    for variance in (0.0025, 0.0)
                ),
            ),
            sizes(
                SweepSize((10,), 2, 1_000),
                SweepSize((20, 40), 5, 4_000),
                SweepSize((10, 20, 30, 40, 50), 10, 20_000),
            ),
        ),
        "replay-ablation": Sweep(
            "the effect of each ingredient of ersac-replay-max",
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
    }


def stochastic_lines(*lines: SweepLine) -> tuple[SweepLine, ...]:
    """The same lines on stochastic DeepSea."""
    return tuple(line._replace(name=f"{line.name}-stochastic", stochastic=True) for line in lines)


def local_sweeps(lines: LineFactory) -> dict[str, Sweep]:
    """A tau for each state and action, beside one tau for all."""
    line = lines.line
    local = line("ersac-local", "ersac-local")
    return {
        "local": Sweep(
            "episodes until solved against depth, with a tau for each state and action",
            (local,),
            sizes(
                SweepSize((5, 10), 2, 1_500),
                SweepSize(tuple(range(10, 101, 10)), 5, 30_000),
                SweepSize(tuple(range(10, 101, 10)), 20, 100_000),
            ),
            first_seed=LOCAL_SEED,
        ),
        "local-100": Sweep(
            "a hundred seeds at depth 100, to the end of the budget, with a tau for each state",
            (local,),
            sizes(
                SweepSize((15,), 8, 2_000),
                SweepSize((100,), 20, 30_000),
                SweepSize((100,), 100, 30_000),
            ),
            first_seed=LOCAL_SEED,
            stop_when_solved=False,
        ),
        "local-far": Sweep(
            "depth 250 and deeper, with a tau for each state and action",
            (line("ersac-local-far", "ersac-local", gamma=0.999),),
            sizes(
                SweepSize((25,), 2, 5_000),
                SweepSize((250,), 20, 150_000),
                SweepSize((250, 400, 500), 20, 1_000_000),
            ),
            first_seed=LOCAL_SEED,
        ),
        "local-replay": Sweep(
            "episodes until solved against depth, with replay and a tau for each state and action",
            (line("ersac-local-replay", "ersac-local-replay"),),
            sizes(
                SweepSize((5, 10, 15), 2, 1_500),
                SweepSize((10, 20, 40, 50, 100), 5, 10_000),
                SweepSize((*range(10, 101, 10), 250), 20, 40_000),
            ),
            first_seed=LOCAL_SEED,
        ),
        "local-stochastic": Sweep(
            "stochastic DeepSea, one tau and a tau for each state and action",
            stochastic_lines(local, line("ersac", "ersac")),
            sizes(
                SweepSize((5, 10), 2, 3_000),
                SweepSize((10, 20, 30), 5, 30_000),
                SweepSize((10, 20, 30, 40, 50), 20, 100_000),
            ),
            first_seed=LOCAL_SEED,
        ),
    }


def robustness_sweeps(lines: LineFactory) -> dict[str, Sweep]:
    """ERSAC with other settings, and stochastic DeepSea."""
    line = lines.line
    ersac, optimism, vanilla = lines.baselines()
    return {
        "robustness-lambda": Sweep(
            "TD(lambda) from one step to the whole episode",
            tuple(
                line(f"lambda-{lam}", "ersac", lam=lam) for lam in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
            ),
            ROBUSTNESS_SIZES,
        ),
        "robustness-rollout": Sweep(
            "steps between updates",
            tuple(line(f"rollout-{steps}", "ersac", rollout=steps) for steps in (1, 5, 10, 25, 50)),
            ROBUSTNESS_SIZES,
        ),
        "robustness-tau": Sweep(
            "the initial tau, learned and fixed",
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
            ROBUSTNESS_SIZES,
        ),
        "stochastic": Sweep(
            "DeepSea whose moves to the right sometimes fail",
            stochastic_lines(ersac, optimism, vanilla),
            sizes(
                SweepSize((5, 10), 2, 3_000),
                SweepSize((10, 20, 30), 5, 30_000),
                SweepSize((10, 20, 30, 40, 50), 5, 100_000),
            ),
        ),
    }


def ablations(lines: LineFactory) -> tuple[SweepLine, ...]:
    """ERSAC with one of its design choices changed."""
    line = lines.line
    if lines.is_table:
        return (
            line("no-policy-rows", "ersac", policy_rate=0.0),
            line("no-value-rows", "ersac", value_rate=0.0),
            line("no-reward-rows", "ersac", reward_rate=0.0),
            line("no-limit", "ersac", advantage_limit=1e9),
            line("logit-limit", "ersac", max_logit_gap=8),
            line("shared-reward-heads", "ersac", shared_reward_heads=True),
            line("critic-apart", "ersac", value_weight=0.0),
            line("rows-only", "ersac", learning_rate=0.0),
        )
    return (
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


def tuning_sweeps(lines: LineFactory) -> dict[str, Sweep]:
    """Searches for settings, ablations, and runs for the reliability tests."""
    line = lines.line
    ersac, optimism, vanilla = lines.baselines()
    counts = lines.counts()
    return {
        "search": Sweep(
            "ERSAC's settings, drawn at random, on tuning seeds",
            (ersac, *lines.candidates(31)),
            sizes(
                SweepSize((8,), 1, 1_000),
                SweepSize((60,), 4, 20_000),
                SweepSize((60, 100), 4, 60_000),
            ),
            first_seed=TUNING_SEED,
        ),
        "baselines": Sweep(
            "the entropy weight and the bonus of each baseline, on tuning seeds",
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
            BASELINE_SIZES,
            first_seed=TUNING_SEED,
        ),
        "ablation": Sweep(
            "the effect of each design choice of ERSAC",
            (ersac, counts, *ablations(lines)),
            sizes(
                SweepSize((10,), 3, 3_000),
                SweepSize((20, 40), 8, 20_000),
                SweepSize((20, 40, 60, 80, 100), 16, 100_000),
            ),
        ),
        "reliability": Sweep(
            "many short runs, to be interrupted by the reliability tests",
            (ersac, vanilla, optimism, counts),
            sizes(
                SweepSize((5, 6, 8, 10, 12), 10, 3_000),
                SweepSize((5, 6, 8, 10, 12), 10, 10_000),
                SweepSize((5, 6, 8, 10, 12), 25, 10_000),
            ),
            stop_when_solved=False,
        ),
    }


def deep_sea_sweeps(network: str) -> dict[str, Sweep]:
    """The sweeps of the DeepSea study for agents with one network type, mlp or table."""
    lines = LineFactory(network)
    return {
        **depth_sweeps(lines),
        **replay_sweeps(lines),
        **local_sweeps(lines),
        **robustness_sweeps(lines),
        **tuning_sweeps(lines),
    }


SWEEPS: dict[str, Sweep] = deep_sea_sweeps("mlp") | {
    f"{name}-table": sweep for name, sweep in deep_sea_sweeps("table").items()
}


def list_sweeps() -> str:
    """The usage of `ersac sweep`: a line per sweep with its runs at each scale and its purpose."""
    lines = [f"  {'sweep':<20}{''.join(f'{scale:>8}' for scale in SCALES)}  runs"]
    for name, sweep in SWEEPS.items():
        counts = (count_instances(sweep, sweep.sizes[scale]) for scale in SCALES)
        columns = "".join(f"{count:>8}" for count in counts)
        lines.append(f"  {name:<20}{columns}  {sweep.purpose}")
    return (
        "usage: ersac sweep NAME --scale smoke|desk|paper [--engine local|ray --out DIR]\n\n"
        + "\n".join(lines)
        + "\n"
    )
