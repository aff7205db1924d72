"""Registers the environments of broken.py, for commands: `ersac train gym:faulty:LateRaises-v0`."""

import broken
import gymnasium

for name, cls in list(vars(broken).items()):
    if isinstance(cls, type) and cls.__module__ == "broken":
        gymnasium.register(id=f"{name}-v0", entry_point=f"broken:{name}")
