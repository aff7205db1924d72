"""The limit: the same agent written by hand as loops for one core, every derivative included.

It shares no code with the library, only its arithmetic, its widths and its first weights; so it says two things at once: how
far compiled JAX is from what the machine can do, and (tests/benchmarks/test_kernel.py) that autodiff, the lazy moments and
the hand's derivation agree in every array. As in the library, acting and learning each compute the network for themselves.

How it is laid out: all that belongs to a state is one row of one array, a multiple of 64 bytes; all that states share is one
vector, so that Adam is one loop; the three heads are one matrix; a rollout's products are BLAS's, which beat our loops. Nothing
is allocated while it runs. Literals would be
doubles and would halve the width of every vector, so that all numbers come in as `Numbers`, in the precision of the arrays.
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
# The columns of a state's row: its first layer, the two moments of that, its own outputs, its priors, when it was last touched.
FIRST, MOMENT, SQUARE, OWN, PRIOR, TOUCHED, ROW = 0, 64, 128, 192, 216, 236, 240
# Where the vector of what states share has the first bias, the second layer, its bias, the heads and theirs.
BIAS, LAYER, LAYER_BIAS, HEAD, HEAD_BIAS, SHARED = 0, 64, 4160, 4224, 5760, 5784


class Numbers(NamedTuple):
    """The settings, and the constants of the formulas, in the precision of the arrays."""

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
    log_tau_least: float
    policy_rate: float
    value_rate: float
    reward_rate: float
    advantage_limit: float
    value_weight: float
    reward_weight: float
    sigma_scale: float
    move_cost: float


class State(NamedTuple):
    """All that outlives a rollout."""

    rows: np.ndarray  # [S, ROW]
    shared: np.ndarray  # [SHARED]
    shared_moment: np.ndarray  # [SHARED]
    shared_square: np.ndarray  # [SHARED]
    tau: np.ndarray  # [3]       log tau and its two moments
    time: np.ndarray  # [1]      updates so far
    diver: np.ndarray  # [4] int row, column, strayed, episodes so far
    visits: np.ndarray  # [S] int32
    slot: np.ndarray  # [S] int32, -1 between updates: where in the rollout a state stands first


class Steps(NamedTuple):
    """A trajectory, as in ersac.types."""

    obs: np.ndarray  # [T+1] int32
    action: np.ndarray  # [T] int32
    reward: np.ndarray  # [T]
    discount: np.ndarray  # [T]
    mask: np.ndarray  # [T]
    log_mu: np.ndarray  # [T]


class Scratch(NamedTuple):
    """Room for what an update computes."""

    policy: np.ndarray  # [ACTIONS, WIDTH]   the policy's weights, each action's contiguous
    hidden: np.ndarray  # [T+1, WIDTH]         after the first layer
    features: np.ndarray  # [T+1, WIDTH]       after the second
    out: np.ndarray  # [T+1, HEADS]            of all heads
    d_out: np.ndarray  # [T+1, HEADS]          the loss with respect to them
    pull: np.ndarray  # [T+1, HEADS]           the same, as the shared layers feel it
    d_features: np.ndarray  # [T+1, WIDTH]
    d_hidden: np.ndarray  # [T+1, WIDTH]
    d_shared: np.ndarray  # [SHARED]
    log_pi: np.ndarray  # [T, ACTIONS]
    entropy: np.ndarray  # [T]
    sigma2: np.ndarray  # [T]
    count: (
        np.ndarray
    )  # [T+1]                 how often the state that stands first here stands in the rollout


def numbers(settings: config.ActorCritic, depth: int, dtype: type) -> Numbers:
    """The numbers of some settings: those of `ersac` with shared reward heads and no limit on logits, but for their floats."""
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
        raise ValueError(
            "the kernel has no limit on logits, and knows the bonus of the action taken"
        )
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
    return Numbers(
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


def start(settings: config.Experiment, dtype: type = np.float32) -> State:
    """The state in which the library's run of the same settings and first seed starts."""
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
    rows[:, OWN : OWN + USED] = heads(tables, "row")
    rows[:, PRIOR:TOUCHED] = learner.memory.uncertainty.prior
    shared = shared_vector(dense).astype(dtype)
    tau, time, diver = (
        np.array([learner.log_tau, 0, 0], dtype),
        np.zeros(1, dtype),
        np.zeros(4, np.int64),
    )
    visits, slot = np.zeros(env.n_states, np.int32), np.full(env.n_states, -1, np.int32)
    return State(
        rows, shared, np.zeros_like(shared), np.zeros_like(shared), tau, time, diver, visits, slot
    )


def heads(parts: dict, name: str) -> np.ndarray:
    """The three heads' arrays of that name side by side [..., USED]."""
    return np.concatenate(
        [np.asarray(parts[head][name]) for head in ("policy", "value", "uncertainty")], axis=-1
    )


def shared_vector(dense: dict) -> np.ndarray:
    """The library's dense parameters, or their gradient or moments, as the kernel lays them out [SHARED]."""
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
    """An empty trajectory, no step of it masked."""
    whole, real = (lambda n: np.zeros(n, np.int32)), (lambda: np.zeros(length, dtype))
    return Steps(whole(length + 1), whole(length), real(), real(), np.ones(length, dtype), real())


def make_scratch(length: int, dtype: type = np.float32) -> Scratch:
    """Room for updates on trajectories of that length."""
    real = lambda *shape: np.zeros(shape, dtype)
    wide, narrow = (lambda: real(length + 1, WIDTH)), (lambda: real(length + 1, HEADS))
    per_step = (real(length, ACTIONS), real(length), real(length), real(length + 1))
    return Scratch(
        real(ACTIONS, WIDTH),
        wide(),
        wide(),
        narrow(),
        narrow(),
        narrow(),
        wide(),
        wide(),
        real(SHARED),
        *per_step,
    )


compiled = njit(
    fastmath=True, cache=True, error_model="numpy"
)  # a division that may raise cannot be a vector's


@compiled
def layer_of(shared):
    """The second layer [WIDTH, WIDTH], a view."""
    return shared[LAYER:LAYER_BIAS].reshape(WIDTH, WIDTH)


@compiled
def heads_of(shared):
    """The heads [WIDTH, HEADS], a view."""
    return shared[HEAD:HEAD_BIAS].reshape(WIDTH, HEADS)


@compiled
def features_of_one(row, shared, hidden, features, n):
    """The features of one state, while acting: `hidden` and `features` [WIDTH] are filled."""
    layer = layer_of(shared)
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
    """Fill a trajectory: T steps of DeepSea with one set of parameters. `right`: which action means right in each cell."""
    depth, shared = right.shape[0], state.shared
    policy, hidden, features = scratch.policy, scratch.hidden[0], scratch.features[0]
    matrix = heads_of(shared)
    for a in range(ACTIONS):
        for k in range(WIDTH):
            policy[a, k] = matrix[k, a]
    down, across, strayed, episodes = state.diver[0], state.diver[1], state.diver[2], state.diver[3]
    for t in range(len(steps.action)):
        obs = down * depth + across
        row = state.rows[obs]
        features_of_one(row, shared, hidden, features, n)
        logit_0, logit_1 = shared[HEAD_BIAS] + row[OWN], shared[HEAD_BIAS + 1] + row[OWN + 1]
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
            strayed = 1
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
            goals[episodes] = 1 - strayed
            down, across, strayed, episodes = 0, 0, 0, episodes + 1
    steps.obs[len(steps.action)] = down * depth + across
    state.diver[0], state.diver[1], state.diver[2], state.diver[3] = down, across, strayed, episodes


@compiled
def forward(state, scratch, steps, n):
    """The network on every observation of the trajectory, and every head."""
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
    np.dot(hidden, layer_of(shared), features)
    for t in range(len(steps.obs)):
        for j in range(WIDTH):
            x = features[t, j] + shared[LAYER_BIAS + j]
            features[t, j] = x if x > n.zero else n.zero
    np.dot(features, heads_of(shared), out)
    for t in range(len(steps.obs)):
        row = rows[steps.obs[t]]
        for j in range(HEADS):
            out[t, j] += shared[HEAD_BIAS + j] + row[OWN + j]
        for j in range(MEMBERS * ACTIONS):
            out[t, REWARD + j] += row[PRIOR + j]


@compiled
def play(scratch, steps, tau, n):
    """Log-probabilities, entropies and variances of every step; returns the gradient of the payoff in log tau."""
    total, real = n.zero, n.zero
    for t in range(len(steps.action)):
        log_0, log_1 = log_softmax(scratch.out[t, 0], scratch.out[t, 1])
        scratch.log_pi[t, 0], scratch.log_pi[t, 1] = log_0, log_1
        scratch.entropy[t] = -(math.exp(log_0) * log_0 + math.exp(log_1) * log_1)
        mean, square = n.zero, n.zero
        for k in range(MEMBERS):
            mean += scratch.out[t, REWARD + ACTIONS * k + steps.action[t]]
        mean /= n.members
        for k in range(MEMBERS):
            apart = scratch.out[t, REWARD + ACTIONS * k + steps.action[t]] - mean
            square += apart * apart
        scratch.sigma2[t] = n.sigma_scale * n.sigma_scale * square / n.members
        total += ratio(scratch, steps, t, n) * (
            scratch.entropy[t] - n.half * scratch.sigma2[t] / (tau * tau)
        )
        real += steps.mask[t]
    return total / max(n.one, real)


@compiled
def ratio(scratch, steps, t, n):
    """V-trace's, clipped at one; 0 is a mask."""
    return steps.mask[t] * min(
        n.one, math.exp(scratch.log_pi[t, steps.action[t]] - steps.log_mu[t])
    )


@compiled
def differentiate_heads(scratch, steps, tau, n):
    """The loss with respect to the heads' outputs, backwards in time because V-trace is."""
    length = len(steps.action)
    out, d_out, pull = scratch.out, scratch.d_out, scratch.pull
    real = n.zero
    for t in range(length):
        real += steps.mask[t]
    real = max(n.one, real)
    value_pull, limit, error = n.value_weight / (tau * tau), n.advantage_limit * tau, n.zero
    for t in range(length - 1, -1, -1):
        action, share = steps.action[t], steps.mask[t] / real
        log_pi = scratch.log_pi[t, action]
        rho = ratio(scratch, steps, t, n)
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
            climb = advantage * (chosen - pi) - rho * tau * pi * (
                scratch.log_pi[t, a] + scratch.entropy[t]
            )
            d_out[t, a] = -share * climb / tau
            pull[t, a] = d_out[t, a]
        d_out[t, VALUE] = -share * error
        pull[t, VALUE] = value_pull * d_out[t, VALUE]
        for k in range(REWARD, USED):
            d_out[t, k] = n.zero
        for k in range(MEMBERS):
            column = REWARD + ACTIONS * k + action
            d_out[t, column] = share * (out[t, column] - steps.reward[t])
        for k in range(REWARD, USED):
            pull[t, k] = n.reward_weight * d_out[t, k]
    for k in range(
        HEADS
    ):  # the last observation is looked up and touched, but nothing is asked of it
        d_out[length, k] = pull[length, k] = n.zero


@compiled
def backward(state, scratch, n):
    """From the heads' outputs to all that states share (`d_shared`) and to the rows of the first layer (`d_hidden`)."""
    d, features, hidden, d_features, d_hidden = (
        scratch.d_shared,
        scratch.features,
        scratch.hidden,
        scratch.d_features,
        scratch.d_hidden,
    )
    d[:] = n.zero
    np.dot(features.T, scratch.d_out, heads_of(d))
    np.dot(scratch.pull, heads_of(state.shared).T, d_features)
    for t in range(len(features)):
        for j in range(HEADS):
            d[HEAD_BIAS + j] += scratch.d_out[t, j]
        for j in range(WIDTH):
            d_features[t, j] = d_features[t, j] if features[t, j] > n.zero else n.zero
            d[LAYER_BIAS + j] += d_features[t, j]
    np.dot(hidden.T, d_features, layer_of(d))
    np.dot(d_features, layer_of(state.shared).T, d_hidden)
    for t in range(len(hidden)):
        for j in range(WIDTH):
            d_hidden[t, j] = d_hidden[t, j] if hidden[t, j] > n.zero else n.zero
            d[BIAS + j] += d_hidden[t, j]


@compiled
def move_shared(state, scratch, time, n):
    """Adam on all that states share."""
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
def move_tau(state, gradient, time, n):
    """Adam on log tau, which descends the payoff."""
    tau = state.tau
    tau[1] = n.tau_b1 * tau[1] + (n.one - n.tau_b1) * gradient
    tau[2] = n.tau_b2 * tau[2] + (n.one - n.tau_b2) * gradient * gradient
    size = math.sqrt(tau[2] / (n.one - n.tau_b2**time)) + n.eps
    tau[0] = max(tau[0] - n.tau_rate / (n.one - n.tau_b1**time) * tau[1] / size, n.log_tau_least)


@compiled
def gather_duplicates(state, scratch, steps, n):
    """Add the gradients of a state that stands in the rollout more than once to those of its first occurrence, and count."""
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
def move_rows(state, scratch, steps, time, n):
    """Lazy Adam on the rows of the first layer, descent at a rate per visit on those of the heads; then forget the slots."""
    gather_duplicates(state, scratch, steps, n)
    rate = n.learning_rate / (n.one - n.b1**time)
    correction = n.one / (n.one - n.b2**time)
    for t in range(len(steps.obs)):
        state.slot[steps.obs[t]] = -1
        if scratch.count[t] == n.zero:
            continue
        row, gradient, own = state.rows[steps.obs[t]], scratch.d_hidden[t], scratch.d_out[t]
        idle = time - row[TOUCHED]
        row[TOUCHED] = time
        decay_1, decay_2 = math.exp(idle * n.log_b1), math.exp(idle * n.log_b2)
        for j in range(WIDTH):
            moment = decay_1 * row[MOMENT + j] + (n.one - n.b1) * gradient[j]
            square = decay_2 * row[SQUARE + j] + (n.one - n.b2) * gradient[j] * gradient[j]
            row[MOMENT + j], row[SQUARE + j] = moment, square
            row[FIRST + j] -= rate * moment / (math.sqrt(square * correction) + n.eps)
        again = scratch.count[t] - n.one
        for j in range(USED):
            pace = n.policy_rate if j < VALUE else (n.value_rate if j == VALUE else n.reward_rate)
            row[OWN + j] -= pace * n.rollout * own[j] / (n.one + again * min(pace, n.one))


@compiled
def learn(state, scratch, steps, n):
    """One simultaneous step of both players on one trajectory."""
    state.time[0] += n.one
    time, tau = state.time[0], math.exp(state.tau[0])
    forward(state, scratch, steps, n)
    tau_gradient = play(scratch, steps, tau, n)
    differentiate_heads(scratch, steps, tau, n)
    backward(state, scratch, n)
    move_shared(state, scratch, time, n)
    move_tau(state, tau_gradient, time, n)
    move_rows(state, scratch, steps, time, n)


@compiled
def run(state, scratch, steps, n, right, goals, rng, rollouts):
    """Act, learn, again. `goals` [episodes]: whether each episode reached its goal, written as they end."""
    for _ in range(rollouts):
        act(state, scratch, steps, n, right, goals, rng)
        learn(state, scratch, steps, n)
