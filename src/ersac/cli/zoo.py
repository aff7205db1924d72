"""`ersac zoo` lists the trained agents that come with the package; `ersac animate` draws a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from ersac import config
from ersac.cli.commands import OutputOptions, print_json
from ersac.cli.parsing import parse
from ersac.config import Range, SettingsError
from ersac.runs import exits

STANDARD_OUTPUT = OutputOptions()


@dataclass(frozen=True)
class ZooOptions:
    """List the trained agents that come with the package: `ersac eval zoo:NAME` plays one."""

    output: OutputOptions = STANDARD_OUTPUT


@dataclass(frozen=True)
class AnimateOptions:
    """Animate a run on DeepSea: visits, sigma and policy. The run is repeated, with shorter chunks;
    its directory stays as it is."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """Run directory of a run on DeepSea that has ended."""
    out: Path | None = None
    """The animation, a .gif file that must not exist yet."""
    frames: Annotated[int, Range(2, 500)] = 70
    """Frames, about; one for each chunk of the repeated run."""
    output: OutputOptions = STANDARD_OUTPUT


def zoo_command(argv: list[str]) -> int:
    """`ersac zoo`."""
    options = parse(ZooOptions(), "ersac zoo", "zoo", argv)

    from ersac.policy.zoo import ZOO, zoo_agents

    agents = zoo_agents()
    if not options.output.quiet:
        print_zoo([ZOO + name for name in agents], list(agents.values()))
    rows = [agent._asdict() | {"path": str(agent.path)} for agent in agents.values()]
    return print_json({"agents": rows}, options.output)


def print_zoo(names: list[str], agents: list[Any]) -> None:
    """Print two lines for each agent: its result, and the command that trained it."""
    width = max(map(len, names), default=0)
    for name, agent in zip(names, agents, strict=True):
        interval = f"({agent.low:.4g} to {agent.high:.4g}), {agent.episodes:,} episodes"
        interval += " with --sample" if agent.sample else ""
        origin = f"settings {agent.settings_hash}, {agent.bytes / 1e3:,.0f} kB"
        print(f"{name:<{width}}  return {agent.mean_return:.4g} {interval}; {origin}")
        print(f"{'':<{width}}  {agent.command}")
    print('play one with `ersac eval zoo:NAME`, load it with ersac.load("zoo:NAME")', flush=True)


def animate_command(argv: list[str]) -> int:
    """`ersac animate RUN --out FILE.gif`."""
    options = parse(AnimateOptions(), "ersac animate", "animate", argv)
    if options.run is None or options.out is None:
        raise SettingsError("which run, and where to? ersac animate RUN --out FILE.gif")
    if options.out.suffix != ".gif":
        raise SettingsError(f"--out must be a .gif file, not {options.out}")
    run, out = options.run, options.out
    frames, show = config.check(options).frames, not options.output.quiet

    from ersac.runs import disk, run_dir

    disk.require_new(out)
    settings, summary = run_dir.read_finished_summary(run)
    if not settings.env.has_maps:
        name = config.env_name(settings.env)
        raise SettingsError(f"{run} is a run on {name}: only runs on deep-sea have maps")

    from ersac import api, display
    from ersac.analysis import animation

    maps: list[animation.MapFrame] = []
    shortened = animation.shorten_chunks(settings, summary["episodes"], frames)
    with exits.SignalWatcher() as watcher:
        api.run_experiment(
            shortened,
            None,
            display.make_display(show),
            poll=watcher.poll,
            on_chunk=animation.frame_collector(shortened, maps),
        )
    title = f"{settings.agent_name} on DeepSea, depth {settings.env.depth}"
    size = animation.write_animation(maps, title, out)
    if show:
        print(f"{out}: {len(maps)} frames, {size / 1e3:,.0f} kB", flush=True)
    result = {"gif": str(out), "run": str(run), "frames": len(maps)}
    return print_json(result | {"bytes": size}, options.output)
