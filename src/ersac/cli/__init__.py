"""The `ersac` command."""

from ersac.cli.main import dispatch, main

__all__ = ["dispatch", "main"]
