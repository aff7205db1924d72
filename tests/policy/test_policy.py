"""Policies: actions, files, evaluation and videos, on environments with known results."""

import contextlib
import gc
import io
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import ersac
from ersac import api, cli, config, packages
from ersac.agents.build import agent_of
from ersac.policy import evaluate, video
from ersac.policy.codec import make_codec
from ersac.policy.policy import Policy
from ersac.policy.trained import act_batch, make_trained
from ersac.runs import checkpoint, disk, results, seal

gymnasium = pytest.importorskip("gymnasium")
from gymnasium import spaces  # noqa: E402

TINY = {
    "envs": 2,
    "hidden": (8, 8),
    "rollout": 8,
    "chunk": 20,
    "steps": 2_000,
    "seeds": 2,
    "seed": 3,
    "lockstep": True,
    "show": False,
}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A short run on CartPole, in a directory."""
    return ersac.train("gym:CartPole-v1", out=tmp_path_factory.mktemp("runs") / "run", **TINY)


@pytest.fixture(scope="module")
def observations():
    return np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)


def untrained(env, agent="ersac", seed=0, **changes):
    """A policy with random weights: networks are initialised to output zero, so noise is added."""
    settings = api.make_settings(env, agent, **{"hidden": (8, 8), "seed": seed, **changes})
    codec = make_codec(settings.env)
    learner, rng = (
        agent_of(settings, codec.spec).init(np.random.default_rng(seed)),
        np.random.default_rng(seed),
    )
    add_noise = lambda x: (
        x + rng.normal(size=x.shape).astype(x.dtype) if np.issubdtype(x.dtype, np.floating) else x
    )
    learner = learner._replace(params=jax.tree.map(add_noise, learner.params))
    return Policy(make_trained(settings, seed, codec, learner._replace(opt=())))


class OddEven(gymnasium.Env):
    """Reward 1 a step; truncated after ten steps if its seed is odd, else terminated after one."""

    observation_space, action_space = (
        spaces.Box(-1.0, 1.0, (2,), np.float32),
        spaces.Discrete(3, start=5),
    )
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    seeds: list[int] = []  # noqa: RUF012   of all resets

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.odd = seed % 2 == 1
            self.seeds.append(seed)
        self.steps = 0
        return self.observe(), {}

    def observe(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action):
        assert action in self.action_space
        self.steps += 1
        return (
            self.observe(),
            1.0,
            not self.odd,
            self.odd and self.steps == 10,
            {"is_success": self.odd and self.steps == 10},
        )

    def render(self):
        return np.full((21, 30, 3), 20 * self.steps, np.uint8)


class Endless(gymnasium.Env):
    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 1, 0.0, False, False, {}


# acting


def test_a_policy_is_the_same_from_a_checkpoint_from_memory_and_from_a_file(
    result, observations, tmp_path
):
    """The same actions, which differ between seeds."""
    in_memory = ersac.train("gym:CartPole-v1", **TINY)
    assert in_memory.directory is None
    actions = {}
    for seed in (3, 4):
        result.save(tmp_path / f"{seed}.npz", seed=seed)
        loaded = ersac.load(tmp_path / f"{seed}.npz")
        assert loaded.seed == seed
        assert loaded.settings == result.settings
        policies = (
            result.policy_of(seed),
            in_memory.policy_of(seed),
            results.read_result(result.directory).policy_of(seed),
            loaded,
        )
        answers = [[policy(obs) for obs in observations] for policy in policies]
        assert all(other == answers[0] for other in answers)
        actions[seed] = answers[0]
    assert actions[3] != actions[4]
    assert [result.policy(obs) for obs in observations] == actions[3]  # the first seed's
    with pytest.raises(ersac.SettingsError, match="seed 5 was not trained; 3 to 4 were"):
        result.policy_of(5)


def test_actions_are_those_of_the_environments_action_space(observations):
    assert type(untrained("gym:CartPole-v1")(observations[0])) is int
    shifted = untrained(OddEven)
    assert {shifted(obs[:2], sample=True) for obs in observations} == {5, 6, 7}
    action = untrained("gym:Pendulum-v1")(observations[0][:3])
    assert (action.shape, action.dtype) == ((1,), np.float32)
    assert -2 <= action[0] <= 2
    assert untrained("deep-sea", depth=3)(8) in (0, 1)


def test_samples_follow_the_policys_probabilities(result, observations):
    policy = result.policy
    rng = lambda: np.random.default_rng(7)

    def draw(obs, n, rng):
        policy.reset()  # a new episode draws from rng
        return [policy(obs, sample=True, rng=rng) for _ in range(n)]

    assert draw(observations[0], 50, rng()) == draw(observations[0], 50, rng())
    for obs in observations[:3]:
        drawn = np.bincount(draw(obs, 400, rng()), minlength=2)
        logits = np.asarray(logits_of(policy, obs))
        share = np.exp(logits) / np.exp(logits).sum()
        assert drawn / 400 == pytest.approx(share, abs=0.1)
        assert policy(obs) == share.argmax()
    assert {policy(obs) for obs in observations} == {0, 1}


def logits_of(policy, obs):
    trained = policy._trained
    agent = agent_of(trained.settings, trained.codec.spec)
    action_noise = jax.tree.map(
        lambda leaf: leaf[0], agent.policy.action_noise(jax.random.key(0), 1)
    )
    return agent.policy.act(trained.learner, (), jax.numpy.asarray(obs), action_noise)[1]


def test_frames_are_stacked_within_the_callers_episode(observations):
    """Continuous actions, so that every window has a different one."""
    stacked, frames = untrained("gym:Pendulum-v1", frames=3, normalise=False), observations[:20, :3]
    windows = np.stack(
        [frames[np.maximum(0, [n - 2, n - 1, n])].ravel() for n in range(len(frames))]
    )
    want = act_batch(stacked._trained, (), windows, False, np.random.default_rng(0))
    assert len(np.unique(want)) == len(frames)
    np.testing.assert_allclose([stacked(obs) for obs in frames], want, rtol=1e-5, atol=1e-5)
    stacked.reset()
    np.testing.assert_allclose([stacked(obs) for obs in frames], want, rtol=1e-5, atol=1e-5)


def test_a_wrong_observation_raises_one_line(result):
    for policy, wrong in [
        (result.policy, np.zeros(3)),
        (result.policy, "left"),
        (result.policy, None),
        (untrained("gym:FrozenLake-v1"), 16),
        (untrained("deep-sea", depth=3), -1),
    ]:
        with pytest.raises(ersac.SettingsError, match="is not an observation of") as raised:
            policy(wrong)
        assert "\n" not in str(raised.value)


MIXED = spaces.Dict(
    {
        "z": spaces.Discrete(3, start=1),
        "a": spaces.Box(0, 255, (4, 5, 3), np.uint8),
        "words": spaces.Text(9),
        "pair": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)]),
    }
)


class Mixed(gymnasium.Env):
    observation_space, action_space = (
        MIXED,
        spaces.Box(np.array([0.0, -3.0], np.float32), np.array([1.0, 4.0], np.float32)),
    )

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, True, False, {}


def test_a_file_needs_no_environment(tmp_path):
    """Every type of space is restored, and the actions are the same."""
    policy = untrained(lambda: Mixed(), normalise=False)
    policy.save(tmp_path / "mixed.npz")
    loaded = ersac.load(tmp_path / "mixed.npz")
    MIXED.seed(0)
    for obs in [MIXED.sample() for _ in range(20)]:
        np.testing.assert_array_equal(loaded(obs), policy(obs))
        assert loaded(obs) in Mixed.action_space
    with pytest.raises(
        ersac.SettingsError, match=r"is created by a Python function, .* call result.evaluate"
    ):
        loaded.evaluate(2, show=False)
    assert ersac.load(tmp_path / "mixed.npz", make=Mixed).evaluate(2, show=False).mean_length == 1


@pytest.mark.parametrize(
    ("env", "agent", "changes", "obs"),
    [
        ("deep-sea", "ersac", {"depth": 3}, 4),
        ("deep-sea", "boot-dqn", {"depth": 3}, 4),
        ("gymnax:CartPole-v1", "vanilla", {}, np.ones(4)),
    ],
    ids=["deep-sea", "boot-dqn", "gymnax"],
)
def test_a_file_of_a_pure_environment(env, agent, changes, obs, tmp_path):
    policy = untrained(env, agent, **changes)
    policy.save(tmp_path / "file")
    loaded = ersac.load(tmp_path / "file")
    assert loaded.settings == policy.settings
    draws = [[copy(obs, sample=True) for _ in range(20)] for copy in (policy, loaded)]
    assert draws[0] == draws[1]


def test_a_custom_torso_has_to_be_passed_to_load(tmp_path):
    linen = pytest.importorskip("flax.linen")
    module = linen.Dense(6)
    run = tmp_path / "run"
    policy = ersac.train(
        "gym:CartPole-v1", torso=module, out=run, **TINY | {"steps": 100, "chunk": 5, "seeds": 1}
    ).policy
    policy.save(tmp_path / "own.npz")
    with pytest.raises(
        ersac.SettingsError,
        match=r"the torso is a Python object, .* use result.policy in Python, or ersac.load",
    ):
        ersac.load(tmp_path / "own.npz")
    loaded = ersac.load(tmp_path / "own.npz", torso=module)
    obs = np.random.default_rng(0).normal(size=(50, 4))
    assert [loaded(row) for row in obs] == [policy(row) for row in obs]
    assert ended_with(2, ["eval", str(run)]).startswith("ersac: the torso is a Python object")


# files


def test_a_file_is_never_overwritten_and_holds_no_pickle(result, tmp_path):
    result.save(tmp_path / "file.npz")
    before = (tmp_path / "file.npz").read_bytes()
    with pytest.raises(ersac.SettingsError, match="already exists"):
        result.save(tmp_path / "file.npz", seed=4)
    assert (tmp_path / "file.npz").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["file.npz"]
    with np.load(tmp_path / "file.npz", allow_pickle=False) as file:
        assert all(file[name].dtype != object for name in file.files)


def test_a_damaged_file_raises_or_the_damage_changes_nothing(result, observations, tmp_path):
    result.save(tmp_path / "file.npz")
    data, path = (tmp_path / "file.npz").read_bytes(), tmp_path / "damaged"
    want, refused = [result.policy(obs) for obs in observations], 0
    for offset in np.random.default_rng(0).integers(len(data), size=40):
        path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        try:
            loaded = ersac.load(path)
        except disk.DiskError:
            refused += 1
        else:
            assert [loaded(obs) for obs in observations] == want
    assert refused > 20
    pickled = io.BytesIO()
    np.savez(pickled, about=np.array([{}], object))
    for content in (
        b"",
        b"precious",
        data[:-1],
        data[: len(data) // 2],
        pickled.getvalue(),
        json.dumps({}).encode(),
    ):
        path.write_bytes(content)
        with pytest.raises(disk.DiskError, match="is damaged"):
            ersac.load(path)
    with pytest.raises(disk.DiskError, match="No such file"):
        ersac.load(tmp_path / "nowhere")


def reseal(path, to, **changes):
    """Write a policy file again with other arrays, or another description, and a correct digest."""
    arrays = seal.unseal_arrays(path.read_bytes())
    about = json.loads(arrays["about"].tobytes())
    for name, value in changes.items():
        if name in about:
            about[name] = value
        else:
            arrays = {key: value(key, array) for key, array in arrays.items()}
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    to.write_bytes(seal.seal_arrays(arrays))


def test_a_policy_that_is_not_finite_is_refused(result, tmp_path):
    result.save(tmp_path / "file.npz")
    spoil = lambda name, array: array * np.nan if "params/dense" in name else array
    reseal(tmp_path / "file.npz", tmp_path / "nan.npz", arrays=spoil)
    with pytest.raises(disk.DiskError, match="numbers that are not finite"):
        ersac.load(tmp_path / "nan.npz")


def test_a_description_of_something_huge_is_refused_in_one_line(result, tmp_path):
    result.save(tmp_path / "file.npz")
    about = json.loads(seal.unseal_arrays((tmp_path / "file.npz").read_bytes())["about"].tobytes())
    settings, spaces = about["settings"], about["senses"]
    wide = settings | {"agent": settings["agent"] | {"hidden": [10**6, 10**6]}}
    shape = spaces | {"observation": spaces["observation"] | {"shape": [10**12]}}
    for changes in ({"settings": wide}, {"senses": shape}, {"seed": -1}, {"seed": "x"}):
        reseal(tmp_path / "file.npz", tmp_path / "odd.npz", **changes)
        with pytest.raises((ersac.SettingsError, disk.DiskError)) as error:
            ersac.load(tmp_path / "odd.npz")
        assert "\n" not in str(error.value)


def test_a_changed_array_is_detected_by_the_digest(result, tmp_path):
    """Such a file is a valid npz."""
    result.save(tmp_path / "file.npz")
    with np.load(tmp_path / "file.npz", allow_pickle=False) as file:
        arrays = dict(file)
    name = next(
        name
        for name, array in arrays.items()
        if name.startswith("learner/params/dense") and array.ndim == 2
    )
    np.savez(tmp_path / "other.npz", **arrays | {name: arrays[name] + 1})
    with pytest.raises(disk.DiskError, match="is damaged"):
        ersac.load(tmp_path / "other.npz")


# evaluation


@pytest.mark.parametrize("episodes", [6, 5, 1])
def test_short_episodes_do_not_count_more_often(episodes):
    """Episodes of one step and of ten: equally many of both, or one more of the first."""
    evaluation = untrained(OddEven, envs=2).evaluate(episodes, show=False)
    lengths = [1.0, 10.0, 1.0, 10.0, 1.0, 10.0][:episodes]
    assert evaluation.returns.tolist() == lengths
    assert evaluation.mean_return == evaluation.mean_length == pytest.approx(np.mean(lengths))
    assert (evaluation.min_return, evaluation.max_return) == (min(lengths), max(lengths))
    assert evaluation.goal_share == pytest.approx(np.mean([length == 10 for length in lengths]))
    error = None if episodes == 1 else pytest.approx(np.std(lengths, ddof=1) / episodes**0.5)
    assert evaluation.stderr_return == error
    assert untrained(OddEven, envs=2, target=1.0).evaluate(episodes, show=False).goal_share == 1


def test_evaluation_uses_seeds_that_training_does_not_use():
    first, last = 3, 3 + TINY["seeds"] - 1
    OddEven.seeds.clear()
    policy = untrained(OddEven, envs=4, seed=first)
    trials = [policy.evaluate(4, eval_seed=trial, show=False) for trial in (0, 1, 100_000)]
    seeds = np.array(OddEven.seeds)
    seeds = seeds[seeds != 0]  # with 0 an environment is asked for a mask
    assert len(set(seeds)) == 4 * len(trials)  # also played with sampled actions
    assert not set(seeds) & set(range(first, last + 4096))
    again = [
        untrained("gym:CartPole-v1")
        .evaluate(4, sample=True, eval_seed=trial, show=False)
        .returns.tolist()
        for trial in (0, 0, 1)
    ]
    assert again[0] == again[1] != again[2]


def test_evaluate_returns_what_a_loop_over_the_policy_returns(result):
    """The same seeds, the same returns."""
    policy = result.policy_of(4)
    seed = evaluate.evaluation_seed(policy._trained, eval_seed=0)
    env = gymnasium.make("CartPole-v1")
    returns = []
    for number in range(2):
        obs, _ = env.reset(seed=seed + number)
        policy.reset()
        total, ended = 0.0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(policy(obs))
            total, ended = total + reward, terminated or truncated
        returns.append(total)
    assert result.evaluate(2, seed=4, show=False).returns.tolist() == returns


class Doors(gymnasium.Env):
    """Two factors with masks; a choice that is not allowed raises."""

    observation_space = spaces.Dict({"place": spaces.Discrete(4), "age": spaces.Box(0, 9, (1,))})
    action_space = spaces.Tuple((spaces.Discrete(2, start=1), spaces.MultiBinary(2)))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self.observe()

    def observe(self):
        self.place = int(self.np_random.integers(4))
        age = np.array([self.age], np.float32)
        mask = (np.arange(2) != self.place, np.ones(2), np.arange(2) + 2 != self.place)
        return {"place": self.place, "age": age}, {"action_mask": mask}

    def step(self, action):
        first, bits = action
        assert self.action_space.contains(action)
        assert first - 1 != self.place
        assert bits[1] + 2 != self.place
        self.age += 1
        obs, info = self.observe()
        return obs, float(first), False, self.age == 7, {} if self.age == 7 else info


class Camera(gymnasium.Env):
    """A camera beside a number; the reward is the number's sign if the camera is bright."""

    observation_space = spaces.Dict(
        {"camera": spaces.Box(0, 255, (6, 6, 1), np.uint8), "number": spaces.Box(-9, 9, (1,))}
    )
    action_space = spaces.MultiDiscrete([2, 2])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self.observe(), {}

    def observe(self):
        image = np.full((6, 6, 1), self.np_random.integers(2) * 255, np.uint8)
        return {"camera": image, "number": self.np_random.normal(size=1).astype(np.float32)}

    def step(self, action):
        assert self.action_space.contains(action)
        self.age += 1
        return self.observe(), float(action[0]), False, self.age == 5, {}


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (Doors, {"agent": "vanilla-replay", "capacity": 16, "batch": 4, "updates": 2}),
        (Camera, {"frames": 2}),
    ],
)
def test_masks_products_and_cameras_are_trained_on_saved_and_played(make, changes, tmp_path):
    """The environments raise where an action is not of their space, or not allowed."""
    run = ersac.train(make, out=tmp_path / "run", **(TINY | {"steps": 400, "seeds": 1} | changes))
    run.save(tmp_path / "policy.npz")
    policies = [run.policy, ersac.load(tmp_path / "policy.npz")]
    env, returns = make(), [[], []]
    seed = evaluate.evaluation_seed(policies[0]._trained, eval_seed=0)
    for policy, totals in zip(policies, returns, strict=True):
        for number in range(2):
            obs, info = env.reset(seed=seed + number)
            policy.reset()
            total, ended = 0.0, False
            while not ended:
                action = policy(obs, action_mask=info.get("action_mask"))
                obs, reward, terminated, truncated, info = env.step(action)
                total, ended = total + reward, terminated or truncated
            totals.append(total)
            assert env.action_space.contains(policy(obs, sample=True))
    assert returns[0] == returns[1] == run.evaluate(2, show=False).returns.tolist()
    assert run.evaluate(4, sample=True, show=False).mean_length == env.age


def test_a_wrong_mask_of_a_policy_is_one_line():
    policy = untrained(Doors)
    obs, _ = Doors().reset(seed=0)
    with pytest.raises(config.SettingsError, match="action_mask has 2 entries"):
        policy(obs, action_mask=np.ones(2))


def test_deep_sea_is_evaluated_with_the_action_map_of_its_seed(tmp_path):
    """From memory and from a checkpoint; with another map the actions would be wrong."""
    small = {
        "depth": 4,
        "seeds": 2,
        "seed": 3,
        "hidden": (32,),
        "rollout": 20,
        "chunk": 20,
        "episodes": 2_000,
        "show": False,
    }
    for result in (
        ersac.train("deep-sea", **small),
        ersac.train("deep-sea", out=tmp_path / "run", **small),
    ):
        assert result.evaluate(40, seed=4, show=False).goal_share == 1
        evaluation = result.evaluate(7, show=False)
        assert evaluation.returns.tolist() == pytest.approx([0.99] * 7)
        assert evaluation.mean_length == 4
    stderr = ended_with(2, ["eval", str(tmp_path / "run"), "--video", str(tmp_path / "a.mp4")])
    assert (
        stderr
        == "ersac: deep-sea cannot be rendered: a video needs a Gymnasium environment, gym:ID\n"
    )


def test_an_environment_of_gymnax_is_evaluated():
    pytest.importorskip("gymnax")
    evaluation = untrained("gymnax:CartPole-v1", envs=3).evaluate(5, sample=True, show=False)
    assert evaluation.mean_return == evaluation.mean_length > 5
    assert len(evaluation.returns) == 5


def test_an_episode_that_never_ends_raises(monkeypatch):
    monkeypatch.setattr(evaluate, "MAX_EPISODE_STEPS", 50)
    with pytest.raises(
        ersac.SettingsError,
        match="an episode of Endless has not ended after 50 steps: give it a time limit",
    ):
        untrained(Endless).evaluate(1, show=False)


# videos


@pytest.mark.filterwarnings(
    "ignore:os.fork", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of imageio's reader of mp4
@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_a_video_shows_whole_episodes(suffix, tmp_path):
    imageio = pytest.importorskip("imageio.v2")
    path = tmp_path / f"video.{suffix}"
    policy = untrained(OddEven, seed=1)  # odd, even, odd: eleven frames, two, eleven
    policy.film(path, show=False)
    with imageio.get_reader(path) as reader:
        frames = [np.asarray(frame) for frame in reader]
    del reader
    gc.collect()  # its warnings are ignored in this test
    assert len(frames) == (11 if suffix == "gif" else 24)
    assert frames[0].shape[:2] == (20, 30)
    assert [frame[..., 0].mean() for frame in frames[:11]] == pytest.approx(
        [20 * n for n in range(11)], abs=6
    )
    with pytest.raises(ersac.SettingsError, match="already exists"):
        policy.film(path, show=False)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_video_that_cannot_be_recorded_raises_and_leaves_no_file(tmp_path, monkeypatch):
    for policy, name, words in [
        (
            untrained("deep-sea", depth=3),
            "a.mp4",
            "deep-sea cannot be rendered: a video needs a Gymnasium environment",
        ),
        (untrained(Endless), "a.mp4", "gym:Endless cannot be rendered: it must accept render_mode"),
        (untrained(OddEven), "a.avi", "unknown video format '.avi'; known: .mp4, .gif"),
        (untrained(OddEven), "a", "unknown video format ''; known: .mp4, .gif"),
    ]:
        with pytest.raises(ersac.SettingsError, match=words):
            policy.film(tmp_path / name, show=False)
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ersac.SettingsError, match=r'a video needs imageio: pip install "\.\[gym\]"'
    ):
        video.check_video(config.Gym(), tmp_path / "a.gif")
    assert not list(tmp_path.iterdir())


# the command line


def ended_with(code, argv):
    """The standard error of a command, which must exit with that code."""
    with contextlib.redirect_stderr(io.StringIO()) as stderr, pytest.raises(SystemExit) as exited:
        cli.main(argv)
    assert exited.value.code == code, stderr.getvalue()
    return stderr.getvalue()


def test_eval_prints_what_evaluate_returns(result, capsys, tmp_path):
    result.save(tmp_path / "file.npz", seed=4)
    ended_with(0, ["eval", str(result.directory), "--episodes", "5", "--seed", "4", "--json"])
    *lines, last = capsys.readouterr().out.splitlines()
    printed = json.loads(last)
    want = result.evaluate(5, seed=4, show=False)
    assert printed == want.as_json() | {
        "run": str(result.directory),
        "env": "gym:CartPole-v1",
        "agent": "ersac",
        "seed": 4,
        "episodes": 5,
    }
    assert f"return {want.mean_return:.4g} ± {want.stderr_return:.2g}" in lines[-1]
    ended_with(0, ["eval", str(tmp_path / "file.npz"), "--episodes", "5", "--json", "--quiet"])
    out = capsys.readouterr().out
    assert json.loads(out) == printed | {"run": str(tmp_path / "file.npz")}


BAD = [
    (["eval"], "which run? ersac eval RUN"),
    (["eval", "nowhere"], "nowhere is neither a run nor a file written by result.save()"),
    (["eval", "empty"], "empty holds no run"),
    (
        ["eval", "RUN", "--episodes", "0"],
        "--episodes must be a whole number between 1 and 10000000, not 0",
    ),
    (["eval", "RUN", "--seed", "9"], "seed 9 was not trained; 3 to 4 were"),
    (["eval", "RUN", "--video", "a.webm"], "unknown video format '.webm'"),
    (["eval", "RUN", "--vide", "a.mp4"], "did you mean --video?"),
    (["eval", "RUN", "--video", "there.mp4"], "there.mp4 already exists"),
]


@pytest.mark.parametrize(("argv", "words"), BAD, ids=[" ".join(argv) for argv, _ in BAD])
def test_bad_input_is_one_line_before_jax(argv, words, result, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "there.mp4").write_text("precious")
    monkeypatch.delattr("ersac.policy.policy")
    monkeypatch.setitem(sys.modules, "ersac.policy.policy", None)  # importing it, and jax, fails
    stderr = ended_with(2, [str(result.directory) if word == "RUN" else word for word in argv])
    assert words in stderr
    assert stderr.count("\n") == 1


def test_an_incomplete_run_raises(result, tmp_path):
    def copy(name: str, *left_out: str) -> Path:
        for path in result.directory.rglob("*"):
            if path.is_file() and not any(word in path.name for word in left_out):
                to = tmp_path / name / path.relative_to(result.directory)
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(path.read_bytes())
        return tmp_path / name

    assert "was stopped: its checkpoint after" in ended_with(
        0, ["eval", str(copy("unended", "summary")), "--episodes", "2", "--quiet"]
    )
    assert "has no checkpoint to load a policy from" in ended_with(
        2, ["eval", str(copy("swept", "0000"))]
    )
    assert "facts.npz is missing" in ended_with(74, ["eval", str(copy("lost", "facts"))])
    torn = copy("torn")
    number = checkpoint.checkpoint_numbers(torn / checkpoint.DIRECTORY)[-1]
    arrays = torn / checkpoint.DIRECTORY / f"{number:012d}.npz"
    arrays.write_bytes(arrays.read_bytes()[:-9])
    assert "is damaged" in ended_with(74, ["eval", str(torn)])
    assert arrays.exists()  # evaluation does not move checkpoints aside


# custom environments


def test_an_environment_is_a_name_or_a_factory():
    for wrong in (OddEven(), 3, None, spaces.Discrete(2)):
        with pytest.raises(
            ersac.SettingsError,
            match="env must be a name, such as gym:CartPole-v1, or a class or function",
        ) as raised:
            ersac.train(wrong)
        assert "\n" not in str(raised.value)
    with pytest.raises(ersac.SettingsError, match=r"the factory must return a gymnasium.Env"):
        ersac.train(dict, show=False)
    assert api.make_settings(OddEven).env == config.Gym(id="OddEven", make=OddEven)
    assert api.make_settings(lambda: OddEven(), frames=2, scale_rewards=False).env.frames == 2


def test_a_run_with_a_custom_environment_is_resumed_only_in_python(tmp_path, capsys):
    short = TINY | {"steps": 100, "chunk": 5, "seeds": 1, "out": tmp_path / "run", "resume": True}
    make = lambda: OddEven()  # the class itself could be imported by another process
    first = ersac.train(make, **short)
    assert first.evaluate(2, show=False).returns.tolist() == [10.0, 1.0]  # seed 3 is odd
    more = ersac.train(make, **short | {"steps": 200})
    assert more.steps > first.steps
    again = ersac.train(make, **short | {"steps": 200})  # it has ended, and is read
    assert again.steps == more.steps
    assert again.policy(np.zeros(2)) in (5, 6, 7)
    capsys.readouterr()
    stderr = ended_with(2, ["resume", str(tmp_path / "run")])
    assert (
        f"{first.settings.env.id} was created in Python; resume it there: "
        f"ersac.train({first.settings.env.id}, out=..., resume=True)"
    ) in stderr
    assert "is created by a Python function, which is not stored: call result.evaluate()" in (
        ended_with(2, ["eval", str(tmp_path / "run")])
    )


def test_the_example_of_the_readme(capsys):
    """The code block opens the lock."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    block = (
        readme.partition("## Your own environment")[2]
        .partition("```python\n")[2]
        .partition("```")[0]
    )
    assert len([line for line in block.splitlines() if line]) == 10
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[-1] == str([3, 0, 2, 1, 1, 3, 2, 0, 1, 0])
