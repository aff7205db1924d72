"""The hand-written kernel and the library make the same update in every array."""

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
TABLE = {"agent": "ersac-sampled", "network": "table"}  # the agent of the kernel
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
    """Random states with many repeats, random ends and masks, actions of another policy."""
    bits = lambda share: (rng.random(LENGTH) < share).astype(np.float64)
    integers = lambda top, size: rng.integers(0, top, size).astype(np.int32)
    log_mu = np.log(rng.uniform(0.1, 0.9, LENGTH))
    return kernel.Steps(
        integers(DEPTH**2, LENGTH + 1),
        integers(2, LENGTH),
        rng.normal(size=LENGTH),
        bits(0.8),
        bits(0.9),
        log_mu,
    )


def library_learner(trajectories: list[kernel.Steps]):
    """The library's learner after an update on each trajectory, in float64, and its tables."""
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


def kernel_state(trajectories: list[kernel.Steps], dtype: type) -> kernel.State:
    state, constants = (
        kernel.init_state(SETTINGS, dtype),
        kernel.make_constants(SETTINGS.agent, DEPTH, dtype),
    )
    scratch = kernel.make_scratch(LENGTH, dtype)
    for steps in trajectories:
        kernel.learn(
            state,
            scratch,
            kernel.Steps(*(x if x.dtype == np.int32 else x.astype(dtype) for x in steps)),
            constants,
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
    unravel = jax.flatten_util.ravel_pytree(learner.params.dense)[1]  # moments are one vector
    return {
        "first rows": (state.rows[:, kernel.FIRST : kernel.MOMENT], tables["torso"]["first"]),
        "own rows": (
            state.rows[:, kernel.HEAD_ROW : kernel.HEAD_ROW + kernel.USED],
            kernel.heads(tables, "row"),
        ),
        "shared": (state.shared, kernel.shared_vector(learner.params.dense)),
        "first moments": (state.shared_moment, kernel.shared_vector(unravel(dense.mu))),
        "second moments": (state.shared_square, kernel.shared_vector(unravel(dense.nu))),
        "tau": (state.tau, np.array([learner.log_tau, tau.mu, tau.nu])),
    }


# Updates after the first also use moments, and those of rows that were idle.
@pytest.mark.parametrize("updates", [pytest.param(1, marks=pytest.mark.slow), UPDATES])
def test_the_kernel_and_the_library_make_the_same_update(float64, updates):
    rng = np.random.default_rng(1)
    trajectories = [draw_steps(rng) for _ in range(updates)]
    before, after = kernel_state([], np.float64), kernel_state(trajectories, np.float64)
    for name, (ours, theirs) in pairs(after, *library_learner(trajectories)).items():
        np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-9, atol=1e-12, err_msg=name)
    for name, array in before._asdict().items():
        if name in ("rows", "shared", "shared_moment", "shared_square", "tau", "time"):
            assert not np.array_equal(getattr(after, name), array), name


@pytest.mark.slow
def test_float32_stays_close_to_float64():
    trajectories = [draw_steps(np.random.default_rng(2)) for _ in range(UPDATES)]
    single, double = (
        kernel_state(trajectories, np.float32),
        kernel_state(trajectories, np.float64),
    )
    np.testing.assert_allclose(single.rows, double.rows, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(single.shared, double.shared, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_the_kernel_solves_deep_sea():
    depth, rollouts = 10, 6000
    settings = api.make_settings(**TABLE, depth=depth, seeds=1, shared_reward_heads=True)
    length, rng = settings.agent.rollout, np.random.default_rng(0)
    state, goals = kernel.init_state(settings), np.zeros(rollouts * length // depth + 1, np.int8)
    constants, buffers = (
        kernel.make_constants(settings.agent, depth, np.float32),
        (kernel.make_scratch(length), kernel.make_steps(length)),
    )
    kernel.run(state, *buffers, constants, action_map(depth, 0), goals, rng, rollouts)
    assert state.position[3] == rollouts * length // depth
    assert state.visits.sum() == rollouts * length
    assert scores.solved_reliable(goals[: state.position[3]].astype(bool)) is not None
    assert goals[state.position[3] - 1000 : state.position[3]].mean() > 0.95


def test_other_settings_are_refused():
    with pytest.raises(ValueError, match="two layers of 64"):
        kernel.make_constants(api.make_settings(**TABLE, members=4).agent, DEPTH, np.float32)
