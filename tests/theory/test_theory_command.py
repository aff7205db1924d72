"""What `ersac theory` calls: one JSON object, tables and pictures."""

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

# As many draws and episodes as test_agents plays, so that what is compiled there serves here.
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
    answer = experiments.run_deep_sea(TheoryDeepSea(depth=6, seeds=3, seed=7, episodes=400))
    assert json.loads(json.dumps(answer)) == answer
    assert (answer["agent"], answer["env"], answer["depth"], answer["seeds"]) == (
        "k-learning",
        "deep-sea",
        6,
        3,
    )
    assert answer["episodes"] == experiments.CHUNK  # it stopped when all were solved
    assert [row["seed"] for row in answer["per_seed"]] == [7, 8, 9]
    for row in answer["per_seed"]:
        assert 1 <= row["first_goal"] <= row["solved_bsuite"] <= row["solved_reliable"] <= 250


def test_seeds_do_not_depend_on_their_neighbours():
    first, second = (
        experiments.run_deep_sea(TheoryDeepSea(depth=6, seeds=3, seed=seed, episodes=400))[
            "per_seed"
        ]
        for seed in (7, 8)
    )
    assert first[1:] == second[:-1]


def test_what_is_not_reached_is_null():
    answer = experiments.run_deep_sea(
        TheoryDeepSea(depth=12, agent="epsilon-greedy", seeds=2, episodes=30)
    )
    assert answer["episodes"] == 30
    assert [row["first_goal"] for row in answer["per_seed"]] == [None, None]
    assert '"solved_bsuite": null' in json.dumps(answer)


def test_progress_is_told_where_it_is_wanted():
    heard = io.StringIO()
    experiments.run_deep_sea(TheoryDeepSea(depth=6, seeds=3, episodes=250), Console(file=heard))
    assert "depth 6: episode 250 of 250, 3 of 3 seeds solved" in heard.getvalue()


@pytest.mark.parametrize("name", TABULAR_AGENTS)
def test_every_name_is_an_agent(name):
    assert experiments.make_tabular_agent(name, Learners(), 1.0).plan


def test_an_unknown_agent_is_one_clear_line():
    with pytest.raises(config.SettingsError, match=r"unknown agent 'k-lerning'.*k-learning"):
        experiments.run_deep_sea(TheoryDeepSea(agent="k-lerning"))


@pytest.mark.slow
def test_theory_prints_and_draws_and_returns_the_numbers(tmp_path):
    heard = io.StringIO()
    numbers = experiments.run_regret(SMALL, tmp_path / "theory", Console(file=heard, width=160))
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
        assert text in heard.getvalue()


@pytest.mark.slow
def test_theory_needs_no_directory():
    settings = dataclasses.replace(SMALL, depths=(6,))
    assert (
        experiments.run_regret(settings, None, Console(file=io.StringIO()))["deep_sea"]["fit"]
        is None
    )
