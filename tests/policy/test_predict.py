"""Batches of observations, `predict` in Stable-Baselines3's form, and what a policy shows."""

import sys
from pathlib import Path

import numpy as np
import pytest

import ersac
from ersac import cli
from ersac.policy.evaluate import Evaluation, sampling_note

gymnasium = pytest.importorskip("gymnasium")
sys.path.insert(0, str(Path(__file__).parent))
from test_policy import MIXED, Mixed, untrained  # noqa: E402


def rows(count: int, size: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, size)).astype(np.float32)


@pytest.mark.parametrize(
    ("env", "agent", "observations"),
    [
        ("gym:CartPole-v1", "ersac", rows(7, 4)),
        ("gym:Pendulum-v1", "ersac", rows(7, 3)),
        ("gym:FrozenLake-v1", "ersac", np.arange(7)),
        ("gymnax:CartPole-v1", "ersac", rows(7, 4)),
        ("deep-sea", "ersac", np.arange(7)),
        ("gym:CartPole-v1", "boot-dqn", rows(7, 4)),
    ],
)
def test_a_batch_has_the_actions_of_its_observations(env, agent, observations):
    policy = untrained(env, agent)
    one_by_one = []
    for obs in observations:
        policy.reset()
        one_by_one.append(policy(obs))
    policy.reset()
    # A compiled batch sums in another order.
    np.testing.assert_allclose(policy(observations), one_by_one, rtol=1e-4, atol=1e-5)
    predicted, state = policy.predict(observations)
    np.testing.assert_allclose(predicted, one_by_one, rtol=1e-4, atol=1e-5)
    single, _ = policy.predict(observations[0])
    assert np.shape(single) == np.shape(one_by_one[0])
    assert len(state.window) == 7


def test_a_batch_of_a_dict_is_batched_by_entry():
    policy = untrained(Mixed, normalise=False)
    MIXED.seed(0)
    observations = [MIXED.sample() for _ in range(3)]
    vectors = gymnasium.vector.utils
    batch = vectors.concatenate(MIXED, observations, vectors.create_empty_array(MIXED, 3))
    np.testing.assert_allclose(policy(batch), [policy(obs) for obs in observations], rtol=1e-4)


def test_predict_keeps_the_frames_of_each_episode():
    """Continuous actions, so that every window has a different one."""
    policy = untrained("gym:Pendulum-v1", frames=3, normalise=False)
    frames = rows(8, 3).reshape(4, 2, 3)  # four steps of two environments; the second ends after 2
    starts = np.array([[True, True], [False, False], [False, True], [False, False]])
    expected = np.zeros((4, 2, 1))
    for env in range(2):
        for step in range(4):
            if starts[step, env]:
                policy.reset()
            expected[step, env] = policy(frames[step, env])
    state, found = None, []
    for step in range(4):
        actions, state = policy.predict(frames[step], state, starts[step])
        found.append(actions)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_predict_samples_unless_it_is_deterministic():
    policy = untrained("gym:CartPole-v1")
    same = np.repeat(rows(1, 4), 200, axis=0)
    assert len(set(policy.predict(same)[0].tolist())) == 1
    assert len(set(policy.predict(same, deterministic=False)[0].tolist())) == 2


def test_stable_baselines3_evaluates_a_policy():
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    env_util = pytest.importorskip("stable_baselines3.common.env_util")
    policy = untrained("gym:CartPole-v1")
    env = env_util.make_vec_env("CartPole-v1", n_envs=3, seed=0)
    returns, lengths = evaluation.evaluate_policy(
        policy, env, n_eval_episodes=6, return_episode_rewards=True, warn=False
    )
    assert (len(returns), returns) == (6, lengths)
    single = gymnasium.make("CartPole-v1")
    mean, _ = evaluation.evaluate_policy(policy, single, n_eval_episodes=2, warn=False)
    assert mean > 1


def test_a_ragged_observation_raises_one_line():
    with pytest.raises(ersac.SettingsError, match="is not an observation of"):
        untrained("gym:CartPole-v1")([1, [2, 3]])


def test_a_policy_says_what_it_is():
    text = repr(untrained("gym:CartPole-v1", seed=5))
    assert "ersac on gym:CartPole-v1, seed 5" in text
    assert "Discrete(n=2" in text
    assert "\n" not in text


# The most probable and the sampled actions


def evaluation(mean: float, error: float) -> Evaluation:
    return Evaluation(mean, error, mean, mean, 1.0, 0.0, np.full(25, mean))


@pytest.mark.parametrize(
    ("mode", "sampled", "differs"),
    [
        ((-0.4, 0.02), (0.18, 0.02), True),
        ((100.0, 10.0), (120.0, 10.0), False),  # within the errors
        ((500.0, 0.0), (499.0, 0.0), False),  # of no matter
        ((0.0, 0.0), (0.0, 0.0), False),
        ((1.0, None), (0.0, None), True),
    ],
)
def test_a_line_says_where_sampled_actions_have_another_return(mode, sampled, differs):
    assert (sampling_note(evaluation(*mode), evaluation(*sampled)) is not None) == differs


class Undecided(gymnasium.Env):
    """Pays where two actions in turn differ: the most probable action never does."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.before = 0, 0
        return np.ones(2, np.float32), {}

    def step(self, action):
        reward, self.before = float(action != self.before), action
        self.steps += 1
        return np.ones(2, np.float32), reward, False, self.steps == 20, {}


def test_evaluate_tells_both_returns_where_they_differ(capsys, tmp_path):
    settings = {"hidden": (8,), "envs": 2, "steps": 40, "rollout": 10, "chunk": 2, "lockstep": True}
    result = ersac.train(Undecided, show=False, policy_rate=0, out=tmp_path / "run", **settings)
    found = result.evaluate(10, show=False)
    assert found.mean_return <= 1
    assert found.sampled_return > 5
    assert "the policy is undecided" in capsys.readouterr().err
    assert result.evaluate(10, sample=True, show=False).sampled_return is None
    assert capsys.readouterr().err == ""


# What a result shows


@pytest.fixture(scope="module")
def result():
    small = {"hidden": (8,), "envs": 2, "steps": 400, "rollout": 10, "chunk": 5, "lockstep": True}
    return ersac.train("gym:CartPole-v1", show=False, **small)


def test_a_result_is_three_lines(result):
    lines = repr(result).splitlines()
    assert len(lines) == 3
    assert "ersac on gym:CartPole-v1, 1 seed from 0: ended, 400 steps" in lines[0]
    assert "mean return of the last 100 episodes" in lines[1]
    assert max(map(len, lines)) <= 120


def test_a_notebook_shows_a_table_and_the_picture(result):
    html = result._repr_html_()
    assert html.count("<tr>") == 2
    assert "data:image/png;base64," in html
    assert result.picture()._repr_png_().startswith(b"\x89PNG")


def test_a_result_becomes_a_table_of_pandas(result):
    pytest.importorskip("pandas")
    table = result.to_pandas()
    assert list(table.columns) == [
        *("run", "agent", "env", "seed", "episode", "step", "length", "goal", "return")
    ]
    np.testing.assert_array_equal(table["return"], result.returns[0])
    np.testing.assert_array_equal(table["length"], result.lengths[0])


# Figures from records


def test_records_that_are_missing_are_not_run_unasked(tmp_path, capsys):
    argv = ["figure", "f-solve_time_v_depth", "--scale", "paper", "--records", str(tmp_path / "no")]
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "has no records of" in line
    assert "--run would run them, up to" in line
    assert not (tmp_path / "no").exists()
