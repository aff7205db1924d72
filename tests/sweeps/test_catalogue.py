"""Sweeps are data: what a scale may change, which seeds are whose, and no two runs under one name."""

import subprocess
import sys

import pytest

from ersac import config
from ersac.sweeps import catalogue

every = pytest.mark.parametrize("sweep", catalogue.SWEEPS.values(), ids=catalogue.SWEEPS)


def at(sweep: catalogue.Sweep, scale: str) -> list[catalogue.Instance]:
    return catalogue.instances(sweep, sweep.sizes[scale])


@every
def test_names_are_unique_and_good_for_a_directory(sweep):
    for scale in catalogue.SCALES:
        names = [instance.name for instance in at(sweep, scale)]
        assert len(set(names)) == len(names) > 0
        assert catalogue.count_instances(sweep, sweep.sizes[scale]) == len(names)
        assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") for name in names)


@every
def test_a_scale_changes_depths_seeds_and_episodes_only(sweep):
    same = lambda each: (each.line, config.override(each.settings, depth=1, seed=0, episodes=1))
    smoke, desk, paper = ({same(each) for each in at(sweep, scale)} for scale in catalogue.SCALES)
    assert smoke == {
        same(each)
        for line in sweep.lines
        for each in at(sweep._replace(lines=(line._replace(max_depth=None),)), "paper")
    }
    assert desk <= smoke
    assert paper <= smoke


@every
def test_what_is_tuned_is_never_reported(sweep):
    assert sweep.first_seed == catalogue.TUNING_SEED or sweep.first_seed >= catalogue.REPORT_SEED
    seeds = {each.settings.run.seed for scale in catalogue.SCALES for each in at(sweep, scale)}
    allowed = range(100) if sweep.first_seed == catalogue.TUNING_SEED else range(1000, 2**31)
    assert all(seed in allowed for seed in seeds)
    assert all(
        each.settings.run.seeds == 1 for scale in catalogue.SCALES for each in at(sweep, scale)
    )


@every
def test_nothing_is_run_beyond_where_it_is_known_to_fail(sweep):
    max_depths = {line.name: line.max_depth for line in sweep.lines}
    for scale in catalogue.SCALES:
        assert all(
            each.settings.env.depth <= (max_depths[each.line] or 1000) for each in at(sweep, scale)
        )


def test_the_sweep_to_be_killed_has_200_runs_of_4_agents():
    found = at(catalogue.SWEEPS["reliability"], "smoke")
    assert len(found) == 200
    assert len({each.line for each in found}) == 4
    assert {each.settings.env.depth for each in found} <= set(range(5, 13))


def ersac(*argv: str) -> subprocess.CompletedProcess[str]:
    """A command in a process in which jax and Ray cannot be imported."""
    code = "import sys; sys.modules['jax'] = sys.modules['ray'] = None; from ersac import cli; cli.main(sys.argv[1:])"
    return subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("argv", "code", "told"),
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
            'ersac: --engine ray needs ray: pip install "ersac[ray]"\n',
        ),
    ],
)
def test_the_command_refuses_in_one_line_before_jax(argv, code, told):
    done = ersac("sweep", *argv)
    assert (done.returncode, done.stderr) == (code, told)
    if "--" not in "".join(argv):
        assert all(f"\n  {name} " in done.stdout for name in catalogue.SWEEPS)
