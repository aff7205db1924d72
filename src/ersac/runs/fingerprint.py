"""The fingerprint of a run: what decides its bits besides its settings. No jax here."""

import contextlib
import os
import platform
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from ersac import config

PACKAGES = ("ersac", "jax", "jaxlib", "numpy", "optax")
SIMULATORS = {  # modules of Gymnasium environments, and their packages
    "gymnasium": "gymnasium",
    "minigrid": "minigrid",
    "ale_py": "ale-py",
    "bsuite": "bsuite",
    "mujoco": "mujoco",
    "Box2D": "box2d",
}


def fingerprint(env: config.Environment | None = None) -> dict[str, Any]:
    """Return what decides the bits of a run besides its settings: versions, machine, flags."""
    packages = {name: metadata.version(name) for name in PACKAGES}
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": packages | env_packages(env),
        "machine": f"{platform.machine()} {processor_name()}".strip(),
        "system": platform.system(),
        "visible_cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def exactness_fields(env: config.Environment | None = None) -> dict[str, Any]:
    """Return the part of the fingerprint that a bit-exact resume depends on, by readable names."""
    data = fingerprint(env)
    names = ("visible_cores", "machine", "system", "xla_flags", "python")
    return {name.replace("_", " "): data[name] for name in names} | data["packages"]


def env_packages(env: config.Environment | None) -> dict[str, str]:
    """Return the versions of the packages that step an environment, once it has been created.

    They are its simulator's, which has been imported by then, and its own module's.
    """
    names: set[str] = set()
    if isinstance(env, config.Gymnax):
        names = {"gymnax"}
    elif isinstance(env, config.Atari):
        names = {"ale-py", "gymnasium", "opencv-python-headless"}
    elif isinstance(env, config.Gym):
        names = {package for module, package in SIMULATORS.items() if module in sys.modules}
        own = getattr(env.make, "func", env.make)  # of a partial
        module = getattr(own, "__module__", None) or env.id.rpartition(":")[0]
        if top := module.partition(".")[0]:
            names |= set(metadata.packages_distributions().get(top, ())) - {"ersac"}
    versions = {}
    for name in sorted(names):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the first processor's name, family and model where the system has them.

    Compiled code depends on them, and a virtual machine may show several models by one name.
    """
    names = ("model name", "cpu family", "model")
    found: dict[str, str] = {}
    with contextlib.suppress(OSError), open(cpuinfo) as file:
        for line in file:
            name, _, value = (part.strip() for part in line.partition(":"))
            if not name:  # the next processor follows
                break
            if name in names:
                found[name] = value
    texts = [found.get(names[0], ""), *(f"{n} {found[n]}" for n in names[1:] if n in found)]
    return " ".join(filter(None, texts))
