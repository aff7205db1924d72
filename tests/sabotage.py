"""Mutation testing: put each fault into a copy of the source; its test must then fail.

Run `make sabotage`, or `python tests/sabotage.py WORD ...` for the faults whose description
contains one of the words. `--list` prints the faults, `--jobs 2` runs two at a time. A stale fault,
which matches nothing in the source, is an error.
"""

import argparse
import compileall
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from py_compile import PycInvalidationMode

from faults import FAULTS
from mutation import Fault, StaleFault, mutate

ROOT = Path(__file__).parent.parent
SECONDS_PER_TEST = 330  # a little more than the limit of a test
COPIED = ("src", "tests", "benchmarks", "docs", "README.md", "pyproject.toml")


def find_stale(faults: list[Fault], home: Path) -> list[str]:
    """Return a line for each fault that matches no source, or names a test that does not exist."""
    lines = []
    for fault in faults:
        try:
            mutate((home / "src" / "ersac" / fault.file).read_text(), fault)
        except (StaleFault, OSError) as error:
            lines.append(f"stale: {fault}: {error}")
        if not has_test(home / "tests" / fault.test_file, fault.test):
            lines.append(f"stale: {fault}: no test {fault.test_id}")
    return lines


def has_test(path: Path, name: str) -> bool:
    """Return whether a test file defines a test of that name (parameters are ignored)."""
    return path.exists() and (not name or f"def {name.partition('[')[0]}(" in path.read_text())


def copy_tree(home: Path) -> None:
    """Copy and compile the files that the tests need."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, home / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, home / name)
    # Bytecode checked by hash stays valid for every file except the one with the fault.
    mode = PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(home / "src", quiet=1, invalidation_mode=mode)


def run_tests(home: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests of a copy until the first failure."""
    flags = {
        "PYTHONPATH": str(home / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *(f"tests/{test}" for test in tests)]
    return subprocess.run(
        command,
        cwd=home,
        env=os.environ | flags,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_PER_TEST * len(tests),
    )


def failed_test(done: subprocess.CompletedProcess[str]) -> str | None:
    """Return the test that failed or could not be collected, if any; other failures raise."""
    if done.returncode == 0:
        return None
    if "KeyboardInterrupt" in done.stdout:  # a signal that the library should have caught
        return "a test that was interrupted"
    found = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", done.stdout, re.MULTILINE)
    if done.returncode not in (1, 2) or found is None:
        raise RuntimeError(f"the tests did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return found[1]


def run_fault(home: Path, fault: Fault) -> str | None:
    """Return the test that detects a fault in a copy, if any, and restore the copy."""
    path = home / "src" / "ersac" / fault.file
    source = path.read_text()
    path.write_text(mutate(source, fault))
    try:
        return failed_test(run_tests(home, [fault.test_id]))
    except subprocess.TimeoutExpired:  # stuck in C, where pytest's own time limit does not reach
        return f"{fault.test_id}, which did not end"
    finally:
        path.write_text(source)


def run_all(faults: list[Fault], jobs: int) -> list[Fault]:
    """Run the faults in `jobs` copies of the source; return those that no test detected."""
    start, missed = time.monotonic(), []
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(jobs) as pool:
        homes: queue.Queue[Path] = queue.Queue()
        for number in range(jobs):
            home = Path(directory) / str(number)
            home.mkdir()
            copy_tree(home)
            homes.put(home)

        def borrow(task, *args):
            home = homes.get()
            try:
                return task(home, *args)
            finally:
                homes.put(home)

        tests = list(dict.fromkeys(fault.test_id for fault in faults))
        print(f"{len(faults)} faults; first the {len(tests)} tests without faults", flush=True)
        parts = [tests[i::jobs] for i in range(min(jobs, len(tests)))]
        for failed in pool.map(lambda part: failed_test(borrow(run_tests, part)), parts):
            if failed is not None:
                sys.exit(f"{failed} fails without a fault")
        detected_by = pool.map(lambda fault: borrow(run_fault, fault), faults)
        for number, (fault, found) in enumerate(zip(faults, detected_by, strict=True), 1):
            missed += [] if found else [fault]
            outcome = f"caught by {found}" if found else f"MISSED by {fault.test_id}"
            progress = f"{number} of {len(faults)}, {time.monotonic() - start:.0f} s"
            print(f"[{progress}] {fault}: {outcome}", flush=True)
    return missed


def main(arguments: list[str]) -> int:
    """Run or list the faults; the exit code is 1 if one is stale or missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "words", nargs="*", help="run only the faults whose description contains a word"
    )
    parser.add_argument("--list", action="store_true", help="print the faults and run nothing")
    parser.add_argument("--jobs", type=int, default=1, help="faults to run at a time")
    options = parser.parse_args(arguments)
    chosen = lambda fault: any(word in f"{fault} {fault.test_id}" for word in options.words)
    faults = [fault for fault in FAULTS if not options.words or chosen(fault)]
    stale = find_stale(faults, ROOT)
    if options.list:
        print("\n".join(f"{fault}  {fault.test_id}" for fault in faults))
    if stale:
        print("\n".join(stale), file=sys.stderr)
        return 1
    if options.list:
        print(f"{len(faults)} faults, none stale")
        return 0
    missed = run_all(faults, options.jobs)
    print("\n".join([f"{len(faults) - len(missed)} of {len(faults)} caught", *map(str, missed)]))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
