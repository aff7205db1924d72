"""`ersac score`: any agent on DeepSea, by both rules; errors of the agent are one line."""

import json
import sys
import textwrap

import numpy as np
import pytest

from ersac.analysis import score_agent, scores
from ersac.analysis.score_agent import ScoreTask
from ersac.cli.main import main
from ersac.envs.deep_sea import action_map

GOOD = """
class Agent:
    def __init__(self, depth, seed):
        self.depth, self.seed = depth, seed
    def act(self, obs):
        return 0
    def observe(self, obs, action, reward, next_obs, done):
        pass
"""


class Oracle:
    """Knows the way from an episode on, and stores what it sees."""

    def __init__(self, depth, seed, observations, actions, start=0):
        self.right, self.episode, self.start = action_map(depth, seed), 0, start
        self.sizes, self.steps = (observations, actions), []

    def act(self, obs):
        cell = int(np.argmax(obs)) if np.ndim(obs) else obs
        right = self.right.ravel()[cell]
        return right if self.episode >= self.start else 1 - right

    def observe(self, obs, action, reward, next_obs, done):
        self.steps.append((obs, action, reward, next_obs, done))
        self.episode += int(done)


@pytest.mark.parametrize("start", [0, 30, 250])
def test_episodes_are_counted_by_both_rules(start):
    task = ScoreTask(depth=4, episodes=2_000, one_hot=True)
    maker = lambda **known: Oracle(**known, start=start)
    found = score_agent.play_seed(maker, task, seed=7)
    goals = np.arange(2_000) >= start
    assert found._asdict() == {
        "seed": 7,
        "episodes": max(scores.solved_reliable(goals), scores.solved_bsuite(goals)),
        **scores.goal_metrics(goals),
    }


def test_an_agent_that_never_arrives_is_played_to_the_end():
    found = score_agent.play_seed(lambda **k: Oracle(**k, start=99), ScoreTask(3, 50, False), 0)
    assert found == (0, 50, None, None, None)


@pytest.mark.parametrize("one_hot", [True, False])
def test_the_agent_sees_its_cell_and_the_end(one_hot):
    made = []
    maker = lambda **known: made.append(Oracle(**known)) or made[-1]
    score_agent.play_seed(maker, ScoreTask(3, 1, one_hot), 5)
    (agent,) = made
    assert agent.sizes == (9, 2)
    observations, actions, rewards, following, done = zip(*agent.steps, strict=True)
    assert done == (False, False, True)
    np.testing.assert_allclose(rewards, [-0.01 / 3, -0.01 / 3, 1 - 0.01 / 3])
    assert actions == tuple(agent.right.diagonal())
    cells = [0, 4, 8]  # the diagonal of three rows
    if one_hot:
        np.testing.assert_array_equal(observations, np.eye(9)[cells])
        np.testing.assert_array_equal(following[-1], np.zeros(9))
    else:
        assert (observations, following) == ((0, 4, 8), (4, 8, score_agent.END))


def write_agent(tmp_path, monkeypatch, text):
    (tmp_path / "theirs.py").write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (GOOD.replace("return 0", "return 1 / 0"), "Agent", "theirs.py:6: ZeroDivisionError"),
        (GOOD.replace("pass", "self.q[obs]"), "Agent", "theirs.py:8: AttributeError"),
        (GOOD.replace("return 0", "return 2"), "Agent", "act() of Agent returned 2, not 0 or 1"),
        (GOOD.replace("return 0", "return None"), "Agent", "returned None, not 0 or 1"),
        (GOOD.replace("return 0", "return 0.5"), "Agent", "returned 0.5, not 0 or 1"),
        (GOOD.replace("observe", "look"), "Agent", "needs a method observe; Agent has none"),
        (GOOD.replace("depth, seed):", "depht):"), "Agent", "missing 1 required positional"),
        ("x = 1 +", "Agent", "theirs.py:1: SyntaxError"),
        ("import nothing_of_this_name", "Agent", "theirs.py:1: ModuleNotFoundError"),
        ("raise ValueError('two\\nlines')", "Agent", "theirs.py:1: ValueError: two lines"),
        ("Agent = 3", "Agent", "theirs:Agent is neither a function nor a class"),
        (GOOD, "Agnet", "theirs:Agnet: theirs has no Agnet"),
    ],
    ids=lambda value: value.strip()[:20] if isinstance(value, str) else None,
)
def test_errors_of_an_agent_are_one_line_with_its_file_and_line(
    tmp_path, monkeypatch, capsys, text, name, words
):
    write_agent(tmp_path, monkeypatch, text)
    with pytest.raises(SystemExit) as stop:
        main(["score", f"theirs:{name}", "--depth", "3", "--episodes", "2", "--quiet"])
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("score",), "which agent?"),
        (("score", "theirs"), "is not module:function or module:Class"),
        (("score", "nothing_here:Agent"), "cannot be imported"),
        (("score", "theirs:Agent", "--depth", "0"), "--depth must be a whole number between 1"),
        (("score", "theirs:Agent", "--observations", "pixels"), "--observations must be"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, words, message):
    write_agent(tmp_path, monkeypatch, GOOD)
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    error = capsys.readouterr().err
    assert (stop.value.code, message in error, error.count("\n")) == (2, True, 1)


def test_a_function_may_make_the_agent_and_the_row_says_what_was_played(
    tmp_path, monkeypatch, capsys
):
    write_agent(tmp_path, monkeypatch, GOOD + "\ndef make(**known):\n    return Agent(3, 1)\n")
    words = ["score", "theirs:make", "--depth", "3", "--episodes", "40", "--seeds", "2"]
    with pytest.raises(SystemExit) as stop:
        main([*words, "--samples", "8", "--method", "always left", "--json"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    result = json.loads(text.splitlines()[-1])
    row = result["rows"][0]
    assert (row["method"], row["depth"], row["rule"]) == ("always left", 3, "reliable")
    assert (row["episodes"], row["solved"], row["seeds"]) == (None, 0, 2)
    assert row["gradient_samples"] == 8
    assert "--depth 3 --seeds 2 --seed 1000 --episodes 40" in row["source"]
    assert "| always left | not solved | 0 of 2 | reliable | network | 8 |" in text
    assert [seed["seed"] for seed in result["per_seed"]] == [1000, 1001]
