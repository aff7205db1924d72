"""The entry point: find the command, turn expected errors into one line and an exit code."""

import io
import signal
import sys
import textwrap
from collections.abc import Callable

from ersac import __version__, config
from ersac.cli import commands
from ersac.config.presets import PRESETS
from ersac.runs import exits

USAGE = """usage: ersac COMMAND ...

  ersac train ENV [--agent NAME --seeds N ...]      train an agent; results go to runs/
  ersac resume RUN [--episodes N --exact ...]       continue a run from its last checkpoint
  ersac eval RUN [--episodes N --video FILE ...]    evaluate a trained policy
  ersac sweep NAME [--scale smoke|desk|paper ...]   run or finish a sweep, or list them
  ersac figure LABEL [--scale smoke|desk|paper]     draw a figure of the paper, or list them
  ersac runs [DIR]                                  list runs and sweeps with their status
  ersac compare PATH [PATH ...]                     compare agents: returns with 95 % intervals
  ersac export RUN [RUN ...] --to FILE              write records to CSV or Parquet
  ersac theory [deep-sea] [--depth N ...]           tabular experiments: regret and its bound
  ersac bench [--quick --json ...]                  measure speed
  ersac --version                                   print the version

`ersac COMMAND --help` lists the options of a command, `ersac train ENV --help` those of an agent.

environments: deep-sea, gymnax:ID, gym:ID (for example gym:CartPole-v1)
agents:       {agents}
"""
COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": commands.train_command,
    "resume": commands.resume_command,
    "eval": commands.eval_command,
    "sweep": commands.sweep_command,
    "figure": commands.figure_command,
    "runs": commands.runs_command,
    "compare": commands.compare_command,
    "export": commands.export_command,
    "theory": commands.theory_command,
    "bench": commands.bench_command,
}


def main(argv: list[str] | None = None) -> None:
    """Run a command and exit with its code."""
    argv = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):  # a name may hold what a terminal cannot show
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = dispatch(argv)
    except exits.EXPECTED as error:
        if "--debug" in argv:
            raise
        code = exits.exit_code(error)
        print(f"ersac: {exits.one_line(str(error))}", file=sys.stderr)
    except MemoryError:
        print("ersac: not enough memory; nothing that was saved is lost", file=sys.stderr)
        code = exits.RESUMABLE
    except KeyboardInterrupt:
        print("ersac: interrupted", file=sys.stderr)
        code = exits.signal_exit_code(signal.SIGINT)
    sys.exit(code)


def dispatch(argv: list[str]) -> int:
    """Run the command that the first argument names, and return its exit code."""
    match argv:
        case [] | ["-h" | "--help", *_] | ["train"] | ["train", "-h" | "--help"]:
            agents = textwrap.fill(", ".join(PRESETS), 80, break_on_hyphens=False)
            print(USAGE.format(agents=agents.replace("\n", "\n" + 14 * " ")), end="")
            return exits.OK
        case ["--version"]:
            print(f"ersac {__version__}")
            return exits.OK
        case [name, *rest]:
            return config.pick("command", name, COMMANDS)(rest)
    return exits.OK
