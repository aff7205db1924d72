"""Optional packages, which the extras of ersac install."""

import importlib.util

from ersac.config import SettingsError


def require_package(user: str, package: str, extra: str | None = None) -> None:
    """Raise SettingsError if a package is missing that `user`, an option or environment, needs.

    extra: the extra of ersac that installs it; None: it is installed by its own name.
    """
    if is_missing(package):
        install = package if extra is None else f'".[{extra}]" in a checkout of ersac'
        raise SettingsError(f"{user} needs {package}: pip install {install}")


def is_missing(package: str) -> bool:
    """Whether a package is not installed."""
    return importlib.util.find_spec(package) is None
