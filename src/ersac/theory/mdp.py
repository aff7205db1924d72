"""Layered, time-inhomogeneous MDPs, beliefs about them, and exact policy evaluation [s-preliminaries].

An MDP is padded to one number of states a layer, so that it is three arrays and hundreds of them are one vmap. What
happens between two layers is either a matrix of probabilities or, where nothing is random, a table of successors: `expect`
and `push` are the only functions that know, and backward induction is written once.

Beliefs are conjugate and independent across layers: a Gaussian mean with known noise for every reward, a Dirichlet for every
row of transitions (or transitions that are known). An agent keeps the sufficient statistics `Data`; `posterior` is a function.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ersac.envs.deep_sea import MOVE_COST, action_map
from ersac.types import Array, Key

DEEP_SEA_CONCENTRATION = 1e-3  # of a move's two outcomes: a move seen once is all but known
PROBABILITY_TOLERANCE = 1e-5  # float32 rows of a few hundred states sum to one this closely


class MDP(NamedTuple):
    """One layered MDP; the value beyond the last layer is zero, so where the last layer leads to is immaterial."""

    reward: Array  # [L, S, A]  mean rewards r_l(s, a)
    transition: Array  # [L, S, A, S] probabilities, or [L, S, A] integer successors
    rho: Array  # [S]          initial distribution


class Values(NamedTuple):
    """State-action and state values of every layer."""

    q: Array  # [L, S, A]
    v: Array  # [L, S]


class Dirichlet(NamedTuple):
    """Independent Dirichlet beliefs about every row of transitions."""

    concentration: Array  # [L, S, A, S]


class MdpPosterior(NamedTuple):
    """Beliefs phi about an MDP; a prior is the posterior of no data."""

    reward_mean: Array  # [L, S, A]
    reward_var: Array  # [L, S, A]   variance of the belief about the mean reward
    noise_var: Array  # []           variance of one observed reward about its mean
    transition: Dirichlet | Array  # an array is known, in either of MDP's forms
    rho: Array  # [S]


class Data(NamedTuple):
    """Everything that a history of episodes says about an MDP: its sufficient statistics."""

    visits: Array  # [L, S, A]
    reward_sum: Array  # [L, S, A]
    successors: Array | None  # [L, S, A, S] counts; nothing to count where transitions are known


class Episode(NamedTuple):
    """One walk through the layers."""

    state: Array  # [L] int32
    action: Array  # [L] int32
    reward: Array  # [L]        observed, with noise
    successor: Array  # [L] int32


def expect(transition: Array, value: Array) -> Array:
    """`sum_s' P_l(s' | s, a) v(s')`: [S, A, S] or successors [S, A], and [S, ...] -> [S, A, ...]."""
    if jnp.issubdtype(transition.dtype, jnp.integer):
        return value[transition]
    return jnp.tensordot(transition, value, axes=1)


def push(transition: Array, mass: Array) -> Array:
    """Where probability mass [S, A] lies one layer on [S]: the adjoint of `expect`."""
    if jnp.issubdtype(transition.dtype, jnp.integer):
        return jnp.zeros(len(mass), mass.dtype).at[transition].add(mass)
    return jnp.tensordot(mass, transition, axes=2)


def backward(
    reward: Array, transition: Array, summarise: Callable[..., Array], *layers: Array
) -> Values:
    """Backward induction `q_l = r_l + P_l v_{l+1}`, `v_l = summarise(q_l, *layers_l)`, `v_{L+1} = 0`."""

    def step(value: Array, layer: tuple[Array, ...]) -> tuple[Array, Values]:
        r, p, *rest = layer
        q = r + expect(p, value)
        value = summarise(q, *rest)
        return value, Values(q, value)

    return jax.lax.scan(
        step, jnp.zeros_like(reward[0, :, 0]), (reward, transition, *layers), reverse=True
    )[1]


def policy_values(mdp: MDP, policy: Array) -> Values:
    """`Q^pi` and `V^pi` of a policy [L, S, A] [s-preliminaries]."""
    return backward(mdp.reward, mdp.transition, lambda q, pi: jnp.sum(pi * q, axis=-1), policy)


def optimal(mdp: MDP) -> Values:
    """`Q*` and `V*` [s-preliminaries]."""
    return backward(mdp.reward, mdp.transition, lambda q: jnp.max(q, axis=-1))


def greedy(q: Array) -> Array:
    """The deterministic policy [L, S, A] that takes the first best action."""
    return jax.nn.one_hot(jnp.argmax(q, axis=-1), q.shape[-1], dtype=q.dtype)


def uniform(reward: Array) -> Array:
    """The policy that chooses blindly, with the shape and type of the rewards [L, S, A]."""
    return jnp.full_like(reward, 1 / reward.shape[-1])


def occupancy(mdp: MDP, policy: Array) -> Array:
    """Probability [L, S, A] of standing in s at layer l and taking a: what `E_pi` averages over."""

    def step(mass: Array, layer: tuple[Array, Array]) -> tuple[Array, Array]:
        pi, p = layer
        taken = mass[:, None] * pi
        return push(p, taken), taken

    return jax.lax.scan(step, mdp.rho.astype(policy.dtype), (policy, mdp.transition))[1]


def start_value(rho: Array, values: Values) -> Array:
    """`E_{s ~ rho} V_1(s)`."""
    return jnp.dot(rho, values.v[0])


def posterior(prior: MdpPosterior, data: Data) -> MdpPosterior:
    """The exact conjugate update: Gaussian means under known noise, Dirichlet rows."""
    weight = data.visits * prior.reward_var
    # Written with a gain, it stays exact where there is no noise at all: one visit, and the mean is the observation.
    gain = jnp.where(weight > 0, weight / jnp.where(weight > 0, weight + prior.noise_var, 1), 0)
    observed = data.reward_sum / jnp.maximum(data.visits, 1)
    transition = prior.transition
    if isinstance(transition, Dirichlet) and data.successors is not None:
        transition = Dirichlet(transition.concentration + data.successors)
    mean = prior.reward_mean + gain * (observed - prior.reward_mean)
    return MdpPosterior(mean, prior.reward_var * (1 - gain), prior.noise_var, transition, prior.rho)


def no_data(prior: MdpPosterior) -> Data:
    """The statistics of a history without episodes."""
    nothing, transition = jnp.zeros_like(prior.reward_mean), prior.transition
    return Data(
        nothing,
        nothing,
        jnp.zeros_like(transition.concentration) if isinstance(transition, Dirichlet) else None,
    )


def observe(data: Data, episode: Episode) -> Data:
    """The statistics after one more episode."""
    layer = jnp.arange(len(episode.state))
    at = (layer, episode.state, episode.action)
    successors = data.successors
    if successors is not None:
        successors = successors.at[(*at, episode.successor)].add(1)
    return Data(data.visits.at[at].add(1), data.reward_sum.at[at].add(episode.reward), successors)


def mean(beliefs: MdpPosterior) -> MDP:
    """The MDP of the means: by layerwise independence `E_phi Q^pi` is the `Q^pi` of this one."""
    transition = beliefs.transition
    if isinstance(transition, Dirichlet):
        transition = transition.concentration / jnp.sum(
            transition.concentration, axis=-1, keepdims=True
        )
    return MDP(beliefs.reward_mean, transition, beliefs.rho)


def sample_mdp(key: Key, beliefs: MdpPosterior) -> MDP:
    """One MDP drawn from beliefs."""
    key_reward, key_transition = jax.random.split(key)
    noise = jax.random.normal(key_reward, beliefs.reward_mean.shape, beliefs.reward_mean.dtype)
    reward = beliefs.reward_mean + jnp.sqrt(beliefs.reward_var) * noise
    transition = beliefs.transition
    if isinstance(transition, Dirichlet):
        transition = jax.random.dirichlet(key_transition, transition.concentration)
    return MDP(reward, transition, beliefs.rho)


def pick_index(u: Array, probabilities: Array) -> Array:
    """The index that a uniform number u in [0, 1) picks from probabilities [n]."""
    edges = jnp.cumsum(probabilities)
    # Scaled by the last edge, so that rounding in the sum can never lead past the last index.
    return jnp.sum(edges <= u * edges[-1]).astype(jnp.int32)


def walk(key: Key, mdp: MDP, noise_var: Array, policy: Array) -> Episode:
    """Play one episode of a policy [L, S, A]."""

    def step(state: Array, layer: tuple[Array, ...]) -> tuple[Array, Episode]:
        u, noise, r, p, pi = layer
        action = pick_index(u[0], pi[state])
        deterministic = jnp.issubdtype(p.dtype, jnp.integer)
        successor = p[state, action] if deterministic else pick_index(u[1], p[state, action])
        return successor, Episode(state, action, r[state, action] + noise, successor)

    key_uniform, key_noise = jax.random.split(key)
    u = jax.random.uniform(
        key_uniform, (len(policy) + 1, 2), policy.dtype
    )  # all the chance of an episode, drawn at once
    noise = jnp.sqrt(noise_var) * jax.random.normal(key_noise, policy.shape[:1], policy.dtype)
    return jax.lax.scan(
        step, pick_index(u[-1, 0], mdp.rho), (u[:-1], noise, mdp.reward, mdp.transition, policy)
    )[1]


def from_layers(rewards: Sequence[Any], transitions: Sequence[Any], rho: Any) -> MDP:
    """An MDP of layers of different sizes: L rewards [S_l, A], L - 1 transitions [S_l, A, S_{l+1}], rho [S_1]; checked, then padded."""
    rewards = [np.asarray(r, float) for r in rewards]
    transitions = [np.asarray(p, float) for p in transitions]
    _check_fit(rewards, transitions, np.asarray(rho))
    horizon, n_actions = len(rewards), rewards[0].shape[1]
    n_states = max(r.shape[0] for r in rewards)
    reward = np.zeros((horizon, n_states, n_actions))
    transition = np.zeros((horizon, n_states, n_actions, n_states))
    transition[..., 0] = 1  # states that are padding lead to state 0, and nothing leads to them
    for layer, r in enumerate(rewards):
        reward[layer, : len(r)] = r
    for layer, p in enumerate(transitions):
        transition[layer, : p.shape[0]] = 0
        transition[layer, : p.shape[0], :, : p.shape[2]] = p
    start = np.zeros(n_states)
    start[: len(rho)] = rho
    return check_mdp(MDP(jnp.asarray(reward), jnp.asarray(transition), jnp.asarray(start)))


def _check_fit(rewards: list[np.ndarray], transitions: list[np.ndarray], rho: np.ndarray) -> None:
    """Raise unless every layer leads to the next."""
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
                f"layer {layer + 1} of {horizon}: rewards have shape {r.shape}, expected (states, {n_actions})"
            )
    for layer, p in enumerate(transitions):
        expected = (*rewards[layer].shape, rewards[layer + 1].shape[0])
        if p.shape != expected:
            raise ValueError(
                f"layer {layer + 1} of {horizon}: transitions have shape {p.shape}, expected {expected}"
            )
    if rho.shape != (len(rewards[0]),):
        raise ValueError(
            f"layer 1 of {horizon}: the initial distribution has shape {rho.shape}, expected ({len(rewards[0])},)"
        )


def _reject(bad: Any, what: str) -> None:
    """Raise one line that names the first layer where `bad` [L, ...] holds."""
    if np.any(bad):
        layer, *cell = (int(i) for i in np.argwhere(bad)[0])
        where = (
            ""
            if not cell
            else f", state {cell[0]}" + (f", action {cell[1]}" if len(cell) > 1 else "")
        )
        raise ValueError(f"layer {layer + 1} of {len(bad)}{where}: {what}")


def _check_transition(transition: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise unless an array leads from every (l, s, a) to states that there are."""
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
            f"layer 1 of {shape[0]}: transitions have shape {transition.shape}, expected {(*shape, shape[1])}"
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
            f"layer 1 of {shape[0]}: the initial distribution has shape {rho.shape}, expected {shape[1:2]}"
        )
    if not (rho >= 0).all() or abs(rho.sum() - 1) > PROBABILITY_TOLERANCE:
        raise ValueError(
            f"layer 1 of {shape[0]}: the initial distribution is not a probability distribution"
        )


def check_variance(variance: Any, what: str) -> None:
    """Raise unless variances [L, ...] are finite and not negative."""
    variance = np.asarray(variance)
    _reject(~np.isfinite(variance), f"{what} is not finite")
    _reject(variance < 0, f"{what} is negative")


def check_mdp(mdp: MDP) -> MDP:
    """The MDP itself, or one clear error that names the layer that is wrong."""
    reward = np.asarray(mdp.reward)
    if reward.ndim != 3:
        raise ValueError(f"rewards have shape {reward.shape}, expected (layers, states, actions)")
    _reject(~np.isfinite(reward), "a reward is not finite")
    _check_transition(np.asarray(mdp.transition), reward.shape)
    _check_rho(np.asarray(mdp.rho), reward.shape)
    return mdp


def check_posterior(beliefs: MdpPosterior) -> MdpPosterior:
    """The beliefs themselves, or one clear error that names the layer that is wrong."""
    check_variance(beliefs.reward_var, "the variance of a mean reward")
    if np.shape(beliefs.reward_var) != np.shape(beliefs.reward_mean):
        raise ValueError(
            f"layer 1: variances have shape {np.shape(beliefs.reward_var)}, means {np.shape(beliefs.reward_mean)}"
        )
    if not float(beliefs.noise_var) >= 0:
        raise ValueError(
            f"every layer: the noise variance {float(beliefs.noise_var)} is not a number >= 0"
        )
    if isinstance(beliefs.transition, Dirichlet):
        concentration = np.asarray(beliefs.transition.concentration)
        _reject(
            ~(np.isfinite(concentration) & (concentration >= 0)).all(axis=-1),
            "a concentration is not a number >= 0",
        )
        _reject(concentration.sum(axis=-1) <= 0, "the concentrations sum to zero")
    check_mdp(mean(beliefs))
    return beliefs


def random_prior(
    horizon: int, n_states: int, n_actions: int, reward_std: float = 1.0, noise_std: float = 1.0
) -> MdpPosterior:
    """Beliefs from which random layered MDPs are drawn: Gaussian rewards, flat Dirichlet rows, a uniform start."""
    shape = (horizon, n_states, n_actions)
    return MdpPosterior(
        jnp.zeros(shape),
        jnp.full(shape, reward_std**2),
        jnp.asarray(noise_std**2, jnp.zeros(()).dtype),
        Dirichlet(jnp.ones((*shape, n_states))),
        jnp.full(n_states, 1 / n_states),
    )


def bandit_prior(n_actions: int, reward_std: float = 1.0, noise_std: float = 1.0) -> MdpPosterior:
    """Beliefs about a Gaussian bandit: one layer, one state."""
    return random_prior(1, 1, n_actions, reward_std, noise_std)._replace(
        transition=jnp.zeros((1, 1, n_actions), jnp.int32)
    )


def deep_sea_mdp(depth: int, mapping_seed: int) -> MDP:
    """DeepSea as a layered MDP: row = layer, column = state, the deep agent's own action mapping [f-DeepSea]."""
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
    env_params: MDP, sigma: float, noise: float, known_transitions: bool
) -> MdpPosterior:
    """Beliefs of a diver: rewards N(0, sigma^2), and moves that are known or go one column left or right, it does not know which.

    Noise zero says that what was seen once is known, which in the deterministic sea is true.
    """
    nothing = jnp.zeros_like(env_params.reward)
    beliefs = MdpPosterior(
        nothing,
        nothing + sigma**2,
        jnp.asarray(noise**2, nothing.dtype),
        env_params.transition,
        env_params.rho,
    )
    if known_transitions:
        return beliefs
    depth = len(env_params.rho)
    column = np.arange(depth)
    either = np.zeros((depth, depth))
    either[column, np.minimum(column + 1, depth - 1)] = either[
        column, np.maximum(column - 1, 0)
    ] = DEEP_SEA_CONCENTRATION
    concentration = jnp.broadcast_to(
        jnp.asarray(either, nothing.dtype)[:, None], (*nothing.shape, depth)
    )
    return beliefs._replace(transition=Dirichlet(concentration))


def river_swim(horizon: int, n_states: int) -> MDP:
    """RiverSwim unrolled in time: swim right (1) against the current for 1, or drift left (0) for 0.005; start at the left bank.

    Right succeeds with 0.35, stays with 0.6 and slips with 0.05 (0.6 / 0.4 at the left bank, 0.95 stays at the right one).
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
