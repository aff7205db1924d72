"""Layered time-inhomogeneous MDPs, posteriors, and exact policy evaluation [s-preliminaries].

Every layer is padded to the same number of states, so an MDP is three arrays and a batch of MDPs
can be vmapped. Transitions are either probabilities [L, S, A, S] or, in deterministic MDPs, a table
of successors [L, S, A]. Policy evaluation does not depend on the form; `expect` and `push_forward`
handle both.

Posteriors are conjugate and independent across layers: a Gaussian with known noise variance for
every mean reward, and a Dirichlet for every transition row (or known transitions). An agent stores
the sufficient statistics `Data`; `update_posterior` computes the posterior from them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac.envs.deep_sea import MOVE_COST, action_map
from ersac.types import Array, Key

DEEP_SEA_CONCENTRATION = 1e-3  # Dirichlet prior of a move: a single visit all but determines it
PROBABILITY_TOLERANCE = 1e-5  # rounding of a float32 row with a few hundred states


class MDP(NamedTuple):
    """A layered MDP. Values after the last layer are zero, so its last transitions are unused."""

    reward: Array  # [L, S, A]  mean rewards r_l(s, a)
    transition: Array  # [L, S, A, S] probabilities, or [L, S, A] integer successors
    rho: Array  # [S]          initial state distribution


class Values(NamedTuple):
    """State-action and state values of every layer."""

    q: Array  # [L, S, A]
    v: Array  # [L, S]


class Dirichlet(NamedTuple):
    """Independent Dirichlet distributions over the transition rows."""

    concentration: Array  # [L, S, A, S]


class MdpPosterior(NamedTuple):
    """A distribution phi over MDPs; the prior is the posterior without data."""

    reward_mean: Array  # [L, S, A]
    reward_var: Array  # [L, S, A]   posterior variance of the mean reward
    noise_var: Array  # []           variance of one observed reward around its mean
    transition: Dirichlet | Array  # an array if known, in either form of MDP.transition
    rho: Array  # [S]


class Data(NamedTuple):
    """Sufficient statistics of a history of episodes."""

    visits: Array  # [L, S, A]
    reward_sum: Array  # [L, S, A]
    successors: Array | None  # [L, S, A, S] counts; None if the transitions are known


class Episode(NamedTuple):
    """One episode, from the first layer to the last."""

    state: Array  # [L] int32
    action: Array  # [L] int32
    reward: Array  # [L]        observed, with noise
    successor: Array  # [L] int32


def expect(transition: Array, value: Array) -> Array:
    """Return `sum_s' P_l(s' | s, a) v(s')` [S, A, ...] for values [S, ...] of the next layer."""
    if jnp.issubdtype(transition.dtype, jnp.integer):
        return value[transition]
    return jnp.tensordot(transition, value, axes=1)


def push_forward(transition: Array, mass: Array) -> Array:
    """Return the state distribution [S] of the next layer for probability mass [S, A].

    This is the adjoint of `expect`.
    """
    if jnp.issubdtype(transition.dtype, jnp.integer):
        return jnp.zeros(len(mass), mass.dtype).at[transition].add(mass)
    return jnp.tensordot(mass, transition, axes=2)


def backward_induction(
    reward: Array, transition: Array, state_value: Callable[..., Array], *layers: Array
) -> Values:
    """Solve `q_l = r_l + P_l v_{l+1}`, `v_l = state_value(q_l, *layers_l)`, with `v_{L+1} = 0`."""

    def step(value: Array, layer: tuple[Array, ...]) -> tuple[Array, Values]:
        r, p, *rest = layer
        q = r + expect(p, value)
        value = state_value(q, *rest)
        return value, Values(q, value)

    return jax.lax.scan(
        step, jnp.zeros_like(reward[0, :, 0]), (reward, transition, *layers), reverse=True
    )[1]


def policy_values(mdp: MDP, policy: Array) -> Values:
    """Return `Q^pi` and `V^pi` of a policy [L, S, A] [s-preliminaries]."""
    expected_q = lambda q, pi: jnp.sum(pi * q, axis=-1)
    return backward_induction(mdp.reward, mdp.transition, expected_q, policy)


def optimal_values(mdp: MDP) -> Values:
    """Return `Q*` and `V*` [e-opt-qv]."""
    return backward_induction(mdp.reward, mdp.transition, lambda q: jnp.max(q, axis=-1))


def greedy_policy(q: Array) -> Array:
    """Return the deterministic policy [L, S, A] that takes the first action of largest value."""
    return jax.nn.one_hot(jnp.argmax(q, axis=-1), q.shape[-1], dtype=q.dtype)


def uniform_policy(reward: Array) -> Array:
    """Return the uniform policy, with the shape and dtype of the rewards [L, S, A]."""
    return jnp.full_like(reward, 1 / reward.shape[-1])


def occupancy(mdp: MDP, policy: Array) -> Array:
    """Return the probability [L, S, A] that a policy visits (s, a) in layer l."""

    def step(mass: Array, layer: tuple[Array, Array]) -> tuple[Array, Array]:
        pi, p = layer
        joint = mass[:, None] * pi
        return push_forward(p, joint), joint

    return jax.lax.scan(step, mdp.rho.astype(policy.dtype), (policy, mdp.transition))[1]


def start_value(rho: Array, values: Values) -> Array:
    """Return `E_{s ~ rho} V_1(s)`."""
    return jnp.dot(rho, values.v[0])


def update_posterior(prior: MdpPosterior, data: Data) -> MdpPosterior:
    """Return the exact conjugate posterior: Gaussian mean rewards, Dirichlet transition rows."""
    weight = data.visits * prior.reward_var
    # In this form it is exact without noise too: after one visit the mean is the observation.
    gain = jnp.where(weight > 0, weight / jnp.where(weight > 0, weight + prior.noise_var, 1), 0)
    observed_mean = data.reward_sum / jnp.maximum(data.visits, 1)
    transition = prior.transition
    if isinstance(transition, Dirichlet) and data.successors is not None:
        transition = Dirichlet(transition.concentration + data.successors)
    mean = prior.reward_mean + gain * (observed_mean - prior.reward_mean)
    return MdpPosterior(mean, prior.reward_var * (1 - gain), prior.noise_var, transition, prior.rho)


def empty_data(prior: MdpPosterior) -> Data:
    """Return the statistics before the first episode."""
    zeros, transition = jnp.zeros_like(prior.reward_mean), prior.transition
    return Data(
        zeros,
        zeros,
        jnp.zeros_like(transition.concentration) if isinstance(transition, Dirichlet) else None,
    )


def add_episode(data: Data, episode: Episode) -> Data:
    """Return the statistics after one more episode."""
    layer = jnp.arange(len(episode.state))
    index = (layer, episode.state, episode.action)
    successors = data.successors
    if successors is not None:
        successors = successors.at[(*index, episode.successor)].add(1)
    return Data(
        data.visits.at[index].add(1), data.reward_sum.at[index].add(episode.reward), successors
    )


def mean_mdp(posterior: MdpPosterior) -> MDP:
    """Return the MDP of posterior means.

    By layerwise independence `E_phi Q^pi` is the `Q^pi` of this MDP.
    """
    transition = posterior.transition
    if isinstance(transition, Dirichlet):
        transition = transition.concentration / jnp.sum(
            transition.concentration, axis=-1, keepdims=True
        )
    return MDP(posterior.reward_mean, transition, posterior.rho)


def sample_mdp(key: Key, posterior: MdpPosterior) -> MDP:
    """Sample an MDP from a posterior."""
    key_reward, key_transition = jax.random.split(key)
    noise = jax.random.normal(key_reward, posterior.reward_mean.shape, posterior.reward_mean.dtype)
    reward = posterior.reward_mean + jnp.sqrt(posterior.reward_var) * noise
    transition = posterior.transition
    if isinstance(transition, Dirichlet):
        transition = jax.random.dirichlet(key_transition, transition.concentration)
    return MDP(reward, transition, posterior.rho)


def pick_index(u: Array, probabilities: Array) -> Array:
    """Map a uniform number u in [0, 1) to an index, distributed by the probabilities [n]."""
    edges = jnp.cumsum(probabilities)
    # Scaling by the last edge keeps the index in range when the rounded sum is not one.
    return jnp.sum(edges <= u * edges[-1]).astype(jnp.int32)


def sample_episode(key: Key, mdp: MDP, noise_var: Array, policy: Array) -> Episode:
    """Sample one episode of a policy [L, S, A]."""

    def step(state: Array, layer: tuple[Array, ...]) -> tuple[Array, Episode]:
        u, noise, r, p, pi = layer
        action = pick_index(u[0], pi[state])
        deterministic = jnp.issubdtype(p.dtype, jnp.integer)
        successor = p[state, action] if deterministic else pick_index(u[1], p[state, action])
        return successor, Episode(state, action, r[state, action] + noise, successor)

    key_uniform, key_noise = jax.random.split(key)
    u = jax.random.uniform(key_uniform, (len(policy) + 1, 2), policy.dtype)
    noise = jnp.sqrt(noise_var) * jax.random.normal(key_noise, policy.shape[:1], policy.dtype)
    return jax.lax.scan(
        step, pick_index(u[-1, 0], mdp.rho), (u[:-1], noise, mdp.reward, mdp.transition, policy)
    )[1]


def from_layers(rewards: Sequence[Any], transitions: Sequence[Any], rho: Any) -> MDP:
    """Build an MDP from layers of different sizes, padded to the largest and checked.

    It takes L rewards [S_l, A], L - 1 transitions [S_l, A, S_{l+1}] and rho [S_1].
    """
    rewards = [np.asarray(r, float) for r in rewards]
    transitions = [np.asarray(p, float) for p in transitions]
    _check_layers(rewards, transitions, np.asarray(rho))
    horizon, n_actions = len(rewards), rewards[0].shape[1]
    n_states = max(r.shape[0] for r in rewards)
    reward = np.zeros((horizon, n_states, n_actions))
    transition = np.zeros((horizon, n_states, n_actions, n_states))
    transition[..., 0] = 1  # padding states lead to state 0 and are never reached
    for layer, r in enumerate(rewards):
        reward[layer, : len(r)] = r
    for layer, p in enumerate(transitions):
        transition[layer, : p.shape[0]] = 0
        transition[layer, : p.shape[0], :, : p.shape[2]] = p
    start = np.zeros(n_states)
    start[: len(rho)] = rho
    return check_mdp(MDP(jnp.asarray(reward), jnp.asarray(transition), jnp.asarray(start)))


def _check_layers(
    rewards: list[np.ndarray], transitions: list[np.ndarray], rho: np.ndarray
) -> None:
    """Raise unless the shapes of consecutive layers match."""
    horizon, n_actions = len(rewards), rewards[0].shape[-1] if rewards and rewards[0].ndim else 0
    if not n_actions:
        raise ValueError("layer 1: there must be at least one layer with at least one action")
    if len(transitions) != horizon - 1:
        raise ValueError(
            f"{horizon} layers need {horizon - 1} transitions between them, not {len(transitions)}"
        )
    for layer, r in enumerate(rewards):
        if r.ndim != 2 or r.shape[1] != n_actions:
            raise ValueError(
                f"layer {layer + 1} of {horizon}: rewards have shape {r.shape}, "
                f"expected (states, {n_actions})"
            )
    for layer, p in enumerate(transitions):
        expected = (*rewards[layer].shape, rewards[layer + 1].shape[0])
        if p.shape != expected:
            raise ValueError(
                f"layer {layer + 1} of {horizon}: transitions have shape {p.shape}, "
                f"expected {expected}"
            )
    if rho.shape != (len(rewards[0]),):
        raise ValueError(
            f"layer 1 of {horizon}: the initial distribution has shape {rho.shape}, "
            f"expected ({len(rewards[0])},)"
        )


def _reject(invalid: Any, message: str) -> None:
    """Raise an error that names the first layer, state and action where `invalid` is true."""
    if np.any(invalid):
        layer, *cell = (int(i) for i in np.argwhere(invalid)[0])
        labels = zip(("state", "action"), cell, strict=False)
        position = "".join(f", {label} {index}" for label, index in labels)
        raise ValueError(f"layer {layer + 1} of {len(invalid)}{position}: {message}")


def _check_transition(transition: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise unless transitions are valid for rewards of a shape (L, S, A)."""
    if np.issubdtype(transition.dtype, np.integer):
        if transition.shape != shape:
            raise ValueError(
                f"layer 1 of {shape[0]}: successors have shape {transition.shape}, expected {shape}"
            )
        _reject(
            (transition < 0) | (transition >= shape[1]),
            f"a successor is not one of the {shape[1]} states",
        )
        return
    if transition.shape != (*shape, shape[1]):
        raise ValueError(
            f"layer 1 of {shape[0]}: transitions have shape {transition.shape}, "
            f"expected {(*shape, shape[1])}"
        )
    _reject(np.isnan(transition).any(axis=-1), "a transition probability is NaN")
    _reject((transition < 0).any(axis=-1), "a transition probability is negative")
    _reject(
        np.abs(transition.sum(axis=-1) - 1) > PROBABILITY_TOLERANCE,
        "transition probabilities do not sum to one",
    )


def _check_rho(rho: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise unless rho is a distribution over the states."""
    if rho.shape != shape[1:2]:
        raise ValueError(
            f"layer 1 of {shape[0]}: the initial distribution has shape {rho.shape}, "
            f"expected {shape[1:2]}"
        )
    if not (rho >= 0).all() or abs(rho.sum() - 1) > PROBABILITY_TOLERANCE:
        raise ValueError(
            f"layer 1 of {shape[0]}: the initial distribution is not a probability distribution"
        )


def check_variance(variance: Any, name: str) -> None:
    """Raise unless variances [L, ...] are finite and not negative."""
    variance = np.asarray(variance)
    _reject(~np.isfinite(variance), f"{name} is not finite")
    _reject(variance < 0, f"{name} is negative")


def check_mdp(mdp: MDP) -> MDP:
    """Return the MDP, or raise an error that names the first invalid layer."""
    reward = np.asarray(mdp.reward)
    if reward.ndim != 3:
        raise ValueError(f"rewards have shape {reward.shape}, expected (layers, states, actions)")
    _reject(~np.isfinite(reward), "a reward is not finite")
    _check_transition(np.asarray(mdp.transition), reward.shape)
    _check_rho(np.asarray(mdp.rho), reward.shape)
    return mdp


def check_posterior(posterior: MdpPosterior) -> MdpPosterior:
    """Return the posterior, or raise an error that names the first invalid layer."""
    check_variance(posterior.reward_var, "the variance of a mean reward")
    if np.shape(posterior.reward_var) != np.shape(posterior.reward_mean):
        raise ValueError(
            f"layer 1: variances have shape {np.shape(posterior.reward_var)}, "
            f"means {np.shape(posterior.reward_mean)}"
        )
    if not float(posterior.noise_var) >= 0:
        raise ValueError(
            f"every layer: the noise variance {float(posterior.noise_var)} is not a number >= 0"
        )
    if isinstance(posterior.transition, Dirichlet):
        concentration = np.asarray(posterior.transition.concentration)
        _reject(
            ~(np.isfinite(concentration) & (concentration >= 0)).all(axis=-1),
            "a concentration is not a number >= 0",
        )
        _reject(concentration.sum(axis=-1) <= 0, "the concentrations sum to zero")
    check_mdp(mean_mdp(posterior))
    return posterior


def random_prior(
    horizon: int, n_states: int, n_actions: int, reward_std: float = 1.0, noise_std: float = 1.0
) -> MdpPosterior:
    """Return a prior over random MDPs: Gaussian rewards, flat Dirichlet rows, uniform rho."""
    shape = (horizon, n_states, n_actions)
    return MdpPosterior(
        jnp.zeros(shape),
        jnp.full(shape, reward_std**2),
        jnp.asarray(noise_std**2, jnp.zeros(()).dtype),
        Dirichlet(jnp.ones((*shape, n_states))),
        jnp.full(n_states, 1 / n_states),
    )


def bandit_prior(n_actions: int, reward_std: float = 1.0, noise_std: float = 1.0) -> MdpPosterior:
    """Return a prior over Gaussian bandits: one layer, one state."""
    return random_prior(1, 1, n_actions, reward_std, noise_std)._replace(
        transition=jnp.zeros((1, 1, n_actions), jnp.int32)
    )


def deep_sea_mdp(depth: int, mapping_seed: int) -> MDP:
    """Return DeepSea as a layered MDP [f-DeepSea]: rows are layers, columns are states.

    The action mapping is that of `ersac.envs.deep_sea`.
    """
    column = np.arange(depth)
    moves_right = action_map(depth, mapping_seed)[..., None] == np.arange(2)  # [L, S, A]
    successor = np.where(
        moves_right, np.minimum(column + 1, depth - 1)[:, None], np.maximum(column - 1, 0)[:, None]
    )
    treasure = moves_right & (column == depth - 1)[:, None]
    reward = 1.0 * treasure - (MOVE_COST / depth) * moves_right
    return MDP(
        jnp.asarray(reward),
        jnp.asarray(successor, jnp.int32),
        jax.nn.one_hot(0, depth, dtype=jnp.asarray(reward).dtype),
    )


def deep_sea_prior(
    mdp: MDP, sigma: float, noise_std: float, known_transitions: bool
) -> MdpPosterior:
    """Return a prior for DeepSea with rewards N(0, sigma^2).

    Transitions are either known, or lead one column left or right with unknown probability.
    With noise_std = 0, which is true of deterministic DeepSea, one visit determines a reward.
    """
    zeros = jnp.zeros_like(mdp.reward)
    prior = MdpPosterior(
        zeros, zeros + sigma**2, jnp.asarray(noise_std**2, zeros.dtype), mdp.transition, mdp.rho
    )
    if known_transitions:
        return prior
    depth = len(mdp.rho)
    column = np.arange(depth)
    concentration = np.zeros((depth, depth))
    concentration[column, np.minimum(column + 1, depth - 1)] = DEEP_SEA_CONCENTRATION
    concentration[column, np.maximum(column - 1, 0)] = DEEP_SEA_CONCENTRATION
    rows = jnp.asarray(concentration, zeros.dtype)[:, None]
    return prior._replace(transition=Dirichlet(jnp.broadcast_to(rows, (*zeros.shape, depth))))


def river_swim(horizon: int, n_states: int) -> MDP:
    """Return RiverSwim unrolled in time, starting at the left bank.

    Action 0 drifts left and earns 0.005 at the left bank. Action 1 swims right against the current
    and earns 1 at the right bank; it moves right with probability 0.35, stays with 0.6 and moves
    left with 0.05 (at the left bank 0.6 right and 0.4 stay, at the right bank 0.95 stay).
    """
    p = np.zeros((n_states, 2, n_states))
    for s in range(n_states):
        p[s, 0, max(s - 1, 0)] = 1
        p[s, 1, min(s + 1, n_states - 1)] += 0.6 if s == 0 else 0.35
        p[s, 1, s] += 0.4 if s == 0 else 0.6
        p[s, 1, max(s - 1, 0)] += 0 if s == 0 else 0.05
    r = np.zeros((n_states, 2))
    r[0, 0], r[-1, 1] = 0.005, 1
    reward = jnp.asarray(np.tile(r, (horizon, 1, 1)))
    return MDP(
        reward,
        jnp.asarray(np.tile(p, (horizon, 1, 1, 1))),
        jax.nn.one_hot(0, n_states, dtype=reward.dtype),
    )
