"""The agents that come with the package: small, as recorded, and playable by name."""

import json
import math

import numpy as np
import pytest

import ersac
from ersac.cli.main import COMMANDS, main
from ersac.config import SettingsError
from ersac.policy import zoo
from ersac.policy.policy import load_policy, policy_bytes
from ersac.runs import run_dir, seal

AGENTS = zoo.zoo_agents()
QUICK = ("deep-sea-20", "lock")
LOCK_KEYS = "3021132010"


def run_command(capsys, *argv: str) -> list[str]:
    with pytest.raises(SystemExit) as stop:
        main(list(argv))
    assert stop.value.code in (0, None)
    return capsys.readouterr().out.splitlines()


def test_the_files_are_small_and_the_index_lists_all_of_them():
    sizes = {path.stem: path.stat().st_size for path in zoo.DIRECTORY.glob("*.npz")}
    assert sizes == {name: agent.bytes for name, agent in AGENTS.items()}
    assert all(size < 2_000_000 for size in sizes.values())
    assert sum(sizes.values()) < 6_000_000


@pytest.mark.parametrize("name", AGENTS)
def test_a_file_holds_the_run_that_its_command_describes(name):
    agent = AGENTS[name]
    arrays = seal.unseal_arrays(agent.path.read_bytes(), compressed=True)  # its digest is right
    about = json.loads(arrays["about"].tobytes())
    settings = run_dir.settings_from_json(about["settings"])
    assert run_dir.settings_hash(settings) == agent.settings_hash
    assert (about["seed"], settings.run.seed) == (agent.seed, agent.seed)
    assert agent.seed >= 1000, "a held-out seed"
    words = agent.command.split()
    assert words[:3] == ["ersac", "train", agent.env]
    assert f"--seed {agent.seed}" in agent.command
    for option, value in (("--steps", settings.run.steps), ("--depth", settings.env.depth)):
        assert (f"{option} {value}" in agent.command) == (value is not None)


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in AGENTS],
)
def test_an_agent_plays_as_recorded(name):
    """The mean of new episodes is within the recorded interval, widened by its own error."""
    pytest.importorskip("gymnasium")
    if name == "minigrid-doorkey":
        pytest.importorskip("minigrid")
    if name == "breakout":
        pytest.importorskip("gymnax")
    agent = AGENTS[name]
    episodes = 10 if name in QUICK else 100
    result = ersac.load(f"zoo:{name}").evaluate(
        episodes, sample=agent.sample, eval_seed=7, show=False
    )
    error = 3 * (result.stderr_return or 0.0)
    width = agent.high - agent.low
    assert agent.low <= agent.mean_return <= agent.high
    assert agent.low - width - error - 1e-5 <= result.mean_return
    assert result.mean_return <= agent.high + width + error + 1e-5


def test_the_lock_is_opened_step_by_step():
    policy = ersac.load("zoo:lock")
    assert "".join(str(policy(number)) for number in range(10)) == LOCK_KEYS


def test_deep_sea_reaches_the_treasure_by_depth_right_moves():
    from ersac.envs.deep_sea import action_map

    policy, depth = ersac.load("zoo:deep-sea-20"), 20
    right = action_map(depth, AGENTS["deep-sea-20"].seed)
    diagonal = np.arange(depth)
    actions = np.array([policy(int(cell)) for cell in diagonal * depth + diagonal])
    np.testing.assert_array_equal(actions, right[diagonal, diagonal])


def test_a_rounded_copy_is_what_was_saved(tmp_path):
    """A compressed file holds the same learner as the one that save() writes."""
    policy = ersac.load("zoo:lock")
    policy.save(tmp_path / "lock.npz")
    again = load_policy(tmp_path / "lock.npz")
    assert bytes(policy_bytes(again.trained)) == bytes(policy_bytes(policy.trained))


def test_the_list_names_command_settings_result_and_interval(capsys):
    *lines, last = run_command(capsys, "zoo", "--json")
    rows = {row["name"]: row for row in json.loads(last)["agents"]}
    assert set(rows) == set(AGENTS)
    text = "\n".join(lines)
    for name, agent in AGENTS.items():
        assert f"zoo:{name} " in text
        assert agent.command in text
        assert agent.settings_hash in text
        assert f"return {agent.mean_return:.4g} ({agent.low:.4g} to {agent.high:.4g})" in text
        assert rows[name]["low"] <= rows[name]["mean_return"] <= rows[name]["high"]
        assert math.isfinite(rows[name]["mean_return"])
    assert run_command(capsys, "zoo", "--quiet") == []
    assert "zoo" in COMMANDS


def test_eval_plays_an_agent_by_name(capsys):
    out = run_command(capsys, "eval", "zoo:deep-sea-20", "--episodes", "10", "--json", "--quiet")
    result = json.loads(out[-1])
    assert (result["run"], result["env"], result["goal_share"]) == (
        "zoo:deep-sea-20",
        "deep-sea",
        1,
    )


@pytest.mark.parametrize("name", ["zoo:cart-pole", "zoo:"])
def test_an_unknown_name_is_answered_with_the_nearest(name):
    words = "did you mean cartpole?" if name == "zoo:cart-pole" else "known: lock, deep-sea-20"
    with pytest.raises(SettingsError, match="unknown agent of the zoo") as error:
        ersac.load(name)
    assert words in str(error.value)


@pytest.mark.slow
def test_training_goes_on_from_an_agent():
    pytest.importorskip("gymnasium")
    result = ersac.train(
        "ersac.envs.lock_gym:LimitedLock", steps=4_000, start="zoo:lock", show=False
    )
    assert np.mean(result.returns[0]) > 1.0  # a new agent opens nothing in so few episodes
