"""The first number that is not one is named, with its step; nothing of it is saved."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import api, cli
from ersac.agents import actor_critic
from ersac.agents import build as agent_build
from ersac.algorithm import game
from ersac.analysis import picture
from ersac.loops import device, guard
from ersac.runs import checkpoint, checkpointer
from ersac.runs.exits import NonFinite
from ersac.types import Trajectory

DEPTH, ROLLOUT = 7, 5  # a rollout sees a row of the sea at most once, so a row is a step
SMALL = {
    "depth": DEPTH,
    "seeds": 2,
    "hidden": (8, 8),
    "rollout": ROLLOUT,
    "chunk": 10,
    "episodes": 1000,
    "stop_when_solved": False,
}
ACTING, LEARNING = ("reward", "logits"), ("sigma2", "payoff", "gradient", "log_tau", "params")
TENSORS = (*ACTING, *LEARNING)
ROLLOUTS = 40


@jax.custom_vjp
def spoils_gradient(x, on_nonfinite):
    return x


spoils_gradient.defvjp(
    lambda x, on_nonfinite: (x, on_nonfinite),
    lambda on_nonfinite, g: (jnp.where(on_nonfinite, jnp.nan, g), None),
)


class Spoiler:
    """Makes one tensor bad at one rollout and row. Which, when and where is a traced number, so that one compiled program has them all.

    That number comes as --checkpoint-seconds, which nothing in a program reads.
    """

    code = time = None

    def bad(self, name: str, row=None):
        which, when, where = self.code // 1000, self.code % 1000 // 10, self.code % 10
        here = (which == 1 + TENSORS.index(name)) & (self.time == when)
        return here if row is None else here & (row == where)

    def at(self, x, name: str, row=None):
        return jnp.where(self.bad(name, row), jnp.nan, x)


@pytest.fixture
def spoiled(monkeypatch):
    """A house in which the spoiler lives. Its programs are nobody else's."""
    spoiler = Spoiler()
    device._compiled.cache_clear()

    def build(settings, whole=device.build):
        spoiler.code = settings.run.checkpoint_seconds
        return whole(settings)

    def rollout(env, agent, env_params, learner, *rest, whole=device.rollout):
        spoiler.time = learner.opt["time"]
        return whole(env, agent, env_params, learner, *rest)

    def make_env(settings, whole=device.make_env):
        env = whole(settings)

        def step(env_params, state, action, key):
            told = env.step(env_params, state, action, key)
            return told._replace(reward=spoiler.at(told.reward, "reward", state.row))

        return env._replace(step=step)

    def logits(parts, params, obs, whole=actor_critic.policy_logits):
        return spoiler.at(whole(parts, params, obs), "logits", obs // DEPTH)

    def uncertainty(*args, whole=agent_build.make_uncertainty):
        made = whole(*args)
        return made._replace(
            sigma2=lambda *x: (
                spoiler.at(made.sigma2(*x), "sigma2") if len(x[2].shape) else made.sigma2(*x)
            )
        )

    def payoff(*args, whole=game.payoff):
        return spoils_gradient(spoiler.at(whole(*args), "payoff"), spoiler.bad("gradient"))

    def optimisers(*args, whole=agent_build.make_optimisers):
        made = whole(*args)
        wrap = lambda inner, name: inner._replace(
            update=lambda g, s: (
                lambda step, state: (jax.tree.map(lambda x: spoiler.at(x, name), step), state)
            )(*inner.update(g, s))
        )
        return made._replace(
            dense=wrap(made.dense, "params"), log_tau=wrap(made.log_tau, "log_tau")
        )

    monkeypatch.setattr(device, "build", build)
    monkeypatch.setattr(device, "rollout", rollout)
    monkeypatch.setattr(device, "make_env", make_env)
    monkeypatch.setattr(actor_critic, "policy_logits", logits)
    monkeypatch.setattr(agent_build, "make_uncertainty", uncertainty)
    monkeypatch.setattr(game, "payoff", payoff)
    monkeypatch.setattr(agent_build, "make_optimisers", optimisers)
    yield
    device._compiled.cache_clear()


def code(tensor: str, when: int, where: int) -> float:
    return 1000.0 * (1 + TENSORS.index(tensor)) + 10 * when + where


def words(tensor: str, when: int, t: int) -> str:
    """What the complaint must say of a tensor that was spoilt in rollout `when`, at step t of it (both from zero)."""
    moment = (
        f"at step {ROLLOUT * when + t + 1}"
        if tensor in ACTING
        else f"after step {ROLLOUT * (when + 1)}"
    )
    return (
        f"{tensor} is not finite {moment} (rollout {when + 1}) of seed 0; nothing of it was saved"
    )


def test_the_right_tensor_and_step_are_named(spoiled):
    rng = np.random.default_rng(0)
    for tensor in TENSORS:
        for _ in range(10):
            when, t = int(rng.integers(ROLLOUTS)), int(rng.integers(ROLLOUT))
            settings = api.make_settings(
                **SMALL, checkpoint_seconds=code(tensor, when, (ROLLOUT * when + t) % DEPTH)
            )
            got, complaint = 0, ""
            try:
                for got, _ in enumerate(device.run_device(device.prepare_device(settings)), 1):
                    assert got <= when // 10, tensor
            except NonFinite as error:
                complaint = str(error)
            assert complaint == words(tensor, when, t)
            assert got == when // 10  # every chunk before it was given out, and none after
    quiet = device.run_device(
        device.prepare_device(api.make_settings(**SMALL, checkpoint_seconds=0.0))
    )
    assert all(
        np.isfinite(next(quiet).metrics["payoff"]).all() for _ in range(20)
    )  # and no false alarm


def test_exit_code_3_and_the_last_good_checkpoint_stays(spoiled, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(checkpointer.Checkpointer, "due", lambda self: True)
    monkeypatch.setattr(picture, "picture_png", lambda _: b"")
    names = {"--checkpoint-seconds": code("reward", 27, (ROLLOUT * 27 + 3) % DEPTH)} | {
        f"--{name}": SMALL[name] for name in ("depth", "seeds")
    }
    argv = [str(word) for pair in names.items() for word in pair]
    argv += [
        "--hidden",
        "8",
        "8",
        "--rollout",
        str(ROLLOUT),
        "--chunk",
        "10",
        "--episodes",
        "1000",
        "--no-stop-when-solved",
        "--quiet",
    ]
    for begin in (
        ["train", "deep-sea", *argv, "--out", str(tmp_path / "run")],
        ["resume", str(tmp_path / "run")],
    ):
        with pytest.raises(SystemExit) as stop:
            cli.main(begin)
        assert stop.value.code == 3
        assert capsys.readouterr() == ("", f"ersac: {words('reward', 27, 3)}\n")
        assert checkpoint.checkpoint_numbers(tmp_path / "run" / "checkpoints") == [10, 20]
    with np.load(tmp_path / "run" / "checkpoints" / "000000000020.npz") as file:
        assert all(np.isfinite(file[name]).all() for name in file.files)


SPOILT = {
    "rows": lambda learner: learner.params.rows,
    "dense": lambda learner: learner.params.dense["policy"]["top"],
    "opt": lambda learner: learner.opt["running"].advantage_square,
    "opt of tables": lambda learner: learner.opt["dense"][0].nu,
}


@pytest.mark.parametrize("place", SPOILT)
def test_a_state_that_is_spoilt_where_nobody_looked_is_not_saved(place):
    program = device.prepare_device(
        api.make_settings(**SMALL, network="table" if place.endswith("tables") else "mlp")
    )
    learner = jax.tree.map(np.array, program.carry.learner)
    leaf = SPOILT[place](learner)
    leaf[(0, *[-1] * (leaf.ndim - 1))] = np.inf
    with pytest.raises(
        NonFinite,
        match=rf"^{'opt' if place.startswith('opt') else 'params/' + place}.* is not finite at rollout 0, where it was",
    ):
        device.snapshot_device(program, program.carry._replace(learner=learner))


def test_observations_are_watched_where_they_are_numbers():
    learner = device.prepare_device(api.make_settings(**SMALL)).carry.learner
    one = jax.tree.map(lambda leaf: leaf[0], learner)
    flat = jnp.zeros((2, ROLLOUT))  # of two environments
    pixels = jnp.zeros((2, ROLLOUT + 1, 4, 4)).at[1, 3, 1, 2].set(jnp.inf)
    seen = guard.finite_sums(Trajectory(pixels, flat, flat, flat, flat, flat, flat), one)
    seen = {name: np.asarray(value)[None, None] for name, value in seen.items()}
    assert guard.find_nonfinite(seen, {}, ROLLOUT) == [guard.NonFiniteValue("observation", 0, 0, 3)]


def test_the_first_of_many_is_named():
    """The earliest rollout, then the first seed, then the earliest step, then what comes first in the order of causes."""
    fine = {
        "logits": np.zeros((3, 4, 5)),
        "reward": np.zeros((3, 4, 5)),
        "params": np.zeros((3, 4)),
    }
    metrics = {name: np.zeros((3, 4)) for name in ("tau", "critic", "reward", "unheard of")}
    assert guard.find_nonfinite(fine, metrics, 5) == []
    spoil = lambda place, *at: place.__setitem__(at, np.nan)
    expected = [
        ("params", 2, 3, 5),
        ("unheard of", 2, 3, 5),
        ("reward loss", 2, 3, 5),
        ("critic loss", 2, 3, 5),
    ]
    expected += [
        ("reward", 2, 3, 4),
        ("logits", 2, 3, 4),
        ("reward", 2, 3, 1),
        ("params", 1, 3, 5),
        ("tau", 2, 2, 5),
    ]
    places = [
        fine["params"],
        metrics["unheard of"],
        metrics["reward"],
        metrics["critic"],
        fine["reward"],
        fine["logits"],
        fine["reward"],
    ]
    places += [fine["params"], metrics["tau"]]
    for place, (name, seed, rollout, step) in zip(places, expected, strict=True):
        spoil(place, seed, rollout, *([step] if place.ndim == 3 else []))
        assert guard.find_nonfinite(fine, metrics, 5)[0] == guard.NonFiniteValue(
            name, seed, rollout, step
        )
    assert [(alarm.seed, alarm.tensor) for alarm in guard.find_nonfinite(fine, metrics, 5)] == [
        (2, "tau"),
        (1, "params"),
    ]  # one a seed
