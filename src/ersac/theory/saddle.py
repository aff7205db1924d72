"""The game [e-saddle] solved both ways, and the regret decomposition that its two players minimise.

`max_pi min_tau E J^pi_{1,tau}`: for a given policy the best tau is a square root, for a given tau the best policy is a softmax,
and their meeting point is K-learning. The policy's part of the regret bound is `Dist`, tau's part is `Optimism` [l-decomp].
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import optax
from jax import numpy as jnp

from ersac.algorithm import game
from ersac.theory import klearning
from ersac.theory import mdp as mdps
from ersac.theory.klearning import Beliefs
from ersac.types import Array, Tree


class Play(NamedTuple):
    """Where the two players stand: parameters of a policy, and the logarithm of tau."""

    theta: Array
    log_tau: Array


class Decomposition(NamedTuple):
    """The two components of the regret bound [l-decomp]; they sum to `E J* - E V^pi`."""

    dist: Array
    optimism: Array


def value(beliefs: Beliefs, policy: Array, tau: Array) -> Array:
    """The payoff of the game `E_{s ~ rho} J^pi_{1,tau}(s)` [e-saddle]."""
    return mdps.start_value(beliefs.mdp.rho, klearning.k_values(beliefs, policy, tau))


def mean_value(beliefs: Beliefs, policy: Array) -> Array:
    """`E_phi E_rho V^pi_1`: by layerwise independence the value in the mean MDP."""
    return mdps.start_value(beliefs.mdp.rho, mdps.policy_values(beliefs.mdp, policy))


def dist(beliefs: Beliefs, policy: Array, tau: Array) -> Array:
    """`Dist(pi, tau) = sum_l tau E_pi KL(pi_l || pi*_{l,tau})` [before l-kl]."""
    log_star = klearning.solve_at(beliefs, tau).log_policy
    taken = mdps.occupancy(beliefs.mdp, policy)
    log_policy = jnp.log(jnp.where(policy > 0, policy, 1))
    return tau * jnp.sum(jnp.where(policy > 0, taken * (log_policy - log_star), 0))


def optimism(beliefs: Beliefs, policy: Array, tau: Array) -> Array:
    """`Optimism(pi, tau) = E_rho (J^pi_{1,tau} - E_phi V^pi_1)` [before l-kl]."""
    return value(beliefs, policy, tau) - mean_value(beliefs, policy)


def decompose(beliefs: Beliefs, policy: Array, tau: Array) -> Decomposition:
    """Both components of the bound `regret <= Dist + Optimism` [l-decomp]."""
    return Decomposition(dist(beliefs, policy, tau), optimism(beliefs, policy, tau))


def optimism_terms(beliefs: Beliefs, policy: Array) -> tuple[Array, Array]:
    """`sum_l E_pi sigma2` and `sum_l E_pi H`: Optimism is the first / (2 tau) + tau the second [proof of l-opt-regret]."""
    taken = mdps.occupancy(beliefs.mdp, policy)
    return jnp.sum(taken * beliefs.sigma2), jnp.sum(
        jnp.sum(taken, axis=-1) * klearning.policy_entropy(policy)
    )


def best_tau(beliefs: Beliefs, policy: Array) -> Array:
    """tau's best response to a policy, `sqrt(sum E sigma2 / (2 sum E H))`."""
    total_sigma2, total_entropy = optimism_terms(beliefs, policy)
    return jnp.sqrt(total_sigma2 / (2 * total_entropy))


def least_optimism(beliefs: Beliefs, policy: Array) -> Array:
    """`min_tau Optimism(pi, tau) = sqrt(2 sum E sigma2 sum E H)` [t-main, l-opt-regret]."""
    total_sigma2, total_entropy = optimism_terms(beliefs, policy)
    return jnp.sqrt(2 * total_sigma2 * total_entropy)


def guaranteed(beliefs: Beliefs, policy: Array) -> Array:
    """`min_tau E J^pi_{1,tau}`: what a policy secures in the game against every tau."""
    return mean_value(beliefs, policy) + least_optimism(beliefs, policy)


def duality_gap(beliefs: Beliefs, policy: Array, tau: Array) -> Array:
    """`max_pi' J^pi'_tau - min_tau' J^pi_tau'`: zero exactly at the saddle point [ass-strong-duality], positive elsewhere."""
    return klearning.start_j(beliefs, tau) - guaranteed(beliefs, policy)


def regret_bound(
    n_states: int, n_actions: int, horizon: int, sigma2: float, episodes: Array
) -> Array:
    """The bound of [c-basic] with its constants, for sigma2 / (visits + 1): n_states counts all layers.

    The proof of [l-opt-regret] gives `sigma2 |A| |S| (1 + log N) / (2 tau) + tau N L log |A|` for any tau; this is its least value.
    """
    uncertainty = sigma2 * n_actions * n_states * (1 + jnp.log(episodes))
    return jnp.sqrt(2 * uncertainty * episodes * horizon * jnp.log(n_actions))


def tabular_class(theta: Array) -> Array:
    """Every policy: one logit [L, S, A] each; returns log-probabilities."""
    return jax.nn.log_softmax(theta, axis=-1)


def softmax_class(features: Array) -> Callable[[Array], Array]:
    """A restricted class Pi: logits linear in features [L, S, A, D], so theta is [D]."""
    return lambda theta: jax.nn.log_softmax(features @ theta, axis=-1)


def surrogate(beliefs: Beliefs, log_policy: Array, tau: Array) -> Array:
    """`E_pi` of the one scalar payoff: its gradients are those of the game, though visits and advantages are held still [e-pol-grad].

    This is the deep agent's objective with exact expectations in the place of samples.
    """
    policy = jnp.exp(jax.lax.stop_gradient(log_policy))
    values = klearning.k_values(beliefs, policy, jax.lax.stop_gradient(tau))
    taken = jax.lax.stop_gradient(mdps.occupancy(beliefs.mdp, policy))
    advantage = values.q - values.v[..., None]
    entropy = game.entropy(log_policy)[..., None]
    return jnp.sum(
        taken * game.payoff(log_policy, advantage, beliefs.sigma2 / (2 * tau), tau, entropy)
    )


def minimise_adam(learning_rate: float | optax.Schedule) -> optax.GradientTransformation:
    """The optimiser of both players: a short memory of gradients, because the opponent moves too."""
    return optax.adam(learning_rate, b1=0.5, b2=0.99, eps=1e-16)


def ascend_descend(
    beliefs: Beliefs,
    policy_class: Callable[[Array], Array],
    optimiser: optax.GradientTransformation,
    steps: int,
    play: Play,
    opt: Tree,
) -> tuple[Play, Tree]:
    """Simultaneous gradient ascent in theta and descent in log tau on [e-saddle]: Algorithm 1 without samples [a-kac]."""

    def payoff(play: Play) -> Array:
        return surrogate(beliefs, policy_class(play.theta), jnp.exp(play.log_tau))

    def step(carry: tuple[Play, Tree], _: None) -> tuple[tuple[Play, Tree], None]:
        play, opt = carry
        up = jax.grad(payoff)(play)
        updates, opt = optimiser.update(
            Play(-up.theta, up.log_tau), opt
        )  # optimisers descend; the policy does not
        return (optax.apply_updates(play, updates), opt), None

    return jax.lax.scan(step, (play, opt), None, length=steps)[0]


def solve_by_gradients(
    beliefs: Beliefs, policy_class: Callable[[Array], Array], theta: Array, steps: int = 6000
) -> Play:
    """The saddle point by gradients alone, from theta and the tau that answers it: no equation for an optimum is solved."""
    optimiser = minimise_adam(optax.cosine_decay_schedule(0.2, steps, 1e-3))
    start = Play(theta, jnp.log(best_tau(beliefs, jnp.exp(policy_class(theta)))))
    return ascend_descend(beliefs, policy_class, optimiser, steps, start, optimiser.init(start))[0]
