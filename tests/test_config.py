"""Settings: unique names, checks, and the split into traced and static values."""

import dataclasses
import math

import pytest

from ersac import api, config
from ersac.config import SettingsError, cgroup
from ersac.config import memory as memory_module
from ersac.config.presets import PRESETS, preset
from ersac.loops import devices


@pytest.mark.parametrize("name", PRESETS)
def test_every_setting_has_a_unique_name(name):
    names = [
        path[-1]
        for path, _, _ in config.leaves(config.Experiment(agent=PRESETS[name], agent_name=name))
    ]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", PRESETS)
def test_presets_pass_their_own_check(name):
    assert config.check(PRESETS[name]) == PRESETS[name]


def test_ppo_differs_from_its_payoff_agent_in_the_objective_and_its_passes():
    """More passes with many environments, in minibatches of four rollouts."""
    for ppo, payoff in (("ersac-ppo", "ersac"), ("ppo", "vanilla"), ("ppo-rnd", "rnd")):
        one = config.preset(ppo)
        many = config.preset(ppo, env=config.Gym("CartPole-v1", envs=16))
        assert one.objective == many.objective == "clipped"
        assert (one.buffer.passes, many.buffer.passes) == (2, 4)
        assert one.buffer.minibatch == many.buffer.minibatch == 4
        differences = {"objective": "payoff", "passes": 1, "policy_rate": 0.05}
        assert config.override(one, **differences) == config.preset(payoff)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"depth": 0}, "depth must be a whole number between 1 and 1000, not 0"),
        ({"depth": -3}, "not -3"),
        ({"depth": "deep"}, "not 'deep'"),
        ({"depth": 2.5}, "whole number"),
        ({"depth": True}, "whole number"),
        ({"lam": 1.5}, "lam must be a number between 0 and 1, not 1.5"),
        ({"lambda": 1.5}, "lam must"),
        ({"gamma": math.nan}, "gamma must"),
        ({"tau0": 0}, "tau0 must be a number between 1e-05 and 1000, not 0"),
        ({"seeds": -1}, "seeds must"),
        ({"hidden": ()}, "hidden must"),
        ({"hidden": (64, 0)}, "hidden must"),
        ({"mapping_seed": -1}, "mapping_seed must"),
        ({"verbose": 1}, "unknown setting 'verbose'; ersac.settings() lists them"),
        ({"callback": print}, "unknown setting 'callback'; ersac.settings() lists them"),
        ({"env": "CartPole-v1", "env_kwargs": [8]}, "env_kwargs must be a JSON object"),
        ({"env": "CartPole-v1", "env_kwargs": {"f": print}}, "env_kwargs must be a JSON object"),
        ({"agent": "boot-dqn", "uncertainty": "counts"}, "unknown option uncertainty"),
        ({"stop_when_solved": "yes"}, "True or False"),
        ({"agent": "ersca"}, "unknown agent 'ersca'; did you mean ersac?"),
        ({"env": "deepsea"}, "did you mean deep-sea?"),
        ({"uncertainty": "count"}, "did you mean counts?"),
        ({"gama": 0.9}, "unknown setting 'gama'; did you mean gamma?"),
        ({"agent": "vanilla", "tau0": 0.1}, "unknown setting 'tau0'"),
        ({"agent_name": "vanilla"}, "unknown setting 'agent_name'; did you mean agent?"),
    ],
)
def test_invalid_settings_are_refused_in_one_line(changes, words):
    with pytest.raises(SettingsError) as error:
        api.make_settings(**changes)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert "--" not in str(error.value)  # an option of the command line


def test_numbers_are_converted():
    settings = api.make_settings(depth=30.0, gamma=1, hidden=[32])
    assert settings.env.depth == 30
    assert type(settings.env.depth) is int
    assert type(settings.agent.gamma) is float
    assert settings.agent.hidden == (32,)


def test_floats_can_be_split_off_and_put_back():
    settings = api.make_settings(gamma=0.9, tau0=0.3)
    floats = config.floats(settings)
    assert floats["agent.gamma"] == 0.9
    assert floats["agent.risk.tau0"] == 0.3
    assert config.with_floats(config.static(settings), floats) == settings
    other = api.make_settings(gamma=0.8, tau0=0.1)
    assert repr(config.static(settings)) == repr(config.static(other))
    assert repr(config.static(settings)) != repr(config.static(api.make_settings(depth=21)))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gym:CartPole-v1", config.Gym("CartPole-v1")),
        ("gymnasium:CartPole-v1", config.Gym("CartPole-v1")),
        ("CartPole-v1", config.Gym("CartPole-v1")),
        ("ALE/Pong-v5", config.Atari("pong")),
        ("gym:ALE/MontezumaRevenge-v5", config.Atari("montezuma_revenge")),
        ("atari:MontezumaRevenge", config.Atari("montezuma_revenge")),
        ("atari:montezuma_revenge", config.Atari("montezuma_revenge")),
        ("MontezumaRevengeNoFrameskip-v4", config.Atari("montezuma_revenge")),
        ("Pong-v4", config.Atari("pong")),
        ("MiniGrid-DoorKey-8x8-v0", config.Gym("MiniGrid-DoorKey-8x8-v0")),
        ("package.module:Id-v0", config.Gym("package.module:Id-v0")),
        ("envs:MyEnv", config.Gym("envs:MyEnv")),
        ("gym:envs:MyEnv", config.Gym("envs:MyEnv")),
        ("gymnax:CartPole-v1", config.Gymnax("CartPole-v1")),
    ],
)
def test_environments_have_these_names(name, settings):
    assert config.parse_env(name) == settings
    assert config.parse_env(config.env_name(settings)) == settings


def test_keyword_arguments_of_an_environment_are_one_text_however_they_are_given():
    texts = {
        api.make_settings("CartPole-v1", env_kwargs=given).env.env_kwargs
        for given in ({"b": [1, None], "a": 0.5}, '{"a":0.5,"b":[1,null]}')
    }
    assert texts == {'{"a": 0.5, "b": [1, null]}'}


def test_a_suggestion_is_close_or_part_of_the_name():
    known = ["learning_rate", "every_bonus", "agent", "stop_when_solved"]
    assert config.closest("learning_rat", known) == "learning_rate"
    assert config.closest("agent_name", known) == "agent"
    assert config.closest("solved", known) == "stop_when_solved"
    assert config.closest("verbose", known) is None


def test_every_setting_has_a_text_and_is_listed():
    for env in ("deep-sea", "gymnax:CartPole-v1", "CartPole-v1"):
        for agent in PRESETS:
            listed = api.settings(env, agent)
            settings = api.make_settings(env, agent)
            hidden = {"id", "agent"}
            names = {config.keyword(path[-1], hint) for path, hint, _ in config.leaves(settings)}
            assert names - hidden == listed.keys()
            assert all(text for _, text in listed.values())
    assert api.settings()["depth"][0] == 20


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PRESETS["ersac"].gamma = 0.5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("files", "memory", "cores"),
    [
        ({}, None, None),
        (
            {  # version 2: the group above is tighter in memory, this one in time
                "proc/self/cgroup": "0::/job/step\n",
                "sys/fs/cgroup/job/memory.max": "1500000000\n",
                "sys/fs/cgroup/job/step/memory.max": "max\n",
                "sys/fs/cgroup/job/cpu.max": "max 100000\n",
                "sys/fs/cgroup/job/step/cpu.max": "150000 100000\n",
            },
            1_500_000_000,
            2,
        ),
        (
            {  # version 1, in a container: the path is the host's, the files are at the root
                "proc/self/cgroup": "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000000000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            2_000_000_000,
            1,
        ),
        (
            {  # version 1, without limits
                "proc/self/cgroup": "4:memory:/\n1:cpu:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            9223372036854771712,
            None,
        ),
        ({"proc/self/cgroup": "nonsense\n"}, None, None),
    ],
)
def test_limits_of_control_groups(tmp_path, files, memory, cores):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cgroup.memory_limit(tmp_path) == memory
    assert cgroup.core_limit(tmp_path) == cores


def test_a_limit_counts_as_the_memory_and_the_cores_of_the_machine(monkeypatch):
    have = memory_module.memory_bytes()
    monkeypatch.setattr(memory_module, "memory_limit", lambda: have // 2)
    assert memory_module.memory_bytes() == have // 2
    monkeypatch.setattr(devices, "core_limit", lambda: 1)
    assert devices.visible_cores() == 1


def test_a_million_frames_of_replay_take_seven_gigabytes():
    """Each frame of 84 x 84 bytes once, and those of before and after every rollout."""
    size = config.EnvSize(0, 84 * 84 * 4, 3, 84 * 84 * 4, 84 * 84 * 4, frames=4)
    settings = api.make_settings("atari:freeway", "vanilla-replay", rollout=50, capacity=1)
    need = lambda capacity: config.bytes_needed(config.override(settings, capacity=capacity), size)
    # Twice: on the device, and on the host while a checkpoint is written.
    assert 7.0e9 < (need(20_001) - need(1)) / 2 < 8.2e9


def test_large_images_have_an_update_for_each_rollout():
    """For replay and PPO only the learning rate of the convolutions differs."""
    atari, gym = config.parse_env("atari:Freeway"), config.parse_env("gym:CartPole-v1")
    assert preset("ersac", env=atari).buffer == config.OnPolicy(passes=1, minibatch=1)
    assert preset("ersac", env=gym).buffer == config.OnPolicy(passes=2, minibatch=4)
    for name in ("ersac-replay", "ersac-ppo"):
        assert preset(name, env=atari).buffer == preset(name, env=gym).buffer
    assert {preset(name, env=atari).learning_rate for name in ("ersac", "vanilla-replay")} == {
        2.5e-4
    }
