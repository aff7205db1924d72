"""The objective: a zero-sum game between the policy and the risk parameter tau [e-saddle].

    max over pi, min over tau, of  E J_{1,tau}^pi

E J_{1,tau}^pi is the expected return with an optimistic reward and an entropy bonus [e-kpi]:

    K(s, a) = r(s, a) + sigma2(s, a) / (2 tau) + E J(s')
    J(s)    = E_{a ~ pi} K(s, a) + tau H(pi(. | s))

sigma2 is the epistemic variance of the mean reward. The rest of the library estimates these terms.
"""

from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.types import Array

MAX_LOG_RATIO = 20.0  # of two policies, so that their ratio is finite


def payoff(log_pi_a: Array, advantage: Array, bonus: Array, entropy_bonus: Array) -> Array:
    """Return the payoff of each step [e-saddle]: the policy ascends its gradient, tau descends it.

    With `bonus = sigma2 / (2 tau)` and `entropy_bonus = tau H` (see risk.py) the gradients are the
    paper's:

        d/dtheta = grad log pi(a) . (K - J) + tau grad H   [e-pol-grad]
        d/dtau   = H - sigma2 / (2 tau^2)                  [the equation after e-pol-grad]

    Algorithm 1 as printed has `- tau H`, which is the wrong sign: see docs/theory.md.

    log_pi_a: log-probability of the action taken.
    advantage: `K(s, a) - J(s)`; no gradient flows through it.
    """
    return log_pi_a * stop_gradient(advantage) + bonus + entropy_bonus


def clipped_gain(log_ratio: Array, advantage: Array, clip: float | Array) -> Array:
    """Return PPO's clipped objective of each step (Schulman et al. 2017, eq. 7).

        min(ratio A, clamp(ratio, 1 - clip, 1 + clip) A)

    At ratio 1 its gradient is that of `log_pi_a A`, the advantage's part of the payoff. It is zero
    once the action is more probable than 1 + clip times before and A > 0, or less probable than
    1 - clip times before and A < 0.

    log_ratio: log pi(a) - log mu(a); no gradient flows through the advantage.
    """
    advantage = stop_gradient(advantage)
    ratio = jnp.exp(jnp.minimum(log_ratio, MAX_LOG_RATIO))
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


def optimistic_reward(reward: Array, bonus: Array) -> Array:
    """Return the risk-seeking reward `r_tau = r + sigma2 / (2 tau)` [before e-kpi]."""
    return reward + bonus


def entropy(log_pi: Array) -> Array:
    """Return the entropy `H`, in nats, of log-probabilities over the last axis."""
    return -jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1)


def entropy_bonus(weight: Array, log_pi: Array, entropy: Array) -> Array:
    """Return `weight H`, or `-sum_a weight_a pi_a log pi_a` where each action has its own weight.

    weight: [] or [..., A]; log_pi: [..., A]; entropy: [...]. A is 1 for continuous actions.
    """
    if weight.ndim == 0:
        return weight * entropy
    if weight.shape[-1] == 1:
        return weight[..., 0] * entropy
    return -jnp.sum(weight * jnp.exp(log_pi) * log_pi, axis=-1)
