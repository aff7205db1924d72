"""The experiments of `ersac theory`: JSON objects, tables and figures."""

import dataclasses
import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

from ersac import config
from ersac.theory import experiments
from ersac.theory.settings import TABULAR_AGENTS, Learners, TheoryDeepSea, TheoryRegret

# The draws and episodes of test_agents.py, so that its compiled programs are reused.
SMALL = TheoryRegret(
    horizon=3,
    states=3,
    actions=2,
    reward_std=1.0,
    draws=40,
    episodes=300,
    depths=(4, 6),
    deep_sea_seeds=3,
)


def test_settings_need_no_jax():
    probe = "import sys, ersac.theory.settings; assert not {'jax', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", probe], check=True)


def test_default_settings_pass_the_checks():
    assert config.check(TheoryRegret()) == TheoryRegret()
    assert config.check(TheoryDeepSea()) == TheoryDeepSea()


def test_deep_sea_is_one_json_object():
    result = experiments.run_deep_sea(TheoryDeepSea(depth=6, seeds=3, seed=7, episodes=400))
    assert json.loads(json.dumps(result)) == result
    assert (result["agent"], result["env"], result["depth"], result["seeds"]) == (
        "k-learning",
        "deep-sea",
        6,
        3,
    )
    assert result["episodes"] == experiments.CHUNK  # stopped once all were solved
    assert [row["seed"] for row in result["per_seed"]] == [7, 8, 9]
    for row in result["per_seed"]:
        assert 1 <= row["first_goal"] <= row["solved_bsuite"] <= row["solved_reliable"] <= 250


def test_a_seed_does_not_depend_on_the_other_seeds():
    first, second = (
        experiments.run_deep_sea(TheoryDeepSea(depth=6, seeds=3, seed=seed, episodes=400))[
            "per_seed"
        ]
        for seed in (7, 8)
    )
    assert first[1:] == second[:-1]


def test_a_rule_that_is_never_met_is_null():
    result = experiments.run_deep_sea(
        TheoryDeepSea(depth=12, agent="epsilon-greedy", seeds=2, episodes=30)
    )
    assert result["episodes"] == 30
    assert [row["first_goal"] for row in result["per_seed"]] == [None, None]
    assert '"solved_bsuite": null' in json.dumps(result)


def test_progress_is_printed_to_the_console():
    output = io.StringIO()
    experiments.run_deep_sea(TheoryDeepSea(depth=6, seeds=3, episodes=250), Console(file=output))
    assert "depth 6: episode 250 of 250, 3 of 3 seeds solved" in output.getvalue()


@pytest.mark.parametrize("name", TABULAR_AGENTS)
def test_every_agent_name_makes_an_agent(name):
    assert experiments.make_tabular_agent(name, Learners(), 1.0).plan


def test_an_unknown_agent_is_a_one_line_error():
    with pytest.raises(config.SettingsError, match=r"unknown agent 'k-lerning'.*k-learning"):
        experiments.run_deep_sea(TheoryDeepSea(agent="k-lerning"))


@pytest.mark.slow
def test_theory_prints_and_draws_and_returns_the_numbers(tmp_path):
    output = io.StringIO()
    numbers = experiments.run_regret(SMALL, tmp_path / "theory", Console(file=output, width=160))
    written = {path.name for path in (tmp_path / "theory").iterdir()}
    assert written == {"regret.png", "decomposition.png", "tau.png", "deep-sea.png", "theory.json"}
    assert json.loads((tmp_path / "theory" / "theory.json").read_text()) == numbers
    assert "NaN" not in json.dumps(numbers)
    assert set(numbers["regret"]) == {*TABULAR_AGENTS, experiments.BOUND_AGENT}
    assert numbers["regret"]["psrl"]["over_psrl"] == 1
    assert (
        numbers["regret"][experiments.BOUND_AGENT]["regret"]
        < numbers["regret"][experiments.BOUND_AGENT]["dist_plus_optimism"]
        < numbers["regret_bound"]
    )
    assert numbers["deep_sea"]["depths"] == [4, 6]
    for text in ("Bayesian regret over 300 episodes", "epsilon-greedy", "bsuite's rule"):
        assert text in output.getvalue()


@pytest.mark.slow
def test_theory_runs_without_an_output_directory_and_prints_nothing_without_a_console(capsys):
    numbers = experiments.run_regret(dataclasses.replace(SMALL, depths=(6,)), None)
    assert numbers["deep_sea"]["fit"] is None
    assert capsys.readouterr().out == ""
