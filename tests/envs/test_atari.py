"""Atari: names of games, the emulator's steps, its state, and what it shares with Gymnasium."""

import dataclasses
import json

import ale_py
import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from ersac import cli, config
from ersac.config import SettingsError
from ersac.envs import atari
from ersac.envs.atari_gym import AtariGame
from ersac.envs.make import make_host_env, require_env_package
from ersac.runs import run_dir

GAMES = sorted(config.reference_scores())


def make(game: str, **changes):
    return make_host_env(config.override(config.parse_env(f"atari:{game}"), **changes))


@pytest.mark.parametrize(
    "name",
    [
        "atari:MontezumaRevenge",
        "atari:montezuma_revenge",
        "atari:Montezuma-Revenge",
        "ALE/MontezumaRevenge-v5",
        "gym:ALE/MontezumaRevenge-v5",
        "gymnasium:ALE/MontezumaRevenge-v5",
        "MontezumaRevengeNoFrameskip-v4",
        "atari:MontezumaRevengeNoFrameskip-v4",
        "MontezumaRevengeDeterministic-v4",
        "gym:MontezumaRevenge-v0",
    ],
)
def test_every_spelling_is_the_game(name):
    assert config.parse_env(name) == config.Atari("montezuma_revenge")


def test_there_are_57_games_and_the_emulator_has_them_all():
    assert len(GAMES) == 57
    assert all(ale_py.roms.get_rom_path(game) for game in GAMES)
    assert config.reference_scores()["freeway"] == (29.6, 0.0)


@pytest.mark.parametrize("name", ["atari:montezuma", "ALE/Montezuma-v5", "MontezumaNoFrameskip-v4"])
def test_an_unknown_game_is_answered_with_the_nearest(name):
    with pytest.raises(SettingsError, match=r"unknown Atari game .*; did you mean montezuma_reven"):
        config.parse_env(name)


def test_other_ids_are_left_to_gymnasium():
    for name in ("CartPole-v1", "ALE/Pong-ram-v5", "MiniGrid-Empty-5x5-v0", "Pongo-v1"):
        assert isinstance(config.parse_env(name), config.Gym)


def test_the_command_line_refuses_before_the_emulator_is_imported(capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ale_py", None)  # an import would fail
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "atari:brakeout"])
    assert stop.value.code == 2
    assert "did you mean breakout" in capsys.readouterr().err


def test_a_missing_emulator_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"atari:pong needs ale_py: pip install .*\[atari\]"):
        require_env_package(config.Atari("pong"))


def test_every_setting_is_recorded():
    env = config.override(config.Atari("pong"), sticky=0.0, noops=30, episodic_life=True)
    settings = config.Experiment(env)
    data = json.loads(json.dumps(run_dir.settings_json(settings)))
    assert config.check(run_dir.settings_from_json(data)) == settings
    names = {field.name for field in dataclasses.fields(config.Atari)}
    assert set(data["env"]) - {"kind"} == names
    assert {"sticky", "noops", "frame_skip", "frames", "max_frames", "full_actions"} <= names


class Reference:
    """A game preprocessed by Gymnasium, which resets itself on the step after the last one."""

    def __init__(self, settings: config.Atari, seed: int) -> None:
        name = "".join(word.title() for word in settings.id.split("_"))
        options = {"frameskip": 1, "repeat_action_probability": settings.sticky}
        gymnasium.register_envs(ale_py)
        env = gymnasium.make(f"ALE/{name}-v5", **options, full_action_space=settings.full_actions)
        preprocessed = AtariPreprocessing(env, noop_max=0, frame_skip=settings.frame_skip)
        self.env = FrameStackObservation(preprocessed, settings.frames)
        # As ersac seeds it: Gymnasium draws the emulator's seed from its own.
        env.unwrapped.ale.setInt("random_seed", seed)
        env.unwrapped.load_game()
        self.over = True

    def step(self, action: int):
        if self.over:
            self.over = False
            return np.moveaxis(self.env.reset()[0], 0, -1), 0.0, False
        obs, reward, terminated, truncated, _ = self.env.step(action)
        self.over = terminated or truncated
        return np.moveaxis(obs, 0, -1), float(reward), self.over


def assert_equals_gymnasium(game: str, steps: int, lockstep: bool) -> int:
    """Compare with random actions; return the number of episodes that ended."""
    # In lock-step actions are sticky on other frames than the emulator's.
    settings = config.Atari(game, envs=2, lockstep=lockstep, sticky=0.0 if lockstep else 0.25)
    env, rng = make_host_env(settings), np.random.default_rng(0)
    references = [Reference(settings, seed=1 + 40 + i) for i in range(2)]
    obs, ended = env.reset(40), 0
    for i, reference in enumerate(references):
        np.testing.assert_array_equal(obs[i], reference.step(0)[0])
    for _ in range(steps):
        actions = rng.integers(env.actions.n, size=2)
        step = env.step(actions)
        ended += int(step.ended.sum())
        for i, reference in enumerate(references):
            obs, reward, over = reference.step(actions[i])
            np.testing.assert_array_equal(step.obs[i], obs)
            assert (step.reward[i], step.ended[i]) == (reward, over)
    return ended


@pytest.mark.parametrize("lockstep", [False, True])
def test_preprocessing_is_gymnasiums(lockstep):
    assert_equals_gymnasium("pong", 40, lockstep)


@pytest.mark.slow
@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("game", ["pong", "breakout", "boxing", "seaquest", "montezuma_revenge"])
def test_preprocessing_is_gymnasiums_for_1000_steps(game, lockstep):
    ended = assert_equals_gymnasium(game, 1000, lockstep)
    assert ended or game in ("boxing", "montezuma_revenge")


def steps_of(env, actions) -> list:
    return [env.step(np.asarray(action)) for action in actions]


def assert_same_steps(first, second) -> None:
    for one, two in zip(first, second, strict=True):
        for name in ("obs", "reward", "discount", "mask", "ended"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name), name)


def test_a_truncated_game_ends_with_discount_1_and_a_fake_step_follows():
    env = make("pong", envs=1, max_frames=20)
    first = env.reset(0)
    steps = steps_of(env, [[0]] * 7)
    assert [bool(step.ended[0]) for step in steps] == [False] * 4 + [True] + [False] * 2
    assert [step.discount[0] for step in steps] == [1, 1, 1, 1, 1, 0, 1]
    assert [step.mask[0] for step in steps] == [1, 1, 1, 1, 1, 0, 1]
    np.testing.assert_array_equal(steps[5].obs, first)  # the first screen has no randomness


def test_a_lost_life_ends_the_value_and_not_the_game():
    actions = np.random.default_rng(0).integers(4, size=(150, 1))
    runs = {}
    for episodic_life in (False, True):
        env = make("breakout", envs=1, episodic_life=episodic_life, lockstep=True)
        env.reset(0)
        runs[episodic_life] = steps_of(env, actions)
    ends, lost = (
        np.array([getattr(step, name)[0] for step in runs[True]]) for name in ("ended", "discount")
    )
    real = np.array([step.mask[0] for step in runs[True]]) > 0
    assert ((lost == 0) & real & ~ends).any()
    for name in ("reward", "ended"):
        values = [[getattr(step, name)[0] for step in run] for run in runs.values()]
        assert values[0] == values[1]


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("action", [-1, 6])
def test_an_action_out_of_range_is_an_error_and_does_not_hang(action, lockstep):
    env = make("pong", envs=2, lockstep=lockstep)
    env.reset(0)
    with pytest.raises(AssertionError, match="not all from 0 to 5"):
        env.step(np.array([0, action]))


def test_a_stored_game_goes_on_with_the_same_bits_in_another_emulator():
    """With sticky actions: the action that may be repeated is part of the state."""
    options = {"envs": 8, "lockstep": True, "max_frames": 120, "noops": 5, "sticky": 0.6}
    actions = np.random.default_rng(0).integers(6, size=(35, 8))
    env = make("pong", **options)
    env.reset(3)
    steps_of(env, actions[:21])
    state = env.snapshot()
    expected = steps_of(env, actions[21:])
    assert any(step.ended.any() for step in expected)
    other = make("pong", **options)
    other.reset(9)
    other.restore(state)
    assert_same_steps(steps_of(other, actions[21:]), expected)


def test_a_quarter_of_the_frames_repeat_the_last_action():
    emulator = atari.Emulator(config.Atari("pong"))
    emulator.reset(5)
    repeats = []
    for emulator.frames in range(2 * atari.BLOCK):
        repeats.append(emulator._repeats())
    assert np.mean(repeats) == pytest.approx(0.25, abs=0.02)
    assert repeats[: atari.BLOCK] != repeats[atari.BLOCK :]


@pytest.mark.parametrize("lockstep", [False, True])
def test_sticky_actions_depend_on_the_seed_only(lockstep):
    actions = np.random.default_rng(0).integers(1, 3, size=(25, 2))
    runs = []
    for seed in (1, 1, 2):
        env = make("freeway", envs=2, lockstep=lockstep)
        env.reset(seed)
        runs.append(steps_of(env, actions))
    assert_same_steps(runs[0], runs[1])
    assert any((a.obs != b.obs).any() for a, b in zip(runs[0], runs[2], strict=True))
    assert not np.array_equal(runs[0][-1].obs[0], runs[0][-1].obs[1])


def assert_game_plays(game: str, frames: int, full: bool) -> None:
    env = make(game, envs=2, full_actions=full)
    ale = ale_py.ALEInterface()
    ale.loadROM(ale_py.roms.get_rom_path(game))
    actions = ale.getLegalActionSet() if full else ale.getMinimalActionSet()
    assert env.actions.n == len(actions)
    obs, rng = env.reset(0), np.random.default_rng(0)
    for _ in range(frames // 4):
        step = env.step(rng.integers(env.actions.n, size=2))
        assert step.obs.shape == obs.shape == (2, *env.observations.shape)
        assert np.isfinite(step.reward).all()
    env.close()


@pytest.mark.parametrize(("game", "full"), [("montezuma_revenge", False), ("freeway", True)])
def test_games_open(game, full):
    assert_game_plays(game, 40, full)


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_all_57_games_play_1000_frames(game):
    assert_game_plays(game, 1000, full=False)


def test_one_game_is_a_gymnasium_environment_with_the_same_frames():
    settings = config.Atari("freeway", envs=1, lockstep=True)
    env, game = make_host_env(settings), AtariGame(settings, render_mode="rgb_array")
    obs, (frame, _) = env.reset(5), game.reset(seed=5)
    np.testing.assert_array_equal(obs[0, ..., -1:], frame)
    for action in (1, 2, 1, 0, 1):
        step, (frame, reward, *_) = env.step(np.array([action])), game.step(action)
        np.testing.assert_array_equal(step.obs[0, ..., -1:], frame)
        assert reward == step.reward[0]
    assert game.render().shape == (210, 320, 3)
    assert game.metadata["render_fps"] == 15


def test_padding_of_a_state_is_larger_than_that_of_any_game():
    emulator = atari.Emulator(config.Atari("pong"))
    emulator.reset(1)
    state = emulator.serialise()
    assert len(state) == atari.STATE_BYTES
    assert not state[-1000:].any()
