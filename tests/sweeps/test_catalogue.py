"""The catalogue: what a scale changes, which seeds a sweep uses, and unique names."""

import subprocess
import sys

import pytest

from ersac import config
from ersac.sweeps import catalogue

every_sweep = pytest.mark.parametrize("sweep", catalogue.SWEEPS.values(), ids=catalogue.SWEEPS)


def instances_at(sweep: catalogue.Sweep, scale: str) -> list[catalogue.Instance]:
    return catalogue.instances(sweep, sweep.sizes[scale])


@every_sweep
def test_names_are_unique_and_valid_directory_names(sweep):
    for scale in catalogue.SCALES:
        names = [instance.name for instance in instances_at(sweep, scale)]
        assert len(set(names)) == len(names) > 0
        assert catalogue.count_instances(sweep, sweep.sizes[scale]) == len(names)
        assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") for name in names)


@every_sweep
def test_a_scale_changes_depths_seeds_and_episodes_only(sweep):
    same = lambda instance: (
        instance.line,
        config.override(instance.settings, depth=1, seed=0, episodes=1),
    )
    smoke, desk, paper = (
        {same(instance) for instance in instances_at(sweep, scale)} for scale in catalogue.SCALES
    )
    assert smoke == {
        same(instance)
        for line in sweep.lines
        for instance in instances_at(
            sweep._replace(lines=(line._replace(max_depth=None),)), "paper"
        )
    }
    assert desk <= smoke
    assert paper <= smoke


@every_sweep
def test_tuning_seeds_are_never_reported(sweep):
    assert sweep.first_seed == catalogue.TUNING_SEED or sweep.first_seed >= catalogue.REPORT_SEED
    seeds = {
        instance.settings.run.seed
        for scale in catalogue.SCALES
        for instance in instances_at(sweep, scale)
    }
    allowed = range(100) if sweep.first_seed == catalogue.TUNING_SEED else range(1000, 2**31)
    assert all(seed in allowed for seed in seeds)
    assert all(
        instance.settings.run.seeds == 1
        for scale in catalogue.SCALES
        for instance in instances_at(sweep, scale)
    )


@every_sweep
def test_no_run_is_deeper_than_its_line_allows(sweep):
    max_depths = {line.name: line.max_depth for line in sweep.lines}
    for scale in catalogue.SCALES:
        assert all(
            instance.settings.env.depth <= (max_depths[instance.line] or 1000)
            for instance in instances_at(sweep, scale)
        )


def test_the_reliability_sweep_has_200_runs_of_4_agents():
    found = instances_at(catalogue.SWEEPS["reliability"], "smoke")
    assert len(found) == 200
    assert len({instance.line for instance in found}) == 4
    assert {instance.settings.env.depth for instance in found} <= set(range(5, 13))


def ersac(*argv: str) -> subprocess.CompletedProcess[str]:
    """A command in a process in which jax and Ray cannot be imported."""
    code = (
        "import sys; sys.modules['jax'] = sys.modules['ray'] = None;"
        " from ersac import cli; cli.main(sys.argv[1:])"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("argv", "code", "stderr"),
    [
        ((), 0, ""),
        (("solvetime",), 2, "ersac: unknown sweep 'solvetime'; did you mean solve-time?\n"),
        (
            ("solve-time", "--scale", "pape"),
            2,
            "ersac: unknown scale 'pape'; did you mean paper?\n",
        ),
        (
            ("solve-time", "--engine", "cloud"),
            2,
            "ersac: unknown engine 'cloud'; known: local, ray\n",
        ),
        (
            ("solve-time", "--engine", "ray"),
            2,
            'ersac: --engine ray needs ray: pip install ".[ray]" in a checkout of ersac\n',
        ),
    ],
)
def test_errors_are_one_line_and_come_before_jax(argv, code, stderr):
    done = ersac("sweep", *argv)
    assert (done.returncode, done.stderr) == (code, stderr)
    if "--" not in "".join(argv):
        assert all(f"\n  {name} " in done.stdout for name in catalogue.SWEEPS)
