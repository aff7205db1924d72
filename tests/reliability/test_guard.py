"""The first non-finite number is named with its step, and never saved."""

import shlex

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

DEPTH, ROLLOUT = 7, 5  # a rollout sees a row of DeepSea at most once: a row is a step
SMALL = {
    "depth": DEPTH,
    "seeds": 2,
    "hidden": (8, 8),
    "rollout": ROLLOUT,
    "chunk": 10,
    "episodes": 1000,
    "stop_when_solved": False,
}
ROLLOUT_TENSORS, UPDATE_TENSORS = (
    ("reward", "logits"),
    ("sigma2", "payoff", "gradient", "log_tau", "params"),
)
TENSORS = (*ROLLOUT_TENSORS, *UPDATE_TENSORS)
ROLLOUTS = 40


@jax.custom_vjp
def nan_gradient(x, on_nonfinite):
    return x


nan_gradient.defvjp(
    lambda x, on_nonfinite: (x, on_nonfinite),
    lambda on_nonfinite, g: (jnp.where(on_nonfinite, jnp.nan, g), None),
)


class NanInjector:
    """Makes one tensor NaN at one rollout and row.

    Tensor, rollout and row are a traced number, so that one compiled program serves all cases. The
    number is given as --checkpoint-seconds, which no program reads.
    """

    code = time = None

    def bad(self, name: str, row=None):
        tensor, rollout, bad_row = self.code // 1000, self.code % 1000 // 10, self.code % 10
        hit = (tensor == 1 + TENSORS.index(name)) & (self.time == rollout)
        return hit if row is None else hit & (row == bad_row)

    def at(self, x, name: str, row=None):
        return jnp.where(self.bad(name, row), jnp.nan, x)


@pytest.fixture
def injector(monkeypatch):
    """All functions through which the tensors pass, with the injector; programs are not reused."""
    inject = NanInjector()
    device._compiled.cache_clear()

    def build(settings, original=device.build):
        inject.code = settings.run.checkpoint_seconds
        return original(settings)

    def rollout(env, agent, env_params, learner, *rest, original=device.rollout):
        inject.time = learner.opt["time"]
        return original(env, agent, env_params, learner, *rest)

    def make_env(settings, original=device.make_env):
        env = original(settings)

        def step(env_params, state, action, key):
            step = env.step(env_params, state, action, key)
            return step._replace(reward=inject.at(step.reward, "reward", state.row))

        return env._replace(step=step)

    def logits(parts, params, obs, allowed, original=actor_critic.policy_logits):
        return inject.at(original(parts, params, obs, allowed), "logits", obs // DEPTH)

    def uncertainty(*args, original=agent_build.make_uncertainty):
        result = original(*args)
        return result._replace(
            sigma2=lambda *x: (
                inject.at(result.sigma2(*x), "sigma2") if len(x[2].shape) else result.sigma2(*x)
            )
        )

    def payoff(*args, original=game.payoff):
        return nan_gradient(inject.at(original(*args), "payoff"), inject.bad("gradient"))

    def optimisers(*args, original=agent_build.make_optimisers):
        result = original(*args)
        wrap = lambda inner, name: inner._replace(
            update=lambda g, s: (
                lambda step, state: (jax.tree.map(lambda x: inject.at(x, name), step), state)
            )(*inner.update(g, s))
        )
        return result._replace(
            dense=wrap(result.dense, "params"), log_tau=wrap(result.log_tau, "log_tau")
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


def code(tensor: str, rollout: int, row: int) -> float:
    return 1000.0 * (1 + TENSORS.index(tensor)) + 10 * rollout + row


def words(tensor: str, rollout: int, t: int) -> str:
    """Return the message for a tensor that is NaN at step t of a rollout, both from zero."""
    moment = (
        f"at step {ROLLOUT * rollout + t + 1}"
        if tensor in ROLLOUT_TENSORS
        else f"after step {ROLLOUT * (rollout + 1)}"
    )
    where = f"{moment} (rollout {rollout + 1}) of seed 0"
    return f"{tensor} is not finite {where}; nothing of it was saved"


def test_the_right_tensor_and_step_are_named(injector):
    rng = np.random.default_rng(0)
    for tensor in TENSORS:
        for _ in range(10):
            rollout, t = int(rng.integers(ROLLOUTS)), int(rng.integers(ROLLOUT))
            settings = api.make_settings(
                **SMALL, checkpoint_seconds=code(tensor, rollout, (ROLLOUT * rollout + t) % DEPTH)
            )
            got, message = 0, ""
            try:
                for got, _ in enumerate(device.run_device(device.prepare_device(settings)), 1):
                    assert got <= rollout // 10, tensor
            except NonFinite as error:
                message = str(error)
            assert message == words(tensor, rollout, t)
            assert got == rollout // 10  # every chunk before it was given out, and none after
    quiet = device.run_device(
        device.prepare_device(api.make_settings(**SMALL, checkpoint_seconds=0.0))
    )
    assert all(
        np.isfinite(next(quiet).metrics["payoff"]).all() for _ in range(20)
    )  # and no false alarm


def test_vectors_and_the_last_matrix_are_summed():
    tree = {"count": 4.0, "bias": [1.0, 2.0], "kernel": [[10.0, 10.0]], "top": [[100.0, 100.0]]}
    tree = {name: jnp.asarray(values) for name, values in tree.items()}
    assert guard._sum_small_arrays(tree) == 207


def test_exit_code_3_and_the_last_good_checkpoint_stays(injector, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(checkpointer.Checkpointer, "due", lambda self: True)
    monkeypatch.setattr(picture, "picture_png", lambda _: b"")
    # The maps are drawn from the same functions, outside of the program with the injector.
    cells = np.zeros(SMALL["depth"] ** 2)
    monkeypatch.setattr(device, "learner_maps", lambda settings, learner: (cells, cells))
    argv = shlex.split(
        f"--checkpoint-seconds {code('reward', 27, (ROLLOUT * 27 + 3) % DEPTH)} "
        f"--depth {DEPTH} --seeds 2 --hidden 8 8 --rollout {ROLLOUT} --chunk 10 --episodes 1000 "
        "--no-stop-when-solved --quiet"
    )
    for begin in (
        ["train", "deep-sea", *argv, "--out", str(tmp_path / "run")],
        ["resume", str(tmp_path / "run")],
    ):
        with pytest.raises(SystemExit) as stop:
            cli.main(begin)
        assert stop.value.code == 3
        out, err = capsys.readouterr()
        assert out in ("", "compiling\n")  # the first run that is prepared says so
        assert err == f"ersac: {words('reward', 27, 3)}\n"
        assert checkpoint.checkpoint_numbers(tmp_path / "run" / "checkpoints") == [10, 20]
    with np.load(tmp_path / "run" / "checkpoints" / "000000000020.npz") as file:
        assert all(np.isfinite(file[name]).all() for name in file.files)


LEAVES = {
    "rows": lambda learner: learner.params.rows,
    "dense": lambda learner: learner.params.dense["policy"]["top"],
    "opt": lambda learner: learner.opt["running"].advantage_square,
    "opt of tables": lambda learner: learner.opt["dense"][0].nu,
}


@pytest.mark.parametrize("name", LEAVES)
def test_a_non_finite_state_that_no_metric_shows_is_not_saved(name):
    program = device.prepare_device(
        api.make_settings(**SMALL, network="table" if name.endswith("tables") else "mlp")
    )
    learner = jax.tree.map(np.array, program.carry.learner)
    leaf = LEAVES[name](learner)
    leaf[(0, *[-1] * (leaf.ndim - 1))] = np.inf
    with pytest.raises(
        NonFinite,
        match=rf"^{'opt' if name.startswith('opt') else 'params/' + name}.* is not finite "
        "at rollout 0, where it was",
    ):
        device.snapshot_device(program, program.carry._replace(learner=learner))


def test_observations_are_watched_where_they_are_numbers():
    learner = device.prepare_device(api.make_settings(**SMALL)).carry.learner
    one = jax.tree.map(lambda leaf: leaf[0], learner)
    flat = jnp.zeros((2, ROLLOUT))  # of two environments
    pixels = jnp.zeros((2, ROLLOUT + 1, 4, 4)).at[1, 3, 1, 2].set(jnp.inf)
    sums = guard.finite_sums(Trajectory(pixels, flat, flat, flat, flat, flat, flat), one)
    sums = {name: np.asarray(value)[None, None] for name, value in sums.items()}
    assert guard.find_nonfinite(sums, {}, ROLLOUT) == [guard.NonFiniteValue("observation", 0, 0, 3)]


def test_the_first_of_many_is_named():
    """Ordered by rollout, seed, step, and the order in which tensors depend on each other."""
    fine = {
        "logits": np.zeros((3, 4, 5)),
        "reward": np.zeros((3, 4, 5)),
        "params": np.zeros((3, 4)),
    }
    metrics = {name: np.zeros((3, 4)) for name in ("tau", "critic", "reward", "unheard of")}
    assert guard.find_nonfinite(fine, metrics, 5) == []
    set_nan = lambda array, *at: array.__setitem__(at, np.nan)
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
    arrays = [
        fine["params"],
        metrics["unheard of"],
        metrics["reward"],
        metrics["critic"],
        fine["reward"],
        fine["logits"],
        fine["reward"],
    ]
    arrays += [fine["params"], metrics["tau"]]
    for array, (name, seed, rollout, step) in zip(arrays, expected, strict=True):
        set_nan(array, seed, rollout, *([step] if array.ndim == 3 else []))
        assert guard.find_nonfinite(fine, metrics, 5)[0] == guard.NonFiniteValue(
            name, seed, rollout, step
        )
    assert [(found.seed, found.tensor) for found in guard.find_nonfinite(fine, metrics, 5)] == [
        (2, "tau"),
        (1, "params"),
    ]  # one a seed
