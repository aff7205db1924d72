"""Bayesian linear regression of the reward on random features of vectors."""

from typing import NamedTuple

import jax
import numpy as np
from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.nets.heads import CONSTANT_FEATURE
from ersac.nets.layers import normal
from ersac.types import Array, Params, Rng, Trajectory, Tree
from ersac.uncertainty.base import TINY, Uncertainty, no_loss

# Lower bound of rho / p^2: below it, rounding in single precision shrinks sigma at observations
# that were never visited.
MIN_NOISE_RATIO = 1e-5
# Largest trace added to an identity matrix at a time, so that rounding does not lose the identity.
MAX_TRACE = 1e3


class LinearMemory(NamedTuple):
    """The random features and the posterior covariance."""

    directions: Tree  # [n_in, F]
    root: Tree  # [A, F, F]   S with S S^T = posterior covariance / p^2


def bayesian_linear(
    n_in: int,
    n_actions: int,
    features: int,
    prior_scale: float | Array,
    noise_variance: float | Array,
    sigma_scale: float | Array,
) -> Uncertainty:
    """Return the estimator `sigma2 = sigma_scale^2 phi^T A^-1 phi`, with A for each action.

    `A = I / p^2 + sum phi phi^T / rho` is the posterior precision. phi are random tanh features of
    unit length, so sigma is `sigma_scale * p` everywhere before the first step. They have no
    biases: orthogonal observations have nearly orthogonal features, and opposite observations have
    opposite features and so the same sigma.

    features: their number F; prior_scale: p; noise_variance: rho.
    """

    def init(rng: Rng) -> tuple[Params, Tree]:
        directions = normal(rng, (n_in, features), n_in**-0.5)
        root = np.tile(np.eye(features, dtype=np.float32), (n_actions, 1, 1))
        return Params({}, {}), LinearMemory(directions, root)

    def sigma2(params: Params, memory: Tree, obs: Array, torso: Array, action: Array) -> Array:
        # Computed for all actions: gathering a matrix [F, F] for each step would be slower.
        phi = unit_features(memory.directions, obs)
        scaled = jnp.einsum("...f,afg->...ag", phi, memory.root)
        variances = jnp.sum(jnp.square(scaled), axis=-1)  # [..., A]
        variance = jnp.take_along_axis(variances, action[..., None], axis=-1)[..., 0]
        return stop_gradient((sigma_scale * prior_scale) ** 2 * variance)

    def observe(memory: Tree, t: Trajectory) -> Tree:
        phi = unit_features(memory.directions, t.obs[..., :-1, :]).reshape(-1, features)  # [BT, F]
        phi = jnp.where(t.mask.reshape(-1, 1) > 0, phi, 0).astype(memory.root.dtype)
        gain = prior_scale**2 / jnp.maximum(noise_variance, MIN_NOISE_RATIO * prior_scale**2 + TINY)

        def update_root(root: Array, action: Array) -> Array:
            return add_visits(root, jnp.where(t.action.reshape(-1, 1) == action, phi, 0), gain)

        return memory._replace(root=jax.vmap(update_root)(memory.root, jnp.arange(n_actions)))

    return Uncertainty(init=init, sigma2=sigma2, loss=no_loss, observe=observe, rows={})


def unit_features(directions: Array, obs: Array) -> Array:
    """Return tanh features of unit length [..., F]; a constant at the zero vector."""
    features = jnp.tanh(obs @ directions) + CONSTANT_FEATURE
    return features / jnp.linalg.norm(features, axis=-1, keepdims=True)


def add_visits(root: Array, phi: Array, gain: float | Array) -> Array:
    """Return a root of the covariance after visits at phi [N, F], given the root S before [F, F].

    It is `S C^-T` with `C C^T = I + gain W^T W` and `W = phi S`. Rows of zeros have no effect.
    """
    # A root, because the covariance then stays symmetric and positive definite in spite of
    # rounding. All methods cost about N F^2 + F^3 per action; this one takes 4 ms for two actions
    # and 16 ms for seven at F = N = 256. In single precision at F = 64 and rho = p^2 / 100, both
    # Woodbury's formula and the inverse of a sum of precisions were indefinite after 4,000 batches
    # of 256 steps, and rank-one updates, which are cheaper for many actions, drift 300 times as
    # far as this.
    # In parts, because a batch with a single observation adds N p^2 / rho to the identity at once.
    # Visits with gain g equal visits with gain g / 10 and then 9 g / 10, and the first shrink W.

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        root, gain_left = state
        w = phi @ root  # [N, F]
        gain = jnp.minimum(gain_left, MAX_TRACE / jnp.maximum(jnp.sum(jnp.square(w)), TINY))
        identity = jnp.eye(root.shape[0], dtype=root.dtype)
        lower = jnp.linalg.cholesky(identity + gain * (w.T @ w))
        return jax.scipy.linalg.solve_triangular(lower, root.T, lower=True).T, gain_left - gain

    start = (root, jnp.asarray(gain, root.dtype))
    return jax.lax.while_loop(lambda state: state[1] > 0, step, start)[0]
