"""`ersac bench`: speed and memory beside other implementations, as ratios."""


def main(argv: list[str] | None = None) -> int:
    """Run `ersac bench`; imported late, so that importing this package is cheap."""
    from benchmarks.__main__ import main

    return main(argv)
