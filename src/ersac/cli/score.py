"""`ersac score`: play an agent of one's own on DeepSea."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro

from ersac import config
from ersac.cli import commands
from ersac.cli.parsing import parse
from ersac.packages import require_package


@dataclass(frozen=True)
class ScoreOptions:
    """Play an agent on DeepSea and print its row of the scoreboard (docs/scoreboard.md)."""

    agent: Annotated[str, tyro.conf.Positional] = ""
    """What makes the agent, module:function or module:Class. An agent has act(obs) -> action and
    observe(obs, action, reward, next_obs, done)."""
    depth: Annotated[int, config.Range(1, 1000)] = 20
    """Rows and columns of DeepSea."""
    seeds: Annotated[int, config.Range(1, 10_000)] = 5
    """Number of seeds; each has its own action mapping."""
    seed: Annotated[int, config.Range(0, 2**31 - 1)] = 1000
    """The first seed; the others are consecutive."""
    episodes: config.Episodes = 10_000
    """Episodes per seed; a seed ends early when it is solved by both rules."""
    observations: Literal["one-hot", "index"] = "one-hot"
    """What the agent sees: a vector with a one at its cell, or the number of the cell (-1 after the
    last step)."""
    approximation: Literal["network", "table", "exact"] = "network"
    """What the agent learns with, for its row."""
    samples: Annotated[float, config.Range(0)] | None = None
    """Gradient samples for each environment step, for the row of the agent."""
    method: str | None = None
    """Name of the agent in its row; by default module:Class."""
    output: commands.OutputOptions = field(default_factory=commands.OutputOptions)


def score_command(argv: list[str]) -> int:
    """`ersac score module:Agent ...`."""
    options = parse(ScoreOptions(), "ersac score", "score", argv)
    if not options.agent:
        raise config.SettingsError("which agent? ersac score module:Class")
    config.check(options)
    require_package("ersac score", "gymnasium", "gym")

    from ersac.analysis import score_agent

    maker = score_agent.load_agent(options.agent)
    task = score_agent.ScoreTask(options.depth, options.episodes, options.observations == "one-hot")
    seeds = play_all(maker, task, options)
    rows = [
        score_agent.score_row(
            options.method or options.agent,
            task,
            seeds,
            rule,
            options.approximation,
            options.samples,
            score_source(options),
        )
        for rule in ("reliable", "bsuite")
    ]
    if not options.output.quiet:
        print_score(seeds, rows)
    per_seed = [seed._asdict() for seed in seeds]
    return commands.print_json({"rows": rows, "per_seed": per_seed}, options.output)


def score_source(options: ScoreOptions) -> str:
    """The command that made a row."""
    return (
        f"`ersac score {options.agent} --depth {options.depth} --seeds {options.seeds} "
        f"--seed {options.seed} --episodes {options.episodes} "
        f"--observations {options.observations}`"
    )


def play_all(maker: Any, task: Any, options: ScoreOptions) -> list[Any]:
    """Play every seed, with a progress bar."""
    from rich.console import Console

    from ersac import display
    from ersac.analysis import score_agent

    console = Console(stderr=True, quiet=options.output.quiet)
    found = []
    with display.make_progress_bar(console) as bar:
        total = options.seeds * options.episodes
        row = bar.add_task("", total=total, eta="")
        for number in range(options.seeds):
            seed = options.seed + number
            base = number * options.episodes

            def show(episode: int, seed: int = seed, base: int = base) -> None:
                text = f"seed {seed}, episode {episode:,}"
                bar.update(row, completed=base + episode, description=text)

            found.append(score_agent.play_seed(maker, task, seed, show))
        bar.update(row, completed=total)
    return found


def print_score(seeds: list[Any], rows: list[dict[str, Any]]) -> None:
    """Print the seeds, and a row of the scoreboard for each rule."""
    from ersac.analysis import scoreboard
    from ersac.cli import summaries
    from ersac.runs.exits import printable

    summaries.print_seeds([seed._asdict() for seed in seeds])
    print(f"depth {rows[0]['depth']}, for docs/scoreboard.md:")
    for line in scoreboard.markdown_table(rows):
        print(printable(line), flush=True)
