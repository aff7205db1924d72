"""`ersac doctor`: what is installed, what a run would see of the machine, and a short run."""

import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from ersac import config
from ersac.cli.commands import OutputOptions, print_json
from ersac.cli.parsing import parse
from ersac.runs import exits
from ersac.runs.fingerprint import fingerprint

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "optax", "tyro", "rich", "matplotlib")
VARIABLES = ("JAX_PLATFORMS", "XLA_FLAGS", "JAX_ENABLE_X64", "CUDA_VISIBLE_DEVICES", "RAY_ADDRESS")
NOT_SHOWN = ("dev", "all")  # extras


@dataclass(frozen=True)
class DoctorOptions:
    """Print versions, extras, cores, memory and devices as a run sees them; run for a second."""

    output: OutputOptions = field(default_factory=OutputOptions)


def doctor_command(argv: list[str]) -> int:
    """`ersac doctor`; exit code 2 where the short run fails."""
    options = parse(DoctorOptions(), "ersac doctor", "doctor", argv)
    report: dict[str, str] = {}
    for name, text in [*describe_installation(), *describe_machine(), describe_run()]:
        report[name] = text
        if not options.output.quiet:
            print(f"{name:<9} {text}", flush=True)
    print_json(report, options.output)
    return exits.SETTINGS if report["run"].startswith("failed") else exits.OK


def describe_installation() -> Iterator[tuple[str, str]]:
    """Versions, and which extras are installed."""
    yield "ersac", f"{metadata.version('ersac')} in {os.path.dirname(os.path.dirname(__file__))}"
    yield "python", f"{platform.python_version()} in {sys.prefix}; {platform.platform()}"
    yield "packages", ", ".join(f"{name} {version_of(name)}" for name in PACKAGES)
    found = {extra: missing_packages(extra) for extra in extras() if extra not in NOT_SHOWN}
    present = [extra for extra, missing in found.items() if not missing]
    yield "extras", ", ".join(present) or "none"
    absent = [f"{extra} ({', '.join(missing)})" for extra, missing in found.items() if missing]
    yield "missing", (", ".join(absent) or "none") + '; install with: pip install ".[EXTRA]"'


def version_of(package: str) -> str:
    """The installed version of a package, or 'missing'."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def extras() -> list[str]:
    """The extras of ersac."""
    return metadata.metadata("ersac").get_all("Provides-Extra") or []


def missing_packages(extra: str) -> list[str]:
    """The packages of an extra that are not installed; extras that it names are followed."""
    needed = [line for line in metadata.requires("ersac") or [] if names_extra(line, extra)]
    missing: list[str] = []
    for line in needed:
        found = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", line)
        assert found is not None, line
        name, inner = found.groups()
        if name == "ersac":
            missing += [package for part in inner.split(",") for package in missing_packages(part)]
        elif version_of(name) == "missing":
            missing.append(name)
    return missing


def names_extra(requirement: str, extra: str) -> bool:
    """Whether a requirement belongs to an extra."""
    return re.search(rf"extra == ['\"]{re.escape(extra)}['\"]", requirement) is not None


def describe_machine() -> Iterator[tuple[str, str]]:
    """Cores, memory, variables and devices, as a run sees them."""
    from ersac.loops import devices  # imports jax, which --help does not need

    cores, machine = devices.visible_cores(), fingerprint()["machine"]
    yield "cores", f"{cores} of {os.cpu_count()}; {machine}"
    yield "memory", f"{config.memory_bytes() / 1e9:.1f} GB"
    variables = [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ]
    yield "variables", ", ".join(variables) or "none of " + ", ".join(VARIABLES)
    yield "devices", describe_devices()


def describe_devices() -> str:
    """The devices that jax finds, or why it finds none."""
    try:
        from ersac.loops import devices

        devices.claim_cores()  # as a run does
        import jax

        found = [f"{device.platform} {device.device_kind}" for device in jax.local_devices()]
        return ", ".join(f"{found.count(name)} x {name}" for name in dict.fromkeys(found))
    except Exception as error:  # jax raises many kinds where a platform cannot be used
        return f"none: {config.truncate(' '.join(str(error).split()))}"


def describe_run() -> tuple[str, str]:
    """A run of about a second on DeepSea, in words."""
    from ersac import api

    started = time.perf_counter()
    try:
        result: Any = api.train(depth=10, seeds=1, episodes=2_000, show=False)
    except Exception as error:  # whatever is wrong with the installation, it is reported
        return "run", f"failed: {config.truncate(' '.join(f'{error!r}'.split()))}"
    solved = result.summary()["solved_reliable"][0]
    what = "not solved" if solved is None else f"solved after {solved:,} episodes"
    seconds = time.perf_counter() - started
    speed = f"{result.steps_per_second:,.0f} steps/s"
    return "run", (
        f"DeepSea of depth 10 {what}, {speed}; {seconds:.1f} s in all, "
        f"{result.compile_seconds:.1f} s of it compiling"
    )
