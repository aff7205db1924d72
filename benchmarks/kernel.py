"""The same agent written by hand as numba loops for one core, every derivative included.

It shares the arithmetic, the widths and the initial weights of the library, but no code. So it
shows how far compiled JAX is from what the machine can do, and tests/benchmarks/test_kernel.py
shows that autodiff, the lazy moments and the derivation by hand agree in every array. As in the
library, acting and learning each compute the network for themselves.

Layout: everything that belongs to a state is one row of one array, a multiple of 64 bytes.
Everything that states share is one vector, so that Adam is one loop. The three heads are one
matrix. The matrix products of a rollout are BLAS's, which is faster than loops. Nothing is
allocated while it runs. Literals would be doubles and halve the width of every vector instruction,
so all constants come in as `Constants`, in the precision of the arrays.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from ersac import config
from ersac.agents import build
from ersac.envs.base import spec_of
from ersac.envs.make import make_env
from ersac.types import Learner

WIDTH = 64  # of both layers
MEMBERS, ACTIONS = 10, 2
VALUE, REWARD, USED = 2, 3, 23  # the columns of the heads: logits, value, members x actions
HEADS = 24  # columns, of which the last is padding: three vectors of eight
# The columns of a state's row: first-layer weights, their two moments, outputs of the heads,
# priors, and the update that last touched it.
FIRST, MOMENT, SQUARE, HEAD_ROW, PRIOR, TOUCHED, ROW = 0, 64, 128, 192, 216, 236, 240
# Offsets in the shared vector: first bias, second layer and its bias, heads and their biases.
BIAS, LAYER, LAYER_BIAS, HEAD, HEAD_BIAS, SHARED = 0, 64, 4160, 4224, 5760, 5784


class Constants(NamedTuple):
    """The settings and the constants of the formulas, in the precision of the arrays."""

    zero: float
    half: float
    one: float
    members: float
    rollout: float
    gamma: float
    lam: float
    learning_rate: float
    b1: float
    b2: float
    log_b1: float
    log_b2: float
    tau_rate: float
    tau_b1: float
    tau_b2: float
    eps: float
    log_tau_min: float
    policy_rate: float
    value_rate: float
    reward_rate: float
    advantage_limit: float
    value_weight: float
    reward_weight: float
    sigma_scale: float
    move_cost: float


class State(NamedTuple):
    """Everything that is kept between rollouts."""

    rows: np.ndarray  # [S, ROW]
    shared: np.ndarray  # [SHARED]
    shared_moment: np.ndarray  # [SHARED]
    shared_square: np.ndarray  # [SHARED]
    tau: np.ndarray  # [3]       log tau and its two moments
    time: np.ndarray  # [1]      updates so far
    position: np.ndarray  # [4] int row, column, off the path, episodes so far
    visits: np.ndarray  # [S] int32
    slot: np.ndarray  # [S] int32, first step of the rollout in that state; -1 between updates


class Steps(NamedTuple):
    """A trajectory, as in ersac.types."""

    obs: np.ndarray  # [T+1] int32
    action: np.ndarray  # [T] int32
    reward: np.ndarray  # [T]
    discount: np.ndarray  # [T]
    mask: np.ndarray  # [T]
    log_mu: np.ndarray  # [T]


class Scratch(NamedTuple):
    """Buffers for the intermediate results of an update."""

    policy: np.ndarray  # [ACTIONS, WIDTH]   the policy's weights, each action's contiguous
    hidden: np.ndarray  # [T+1, WIDTH]         after the first layer
    features: np.ndarray  # [T+1, WIDTH]       after the second
    out: np.ndarray  # [T+1, HEADS]            of all heads
    d_out: np.ndarray  # [T+1, HEADS]          the loss with respect to them
    d_out_shared: np.ndarray  # [T+1, HEADS]           the same, weighted for the shared layers
    d_features: np.ndarray  # [T+1, WIDTH]
    d_hidden: np.ndarray  # [T+1, WIDTH]
    d_shared: np.ndarray  # [SHARED]
    log_pi: np.ndarray  # [T, ACTIONS]
    entropy: np.ndarray  # [T]
    sigma2: np.ndarray  # [T]
    count: np.ndarray  # [T+1]                 visits of the state, at its first step; else 0


def make_constants(settings: config.ActorCritic, depth: int, dtype: type) -> Constants:
    """The constants of some settings; ValueError for settings that the kernel does not have."""
    s, risk, ensemble = settings, settings.risk, settings.uncertainty
    if (
        s.hidden != (WIDTH, WIDTH)
        or not ensemble.shared_reward_heads
        or ensemble.members != MEMBERS
        or ensemble.noise_variance is not None
    ):
        raise ValueError(
            "the kernel has two layers of 64 and ten members that share them, without noise"
        )
    if s.max_logit_gap is not None or s.critic != "sampled":
        raise ValueError("the kernel has no limit on logits and only the sampled critic")
    adam = (
        s.learning_rate,
        s.b1,
        s.b2,
        math.log(s.b1),
        math.log(s.b2),
        risk.tau_learning_rate,
        0.9,
        0.999,
        1e-8,
        math.log(risk.tau_min),
    )
    weights = (
        s.policy_rate,
        s.value_rate,
        ensemble.reward_rate,
        s.advantage_limit,
        s.value_weight,
        s.reward_weight,
    )
    return Constants(
        *map(
            dtype,
            (
                0.0,
                0.5,
                1.0,
                MEMBERS,
                s.rollout,
                s.gamma,
                s.lam,
                *adam,
                *weights,
                ensemble.sigma_scale,
                0.01 / depth,
            ),
        )
    )


def init_state(settings: config.Experiment, dtype: type = np.float32) -> State:
    """The initial state of the library's run with the same settings and seed."""
    env = make_env(settings.env)
    agent, parts = (
        build.make_agent(settings.agent, spec_of(env)),
        build.make_parts(settings.agent, spec_of(env)),
    )
    store = build.make_optimisers(settings.agent, parts, 0.0).rows
    learner: Learner = agent.init(np.random.default_rng(settings.run.seed))
    tables, dense = store.unpack(np.asarray(learner.params.rows)), learner.params.dense
    rows = np.zeros((env.n_states, ROW), dtype)
    rows[:, FIRST:MOMENT] = tables["torso"]["first"]
    rows[:, HEAD_ROW : HEAD_ROW + USED] = heads(tables, "row")
    rows[:, PRIOR:TOUCHED] = learner.memory.uncertainty.prior
    shared = shared_vector(dense).astype(dtype)
    tau, time, position = (
        np.array([learner.log_tau, 0, 0], dtype),
        np.zeros(1, dtype),
        np.zeros(4, np.int64),
    )
    visits, slot = np.zeros(env.n_states, np.int32), np.full(env.n_states, -1, np.int32)
    return State(
        rows,
        shared,
        np.zeros_like(shared),
        np.zeros_like(shared),
        tau,
        time,
        position,
        visits,
        slot,
    )


def heads(parts: dict, name: str) -> np.ndarray:
    """The arrays of that name of the three heads, concatenated [..., USED]."""
    return np.concatenate(
        [np.asarray(parts[head][name]) for head in ("policy", "value", "uncertainty")], axis=-1
    )


def shared_vector(dense: dict) -> np.ndarray:
    """The library's dense parameters (or gradient, or moments) as the kernel's vector [SHARED]."""
    (layer,) = dense["torso"]["layers"]
    pad = lambda x: np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, HEADS - USED)]).ravel()
    parts = (
        dense["torso"]["bias"],
        np.ravel(layer["w"]),
        layer["b"],
        pad(heads(dense, "w")),
        pad(heads(dense, "b")),
    )
    return np.concatenate([np.asarray(part) for part in parts])


def make_steps(length: int, dtype: type = np.float32) -> Steps:
    """A trajectory of zeros with no step masked."""
    integers, floats = (lambda n: np.zeros(n, np.int32)), (lambda: np.zeros(length, dtype))
    return Steps(
        integers(length + 1),
        integers(length),
        floats(),
        floats(),
        np.ones(length, dtype),
        floats(),
    )


def make_scratch(length: int, dtype: type = np.float32) -> Scratch:
    """Buffers for updates on trajectories of that length."""
    zeros = lambda *shape: np.zeros(shape, dtype)
    wide, narrow = (lambda: zeros(length + 1, WIDTH)), (lambda: zeros(length + 1, HEADS))
    per_step = (zeros(length, ACTIONS), zeros(length), zeros(length), zeros(length + 1))
    return Scratch(
        zeros(ACTIONS, WIDTH),
        wide(),
        wide(),
        narrow(),
        narrow(),
        narrow(),
        wide(),
        wide(),
        zeros(SHARED),
        *per_step,
    )


# error_model: a division that may raise cannot be vectorised.
compiled = njit(fastmath=True, cache=True, error_model="numpy")


@compiled
def layer_view(shared):
    """The second layer [WIDTH, WIDTH], a view."""
    return shared[LAYER:LAYER_BIAS].reshape(WIDTH, WIDTH)


@compiled
def heads_view(shared):
    """The heads [WIDTH, HEADS], a view."""
    return shared[HEAD:HEAD_BIAS].reshape(WIDTH, HEADS)


@compiled
def state_features(row, shared, hidden, features, n):
    """Compute the features of one state into `hidden` and `features` [WIDTH], while acting."""
    layer = layer_view(shared)
    for j in range(WIDTH):
        x = row[j] + shared[BIAS + j]
        hidden[j] = x if x > n.zero else n.zero
        features[j] = shared[LAYER_BIAS + j]
    for k in range(0, WIDTH, 4):  # four at a time: a quarter of the loads and stores
        h0, h1, h2, h3 = hidden[k], hidden[k + 1], hidden[k + 2], hidden[k + 3]
        for j in range(WIDTH):
            features[j] += (
                h0 * layer[k, j]
                + h1 * layer[k + 1, j]
                + h2 * layer[k + 2, j]
                + h3 * layer[k + 3, j]
            )
    for j in range(WIDTH):
        features[j] = features[j] if features[j] > n.zero else n.zero


@compiled
def log_softmax(left, right):
    """The log-probabilities of two logits."""
    top = max(left, right)
    total = top + math.log(math.exp(left - top) + math.exp(right - top))
    return left - total, right - total


@compiled
def act(state, scratch, steps, n, right, goals, rng):
    """Fill a trajectory with T steps of DeepSea.

    right: [depth, depth] the action that moves right in each cell.
    """
    depth, shared = right.shape[0], state.shared
    policy, hidden, features = scratch.policy, scratch.hidden[0], scratch.features[0]
    matrix = heads_view(shared)
    for a in range(ACTIONS):
        for k in range(WIDTH):
            policy[a, k] = matrix[k, a]
    down, across, off_path, episodes = (
        state.position[0],
        state.position[1],
        state.position[2],
        state.position[3],
    )
    for t in range(len(steps.action)):
        obs = down * depth + across
        row = state.rows[obs]
        state_features(row, shared, hidden, features, n)
        logit_0, logit_1 = (
            shared[HEAD_BIAS] + row[HEAD_ROW],
            shared[HEAD_BIAS + 1] + row[HEAD_ROW + 1],
        )
        for k in range(WIDTH):
            logit_0 += features[k] * policy[0, k]
            logit_1 += features[k] * policy[1, k]
        log_0, log_1 = log_softmax(logit_0, logit_1)
        action = 1 if rng.random() >= math.exp(log_0) else 0
        moves_right = action == right[down, across]
        reward = n.zero
        if moves_right:
            reward = (n.one if across == depth - 1 else n.zero) - n.move_cost
        elif down == across:
            off_path = 1
        steps.obs[t], steps.action[t], steps.reward[t], steps.log_mu[t] = (
            obs,
            action,
            reward,
            log_1 if action else log_0,
        )
        state.visits[obs] += 1
        down, across = down + 1, min(max(across + (1 if moves_right else -1), 0), depth - 1)
        steps.discount[t] = n.one
        if down == depth:
            steps.discount[t] = n.zero
            goals[episodes] = 1 - off_path
            down, across, off_path, episodes = 0, 0, 0, episodes + 1
    steps.obs[len(steps.action)] = down * depth + across
    state.position[0], state.position[1], state.position[2], state.position[3] = (
        down,
        across,
        off_path,
        episodes,
    )


@compiled
def forward(state, scratch, steps, n):
    """Compute the network and every head on every observation of the trajectory."""
    shared, rows, hidden, features, out = (
        state.shared,
        state.rows,
        scratch.hidden,
        scratch.features,
        scratch.out,
    )
    for t in range(len(steps.obs)):
        row = rows[steps.obs[t]]
        for j in range(WIDTH):
            x = row[j] + shared[BIAS + j]
            hidden[t, j] = x if x > n.zero else n.zero
    np.dot(hidden, layer_view(shared), features)
    for t in range(len(steps.obs)):
        for j in range(WIDTH):
            x = features[t, j] + shared[LAYER_BIAS + j]
            features[t, j] = x if x > n.zero else n.zero
    np.dot(features, heads_view(shared), out)
    for t in range(len(steps.obs)):
        row = rows[steps.obs[t]]
        for j in range(HEADS):
            out[t, j] += shared[HEAD_BIAS + j] + row[HEAD_ROW + j]
        for j in range(MEMBERS * ACTIONS):
            out[t, REWARD + j] += row[PRIOR + j]


@compiled
def policy_terms(scratch, steps, tau, n):
    """Compute log-probabilities, entropies and sigma2; returns the payoff's gradient in log tau."""
    total, n_steps = n.zero, n.zero
    for t in range(len(steps.action)):
        log_0, log_1 = log_softmax(scratch.out[t, 0], scratch.out[t, 1])
        scratch.log_pi[t, 0], scratch.log_pi[t, 1] = log_0, log_1
        scratch.entropy[t] = -(math.exp(log_0) * log_0 + math.exp(log_1) * log_1)
        mean, square = n.zero, n.zero
        for k in range(MEMBERS):
            mean += scratch.out[t, REWARD + ACTIONS * k + steps.action[t]]
        mean /= n.members
        for k in range(MEMBERS):
            deviation = scratch.out[t, REWARD + ACTIONS * k + steps.action[t]] - mean
            square += deviation * deviation
        scratch.sigma2[t] = n.sigma_scale * n.sigma_scale * square / n.members
        total += importance_ratio(scratch, steps, t, n) * (
            scratch.entropy[t] - n.half * scratch.sigma2[t] / (tau * tau)
        )
        n_steps += steps.mask[t]
    return total / max(n.one, n_steps)


@compiled
def importance_ratio(scratch, steps, t, n):
    """V-trace's importance ratio, clipped at one, and 0 where the step is masked."""
    return steps.mask[t] * min(
        n.one, math.exp(scratch.log_pi[t, steps.action[t]] - steps.log_mu[t])
    )


@compiled
def differentiate_heads(scratch, steps, tau, n):
    """Compute the gradient with respect to the heads' outputs, backwards in time as V-trace is."""
    length = len(steps.action)
    out, d_out, d_out_shared = scratch.out, scratch.d_out, scratch.d_out_shared
    n_steps = n.zero
    for t in range(length):
        n_steps += steps.mask[t]
    n_steps = max(n.one, n_steps)
    value_scale, limit, error = n.value_weight / (tau * tau), n.advantage_limit * tau, n.zero
    for t in range(length - 1, -1, -1):
        action, share = steps.action[t], steps.mask[t] / n_steps
        log_pi = scratch.log_pi[t, action]
        rho = importance_ratio(scratch, steps, t, n)
        reward = steps.reward[t] + n.half * scratch.sigma2[t] / tau
        discount, value, following = n.gamma * steps.discount[t], out[t, VALUE], out[t + 1, VALUE]
        action_value = reward + discount * (following + n.lam * error)  # with the error of t + 1
        error = (
            rho * (reward - tau * log_pi + discount * following - value)
            + n.lam * discount * rho * error
        )
        advantage = rho * min(max(action_value - value, -limit), limit)
        for a in range(ACTIONS):
            pi = math.exp(scratch.log_pi[t, a])
            chosen = n.one if a == action else n.zero
            direction = advantage * (chosen - pi) - rho * tau * pi * (
                scratch.log_pi[t, a] + scratch.entropy[t]
            )
            d_out[t, a] = -share * direction / tau
            d_out_shared[t, a] = d_out[t, a]
        d_out[t, VALUE] = -share * error
        d_out_shared[t, VALUE] = value_scale * d_out[t, VALUE]
        for k in range(REWARD, USED):
            d_out[t, k] = n.zero
        for k in range(MEMBERS):
            column = REWARD + ACTIONS * k + action
            d_out[t, column] = share * (out[t, column] - steps.reward[t])
        for k in range(REWARD, USED):
            d_out_shared[t, k] = n.reward_weight * d_out[t, k]
    for k in range(HEADS):  # the last observation has no loss
        d_out[length, k] = d_out_shared[length, k] = n.zero


@compiled
def backward(state, scratch, n):
    """Backpropagate to the shared vector (`d_shared`) and the first layer's rows (`d_hidden`)."""
    d, features, hidden, d_features, d_hidden = (
        scratch.d_shared,
        scratch.features,
        scratch.hidden,
        scratch.d_features,
        scratch.d_hidden,
    )
    d[:] = n.zero
    np.dot(features.T, scratch.d_out, heads_view(d))
    np.dot(scratch.d_out_shared, heads_view(state.shared).T, d_features)
    for t in range(len(features)):
        for j in range(HEADS):
            d[HEAD_BIAS + j] += scratch.d_out[t, j]
        for j in range(WIDTH):
            d_features[t, j] = d_features[t, j] if features[t, j] > n.zero else n.zero
            d[LAYER_BIAS + j] += d_features[t, j]
    np.dot(hidden.T, d_features, layer_view(d))
    np.dot(d_features, layer_view(state.shared).T, d_hidden)
    for t in range(len(hidden)):
        for j in range(WIDTH):
            d_hidden[t, j] = d_hidden[t, j] if hidden[t, j] > n.zero else n.zero
            d[BIAS + j] += d_hidden[t, j]


@compiled
def update_shared(state, scratch, time, n):
    """Adam on the shared vector."""
    rate = n.learning_rate / (n.one - n.b1**time)
    correction = n.one / (n.one - n.b2**time)
    shared, moment, square, gradient = (
        state.shared,
        state.shared_moment,
        state.shared_square,
        scratch.d_shared,
    )
    for i in range(SHARED):
        moment[i] = n.b1 * moment[i] + (n.one - n.b1) * gradient[i]
        square[i] = n.b2 * square[i] + (n.one - n.b2) * gradient[i] * gradient[i]
        shared[i] -= rate * moment[i] / (math.sqrt(square[i] * correction) + n.eps)


@compiled
def update_tau(state, gradient, time, n):
    """Adam on log tau, which descends the payoff."""
    tau = state.tau
    tau[1] = n.tau_b1 * tau[1] + (n.one - n.tau_b1) * gradient
    tau[2] = n.tau_b2 * tau[2] + (n.one - n.tau_b2) * gradient * gradient
    size = math.sqrt(tau[2] / (n.one - n.tau_b2**time)) + n.eps
    tau[0] = max(tau[0] - n.tau_rate / (n.one - n.tau_b1**time) * tau[1] / size, n.log_tau_min)


@compiled
def sum_duplicates(state, scratch, steps, n):
    """Add the gradients of repeated states to their first occurrence, and count the visits."""
    for t in range(len(steps.obs)):
        first = state.slot[steps.obs[t]]
        if first < 0:
            state.slot[steps.obs[t]] = t
            scratch.count[t] = n.one
            continue
        scratch.count[first] += n.one
        scratch.count[t] = n.zero
        for j in range(WIDTH):
            scratch.d_hidden[first, j] += scratch.d_hidden[t, j]
        for j in range(HEADS):
            scratch.d_out[first, j] += scratch.d_out[t, j]


@compiled
def update_rows(state, scratch, steps, time, n):
    """Lazy Adam on rows of the first layer, descent at a rate per visit on those of the heads."""
    sum_duplicates(state, scratch, steps, n)
    rate = n.learning_rate / (n.one - n.b1**time)
    correction = n.one / (n.one - n.b2**time)
    for t in range(len(steps.obs)):
        state.slot[steps.obs[t]] = -1
        if scratch.count[t] == n.zero:
            continue
        row, gradient, d_heads = state.rows[steps.obs[t]], scratch.d_hidden[t], scratch.d_out[t]
        idle = time - row[TOUCHED]
        row[TOUCHED] = time
        decay_1, decay_2 = math.exp(idle * n.log_b1), math.exp(idle * n.log_b2)
        for j in range(WIDTH):
            moment = decay_1 * row[MOMENT + j] + (n.one - n.b1) * gradient[j]
            square = decay_2 * row[SQUARE + j] + (n.one - n.b2) * gradient[j] * gradient[j]
            row[MOMENT + j], row[SQUARE + j] = moment, square
            row[FIRST + j] -= rate * moment / (math.sqrt(square * correction) + n.eps)
        repeats = scratch.count[t] - n.one
        for j in range(USED):
            rate_per_visit = (
                n.policy_rate if j < VALUE else (n.value_rate if j == VALUE else n.reward_rate)
            )
            row[HEAD_ROW + j] -= (
                rate_per_visit
                * n.rollout
                * d_heads[j]
                / (n.one + repeats * min(rate_per_visit, n.one))
            )


@compiled
def learn(state, scratch, steps, n):
    """Update the policy, the critic and tau simultaneously on one trajectory."""
    state.time[0] += n.one
    time, tau = state.time[0], math.exp(state.tau[0])
    forward(state, scratch, steps, n)
    tau_gradient = policy_terms(scratch, steps, tau, n)
    differentiate_heads(scratch, steps, tau, n)
    backward(state, scratch, n)
    update_shared(state, scratch, time, n)
    update_tau(state, tau_gradient, time, n)
    update_rows(state, scratch, steps, time, n)


@compiled
def run(state, scratch, steps, n, right, goals, rng, rollouts):
    """Alternate acting and learning; `goals` [episodes] is filled as episodes end."""
    for _ in range(rollouts):
        act(state, scratch, steps, n, right, goals, rng)
        learn(state, scratch, steps, n)
