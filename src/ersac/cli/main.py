"""The entry point: find the command, turn expected errors into one line and an exit code."""

import io
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Callable

from ersac import __version__, config
from ersac.cli import commands
from ersac.cli.completion import completion_command
from ersac.cli.doctor import doctor_command
from ersac.cli.report import report_command
from ersac.cli.reproduce import reproduce_command
from ersac.cli.score import score_command
from ersac.cli.sweep import figure_command, sweep_command
from ersac.cli.theory import theory_command
from ersac.cli.watch import watch_command
from ersac.cli.zoo import animate_command, zoo_command
from ersac.config.presets import PRESETS
from ersac.runs import exits

USAGE = """usage: ersac COMMAND ...

  ersac train ENV [--agent NAME --seeds N ...]      train an agent; results go to runs/
  ersac resume RUN [--episodes N --exact ...]       continue a run from its last checkpoint
  ersac eval RUN [--episodes N --video FILE ...]    evaluate a trained policy
  ersac zoo                                         list trained agents: ersac eval zoo:NAME
  ersac animate RUN --out FILE.gif                  animate a run on DeepSea
  ersac sweep NAME [--scale smoke|desk|paper ...]   run or finish a sweep, or list them
  ersac sweep FILE.toml [--engine local|ray ...]    the same for a sweep of your own
  ersac figure LABEL [--scale smoke|desk|paper]     draw a figure of the paper, or list them
  ersac reproduce [--scale smoke|desk|paper ...]    draw all figures, judge the paper's claims
  ersac score module:Agent [--depth N ...]          play an agent of yours on DeepSea
  ersac runs [DIR]                                  list runs and sweeps with their status
  ersac compare PATH [PATH ...]                     compare agents: returns with 95 % intervals
  ersac report RUN [RUN ...] --out FILE.html        write one page that shows runs, or --serve it
  ersac watch RUN                                   follow a run that goes on in another process
  ersac export RUN [RUN ...] --to FILE              write records to CSV or Parquet
  ersac theory [deep-sea|games] [--depth N ...]     tabular experiments: regret and its bound
  ersac bench [--quick --json ...]                  measure speed
  ersac doctor                                      show versions, devices and extras; try a run
  ersac completion bash|zsh                         print a completion script for a shell
  ersac --version                                   print the version

`ersac COMMAND --help` lists the most used options of a command, --help-all every option.

environments: deep-sea, gymnax:ID, atari:GAME, an id of Gymnasium (CartPole-v1), module:Class
agents:       {agents}

example: ersac train deep-sea --depth 20 --agent ersac --seeds 4
"""
COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": commands.train_command,
    "resume": commands.resume_command,
    "eval": commands.eval_command,
    "zoo": zoo_command,
    "animate": animate_command,
    "sweep": sweep_command,
    "figure": figure_command,
    "reproduce": reproduce_command,
    "score": score_command,
    "runs": commands.runs_command,
    "compare": commands.compare_command,
    "report": report_command,
    "watch": watch_command,
    "export": commands.export_command,
    "theory": theory_command,
    "bench": commands.bench_command,
    "doctor": doctor_command,
    "completion": completion_command,
}


def main(argv: list[str] | None = None) -> None:
    """Run a command and exit with its code.

    argv: the words of the command; None: those of this process, which then ends.
    """
    words = sys.argv[1:] if argv is None else argv
    if argv is None:
        open_standard_files()
    for stream in (sys.stdout, sys.stderr):  # a name may hold what a terminal cannot show
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = dispatch(words)
    except exits.EXPECTED as error:
        if "--debug" in words:
            raise
        code = exits.exit_code(error)
        exits.print_error(str(error))
    except MemoryError:
        exits.print_error("not enough memory; nothing that was saved is lost")
        code = exits.RESUMABLE
    except KeyboardInterrupt:
        exits.print_error("interrupted")
        code = exits.signal_exit_code(signal.SIGINT)
    if argv is None:
        code = prepare_end(code)
    sys.exit(code)


def prepare_end(code: int) -> int:
    """Let this process end quietly, whatever still runs and whatever signal comes."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = flush_output() or code
    if any(thread.name in exits.LEFT_BEHIND for thread in threading.enumerate()):
        os._exit(code)  # libraries may not be taken down while they compute
    return code


def open_standard_files() -> None:
    """Open those of the three standard files that are closed: a run's file would take their place.

    Libraries write their messages to descriptor 2, whatever that is.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest that is free


def flush_output() -> int:
    """Write what standard output still holds; return 0, or an exit code if that fails."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # Python would try again at its end, and print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        exits.print_error(f"cannot write to standard output: {error.strerror}")
        return exits.IO
    return exits.OK


def dispatch(argv: list[str]) -> int:
    """Run the command that the first argument names, and return its exit code."""
    match argv:
        case [] | ["-h" | "--help" | "--help-all" | "help"]:
            agents = textwrap.fill(", ".join(PRESETS), 80, break_on_hyphens=False)
            print(USAGE.format(agents=agents.replace("\n", "\n" + 14 * " ")), end="")
            return exits.OK
        case ["help", name, *rest] if not name.startswith("-"):
            return dispatch([name, *rest, "--help"])
        case ["-V" | "--version"]:
            print(f"ersac {__version__}")
            return exits.OK
        case [name, *rest]:
            return config.pick("command", name, COMMANDS)(rest)
    return exits.OK
