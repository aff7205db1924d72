"""The hand-written kernel and the library are two derivations of one update: they agree in every array."""

import jax
import jax.flatten_util
import numpy as np
import pytest
from jax import numpy as jnp

from benchmarks import kernel
from ersac import api
from ersac.agents import build
from ersac.analysis import scores
from ersac.envs.base import spec_of
from ersac.envs.deep_sea import action_map
from ersac.envs.make import make_env
from ersac.types import Trajectory

DEPTH, LENGTH, UPDATES = 6, 50, 4
TABLE = {"agent": "ersac-sampled", "network": "table"}  # what the kernel is written for
SETTINGS = api.make_settings(
    **TABLE,
    depth=DEPTH,
    seeds=1,
    rollout=LENGTH,
    policy_rate=0.5,
    sigma_scale=3.0,
    shared_reward_heads=True,
)


def draw_steps(rng: np.random.Generator) -> kernel.Steps:
    """Nothing that acting would give: states at random with many duplicates, ends and masks anywhere, another policy's actions."""
    chance = lambda share: (rng.random(LENGTH) < share).astype(np.float64)
    whole = lambda top, size: rng.integers(0, top, size).astype(np.int32)
    log_mu = np.log(rng.uniform(0.1, 0.9, LENGTH))
    return kernel.Steps(
        whole(DEPTH**2, LENGTH + 1),
        whole(2, LENGTH),
        rng.normal(size=LENGTH),
        chance(0.8),
        chance(0.9),
        log_mu,
    )


def library(trajectories: list[kernel.Steps]):
    """The library's learner after an update on each trajectory, in double precision, with its tables unpacked."""
    env = make_env(SETTINGS.env)
    agent, parts = (
        build.make_agent(SETTINGS.agent, spec_of(env)),
        build.make_parts(SETTINGS.agent, spec_of(env)),
    )
    store = build.make_optimisers(SETTINGS.agent, parts, 0.0).rows
    double = lambda x: (
        jnp.asarray(x, jnp.float64)
        if jnp.issubdtype(jnp.asarray(x).dtype, jnp.floating)
        else jnp.asarray(x)
    )
    learner, update = (
        jax.tree.map(double, agent.init(np.random.default_rng(0))),
        jax.jit(agent.update),
    )
    for steps in trajectories:
        batch = Trajectory(*steps, noise=np.zeros((LENGTH, kernel.MEMBERS)))
        learner, _, _ = update(learner, jax.tree.map(lambda x: jnp.asarray(x)[None], batch))
    return learner, store.unpack(learner.params.rows)


def by_hand(trajectories: list[kernel.Steps], dtype: type) -> kernel.State:
    state, numbers = kernel.start(SETTINGS, dtype), kernel.numbers(SETTINGS.agent, DEPTH, dtype)
    scratch = kernel.make_scratch(LENGTH, dtype)
    for steps in trajectories:
        kernel.learn(
            state,
            scratch,
            kernel.Steps(*(x if x.dtype == np.int32 else x.astype(dtype) for x in steps)),
            numbers,
        )
    return state


def pairs(state: kernel.State, learner, tables) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Every array that an update moves: the kernel's and the library's."""
    adam = lambda opt: next(
        part
        for part in jax.tree.leaves(opt, is_leaf=lambda x: hasattr(x, "mu"))
        if hasattr(part, "mu")
    )
    dense, tau = adam(learner.opt["dense"]), adam(learner.opt["log_tau"])
    whole = jax.flatten_util.ravel_pytree(learner.params.dense)[1]  # its moments lie in one vector
    return {
        "first rows": (state.rows[:, kernel.FIRST : kernel.MOMENT], tables["torso"]["first"]),
        "own rows": (
            state.rows[:, kernel.OWN : kernel.OWN + kernel.USED],
            kernel.heads(tables, "row"),
        ),
        "shared": (state.shared, kernel.shared_vector(learner.params.dense)),
        "first moments": (state.shared_moment, kernel.shared_vector(whole(dense.mu))),
        "second moments": (state.shared_square, kernel.shared_vector(whole(dense.nu))),
        "tau": (state.tau, np.array([learner.log_tau, tau.mu, tau.nu])),
    }


@pytest.mark.parametrize(
    "updates", [pytest.param(1, marks=pytest.mark.slow), UPDATES]
)  # the second and later ones see moments, of rows left idle too
def test_the_kernel_and_the_library_make_the_same_update(float64, updates):
    rng = np.random.default_rng(1)
    trajectories = [draw_steps(rng) for _ in range(updates)]
    before, after = by_hand([], np.float64), by_hand(trajectories, np.float64)
    for name, (ours, theirs) in pairs(after, *library(trajectories)).items():
        np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-9, atol=1e-12, err_msg=name)
    for name, array in before._asdict().items():
        if name in ("rows", "shared", "shared_moment", "shared_square", "tau", "time"):
            assert not np.array_equal(getattr(after, name), array), name


@pytest.mark.slow
def test_single_precision_follows_double():
    trajectories = [draw_steps(np.random.default_rng(2)) for _ in range(UPDATES)]
    single, double = by_hand(trajectories, np.float32), by_hand(trajectories, np.float64)
    np.testing.assert_allclose(single.rows, double.rows, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(single.shared, double.shared, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.slow
def test_the_kernel_solves_deep_sea():
    depth, rollouts = 10, 6000
    settings = api.make_settings(**TABLE, depth=depth, seeds=1, shared_reward_heads=True)
    length, rng = settings.agent.rollout, np.random.default_rng(0)
    state, goals = kernel.start(settings), np.zeros(rollouts * length // depth + 1, np.int8)
    numbers, room = (
        kernel.numbers(settings.agent, depth, np.float32),
        (kernel.make_scratch(length), kernel.make_steps(length)),
    )
    kernel.run(state, *room, numbers, action_map(depth, 0), goals, rng, rollouts)
    assert state.diver[3] == rollouts * length // depth
    assert state.visits.sum() == rollouts * length
    assert scores.solved_reliable(goals[: state.diver[3]].astype(bool)) is not None
    assert goals[state.diver[3] - 1000 : state.diver[3]].mean() > 0.95


def test_the_kernel_refuses_what_it_was_not_written_for():
    with pytest.raises(ValueError, match="two layers of 64"):
        kernel.numbers(api.make_settings(**TABLE, members=4).agent, DEPTH, np.float32)
