"""Environments by the names of the shell: `module:Class`, keyword arguments, packages."""

import subprocess
import sys
import textwrap

import pytest

from ersac import config
from ersac.config import SettingsError
from ersac.runs import run_dir

pytest.importorskip("gymnasium")
from ersac.envs.gym.make import env_factory, factory_of

CLASSES = """
import gymnasium

class Corridor(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Discrete(9), gymnasium.spaces.Discrete(2)
    class Inner(gymnasium.Env):
        pass
    def __init__(self, size=4):
        self.size = size
    def reset(self, *, seed=None, options=None):
        self.cell = self.time = 0
        return 0, {}
    def step(self, action):
        self.cell, self.time = min(self.cell + int(action), self.size), self.time + 1
        return self.cell, float(self.cell == self.size), False, self.time >= 9, {}

def make():
    return Corridor()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module in the current directory, which is not on the path as in a console script."""
    name = f"corridor_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(CLASSES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield name
    sys.modules.pop(name, None)


def test_a_class_of_the_current_directory_is_made_with_its_arguments(module):
    assert env_factory(f"{module}:Corridor")().size == 4
    assert env_factory(f"{module}:Corridor", size=6)().size == 6
    assert type(env_factory(f"{module}:Corridor.Inner")()).__name__ == "Inner"
    env = factory_of(config.Gym(f"{module}:Corridor", env_kwargs='{"size": 8}'))()
    assert env.size == 8


def test_keyword_arguments_reach_a_registered_environment():
    settings = config.Gym("FrozenLake-v1", env_kwargs='{"map_name": "8x8"}')
    assert factory_of(settings)().observation_space.n == 64
    other = factory_of(config.Gym("x", make=lambda n: n, env_kwargs='{"n": 3}'))
    assert other() == 3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("{}:make", "is not a class of Gymnasium environments"),
        ("subprocess:run", "is not a class of Gymnasium environments"),
        ("collections:OrderedDict", "is not a class of Gymnasium environments"),
        ("{}:Corridor.Nothing", "has no Corridor.Nothing"),
        ("{}:Nothing", "a class is module:Class"),
    ],
)
def test_only_classes_of_environments_are_called(name, words, module):
    """The name may come from the files of a run: it must not call any function there is."""
    with pytest.raises(SettingsError, match=words):
        env_factory(name.format(module))


def test_a_run_trained_from_python_is_resumed_and_evaluated_in_the_shell(module, tmp_path):
    code = f"""
        import sys; sys.path.insert(0, "")
        import ersac, {module}
        ersac.train({module}.Corridor, steps=64, envs=2, rollout=8, hidden=(8,), out="run",
                    show=False, env_kwargs={{"size": 3}}, lockstep=True)
    """
    run = lambda *argv: subprocess.run(
        [sys.executable, *argv], capture_output=True, text=True, timeout=200
    )
    done = run("-c", textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    stored = run_dir.read_settings(tmp_path / "run").env
    assert stored.make == f"{module}:Corridor"
    shell = "import sys; sys.path.remove(''); from ersac.cli import main; main()"
    for command in (["eval", "run", "--episodes", "2", "--json"], ["resume", "run", "--quiet"]):
        done = run("-c", shell, *command)
        assert done.returncode == 0, done.stderr


def test_ale_ids_import_their_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(SettingsError, match="ALE/Pong-v5 needs ale_py"):
        env_factory("ALE/Pong-v5")
