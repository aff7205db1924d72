"""Settings: unique names, checks, and the split into traced and static values."""

import dataclasses
import math

import pytest

from ersac import api, config
from ersac.config import SettingsError, cgroup
from ersac.config import memory as memory_module
from ersac.config.presets import PRESETS
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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"depth": 0}, "--depth must be a whole number between 1 and 1000, not 0"),
        ({"depth": -3}, "not -3"),
        ({"depth": "deep"}, "not 'deep'"),
        ({"depth": 2.5}, "whole number"),
        ({"depth": True}, "whole number"),
        ({"lam": 1.5}, "--lambda must be a number between 0 and 1, not 1.5"),
        ({"lambda": 1.5}, "--lambda"),
        ({"gamma": math.nan}, "--gamma"),
        ({"tau0": 0}, "--tau0 must be a number between 1e-05 and 1000, not 0"),
        ({"seeds": -1}, "--seeds"),
        ({"hidden": ()}, "--hidden"),
        ({"hidden": (64, 0)}, "--hidden"),
        ({"mapping_seed": -1}, "--mapping-seed"),
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
