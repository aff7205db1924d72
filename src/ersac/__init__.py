"""Deep exploration by epistemic-risk-seeking policy optimisation, in JAX.

`train` trains an agent and returns a `Result`, `read` reads one from its directory, `load` loads a
saved policy, `sweep` trains every combination of some settings, `settings` lists what can be set.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ersac.api import Progress, Result, load, read, settings, sweep, train
    from ersac.config import SettingsError

__version__ = "0.1.0"
__all__ = [
    "Progress",
    "Result",
    "SettingsError",
    "load",
    "read",
    "settings",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import the API on first use: `ersac --help` and refused settings do not import it."""
    if name in __all__:
        from ersac import api

        return getattr(api, name)
    raise AttributeError(f"module 'ersac' has no attribute '{name}'")
