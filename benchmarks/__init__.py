"""Side-by-side speed and memory, printed as ratios; `ersac bench`."""


def main(argv: list[str] | None = None) -> int:
    """Measure and print; imported late, so that naming this package costs nothing."""
    from benchmarks.__main__ import main

    return main(argv)
