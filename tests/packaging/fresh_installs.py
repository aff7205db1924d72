"""Install the wheel in fresh environments and run a command in each: `make test-installs`.

One environment per Python (those of 3.11, 3.12 and 3.13 that are found), one per extra, one with
the lowest and one with the newest version of every direct dependency. Names choose some of them:
`python tests/packaging/fresh_installs.py 3.12 gymnax lowest`. It needs an index of packages, and
uv (`pip install uv`) for the lowest versions; with it the rest is faster too. The exit code is the
number of failures.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
RUN = ["ersac", "train", "deep-sea", "--depth", "5", "--seeds", "2", "--episodes", "300"]
RUN += ["--no-stop-when-solved", "--out", "run", "--quiet"]
# Resume, eval and load are what failed on Python 3.12.0 to 3.12.3 (cpython gh-118513).
AFTER = [
    ["ersac", "resume", "run", "--episodes", "400", "--quiet"],
    ["ersac", "eval", "run", "--episodes", "3", "--quiet"],
    ["python", "-m", "ersac", "export", "run", "--to", "run.csv", "--quiet"],
    ["python", "-c", "import ersac; r = ersac.train(depth=3, seeds=1, episodes=50, show=False); "
     "r.save('p.npz'); ersac.load('p.npz')(0)"],
]  # fmt: skip
GYM = [
    ["ersac", "train", "CartPole-v1", "--steps", "2000", "--out", "pole", "--quiet"],
    ["ersac", "eval", "pole", "--episodes", "2", "--quiet"],
    ["ersac", "train", "MiniGrid-Empty-5x5-v0", "--steps", "2000", "--out", "grid", "--quiet"],
]


class Install(NamedTuple):
    """An environment to make, and the commands to run in it."""

    name: str
    python: str
    extra: str | None
    commands: list[list[str]]
    resolution: str = "highest"  # of uv; pip where it is 'highest'


def plan_installs(pythons: dict[str, str]) -> list[Install]:
    """Every environment; those of the extras have the oldest Python that is found."""
    first = next(iter(pythons.values()))
    by_extra = {
        "gym": GYM,
        "gymnax": [
            ["ersac", "train", "gymnax:CartPole-v1", "--steps", "2000", "--out", "x", "--quiet"],
            ["ersac", "eval", "x", "--episodes", "2", "--quiet"],
        ],
        "atari": [["python", "-c", "import ale_py; from ersac.envs.gym.make import env_factory; "
                   "env_factory('ALE/Pong-v5')().reset(seed=0)"]],
        "ray": [["ersac", "sweep", "vanilla-wall", "--scale", "smoke", "--engine", "ray", "--quiet",
                 "--out", "sweep"]],
        "report": [RUN, ["ersac", "report", "run", "--out", "report.html", "--quiet"]],
        "track": [[*RUN, "--tensorboard", "--wandb"],
                  ["tensorboard", "--version"],
                  ["ersac", "export", "run", "--to", "run.parquet", "--quiet"]],
    }  # fmt: skip
    installs = [Install(name, path, None, [RUN, *AFTER]) for name, path in pythons.items()]
    installs += [Install(extra, first, extra, rows) for extra, rows in by_extra.items()]
    installs += [Install("all", first, "all", [RUN, *AFTER, *GYM])]
    both = [RUN, *AFTER, *GYM]
    installs += [Install("lowest", first, "gym", both, "lowest-direct")]
    last = list(pythons.values())[-1]
    installs += [Install("newest", last, "gym", both)]
    return installs


def find_pythons(given: Sequence[str]) -> dict[str, str]:
    """The interpreters by version: those given, and pythonX.Y on the PATH."""
    found = {}
    for path in [*given, *(f"python{version}" for version in PYTHONS)]:
        if executable := shutil.which(path):
            code = "import sys; print('%d.%d' % sys.version_info[:2])"
            done = subprocess.run([executable, "-c", code], capture_output=True, text=True)
            version = done.stdout.strip()
            if done.returncode == 0 and version in PYTHONS:  # a shim may name nothing
                found.setdefault(version, executable)
    return dict(sorted(found.items()))


def run(command: Sequence[str], home: Path, log: Path) -> int:
    """Run a command in an environment's directory; its output is appended to the log."""
    paths = {"PATH": f"{home / 'env' / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")} | paths
    with log.open("a") as file:
        print("$", *command, file=file, flush=True)
        return subprocess.run(
            command, cwd=home, env=env, stdout=file, stderr=subprocess.STDOUT, timeout=1800
        ).returncode


def try_install(install: Install, wheel: Path, work: Path, prefix: Sequence[str]) -> str:
    """Make the environment, install, run the commands; 'ok', or what failed.

    prefix: a program that runs each command, such as nice.
    """
    uv = shutil.which("uv")
    home = work / install.name
    home.mkdir()
    log = work / f"{install.name}.log"
    what = f"{wheel}[{install.extra}]" if install.extra else str(wheel)
    if run([install.python, "-m", "venv", "env"], home, log):
        return "no environment"
    python = str(home / "env" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet"]
    if uv is not None:  # much faster, because it keeps what it has downloaded unpacked
        pip = [uv, "pip", "install", "--quiet", "--python", python]
    if install.resolution != "highest":
        if uv is None:
            return "skipped: needs uv"
        # Those of the wheel would be indirect dependencies, which this leaves as new as possible.
        direct = ["-r", str(ROOT / "pyproject.toml"), "--extra", install.extra or "gym"]
        if run([*pip, "--resolution", install.resolution, *direct], home, log):
            return "cannot be installed"
    if run([*pip, what], home, log):
        return "cannot be installed"
    for command in install.commands:
        if code := run([*prefix, *command], home, log):
            return f"{' '.join(command[:3])}: exit code {code}"
    return "ok"


def main(argv: Sequence[str] | None = None) -> int:
    """Try every environment and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="environments to try; by default all")
    parser.add_argument("--python", action="append", default=[], help="an interpreter to use")
    parser.add_argument("--prefix", default="", help="a program to run each command with: nice")
    parser.add_argument("--work", type=Path, help="directory for environments and logs, kept")
    options = parser.parse_args(argv)
    work = Path(options.work or tempfile.mkdtemp(prefix="ersac-installs-")).absolute()
    work.mkdir(parents=True, exist_ok=True)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(work), "."]
    subprocess.run(build, cwd=ROOT, check=True)
    (wheel,) = work.glob("ersac-*.whl")
    rows = []
    for install in plan_installs(find_pythons(options.python)):
        if options.names and install.name not in options.names:
            continue
        start = time.monotonic()
        outcome = try_install(install, wheel, work, options.prefix.split())
        rows.append((install, outcome, time.monotonic() - start))
        print(f"{install.name}: {outcome}", flush=True)
        if outcome == "ok":
            shutil.rmtree(work / install.name)
    print("\n| environment | Python | extra | versions | result | s |\n|---|---|---|---|---|---|")
    for install, outcome, seconds in rows:
        version = re.sub(r".*?(3\.\d+(\.\d+)?).*", r"\1", install.python)
        cells = (install.name, version, install.extra or "-", install.resolution, outcome)
        print(f"| {' | '.join(cells)} | {seconds:.0f} |")
    failures = sum(outcome != "ok" for _, outcome, _ in rows)
    print(f"\n{len(rows) - failures} of {len(rows)} ok; logs in {work}")
    return failures


if __name__ == "__main__":
    sys.exit(main())
