"""Bayesian linear regression of the reward on fixed random features of vectors."""

from typing import NamedTuple

import jax
import numpy as np
from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.nets.heads import CONSTANT_FEATURE
from ersac.nets.layers import normal
from ersac.types import Array, Params, Rng, Trajectory, Tree
from ersac.uncertainty.base import TINY, Uncertainty

LEAST = 1e-5  # rho / p^2: with less, single precision lets the unseen drift with the seen
MOST = 1e3  # what is added to an identity at a time: beside 1e7 it would be lost


class Regression(NamedTuple):
    """What no optimiser sees."""

    directions: Tree  # [n_in, F]
    root: Tree  # [A, F, F]   S S^T = the posterior covariance / p^2


def bayesian_linear(
    n_in: int,
    n_actions: int,
    features: int,
    prior_scale: float | Array,
    noise_variance: float | Array,
    sigma_scale: float | Array,
) -> Uncertainty:
    """`sigma_scale^2 phi^T A^-1 phi`, A = I / p^2 + sum phi phi^T / rho for each action.

    phi are random tanh features of unit length: before anything was seen sigma is sigma_scale p
    everywhere. Without biases, orthogonal observations have nearly orthogonal features; opposite
    ones count as one.
    """

    def init(rng: Rng) -> tuple[Params, Tree]:
        drawn = normal(rng, (n_in, features), n_in**-0.5)
        prior = np.tile(np.eye(features, dtype=np.float32), (n_actions, 1, 1))
        return Params({}, {}), Regression(drawn, prior)

    def sigma2(params: Params, known: Tree, obs: Array, torso: Array, action: Array) -> Array:
        # Of all actions, as a matrix [F, F] looked up for each step would be far more to move.
        phi = unit_features(known.directions, obs)
        spread = jnp.einsum("...f,afg->...ag", phi, known.root)
        every = jnp.sum(jnp.square(spread), axis=-1)  # [..., A]
        own = jnp.take_along_axis(every, action[..., None], axis=-1)[..., 0]
        return stop_gradient((sigma_scale * prior_scale) ** 2 * own)

    def loss(params: Params, known: Tree, obs: Array, torso: Array, t: Trajectory) -> Array:
        return jnp.zeros_like(t.reward)

    def observe(known: Tree, t: Trajectory) -> Tree:
        phi = unit_features(known.directions, t.obs[..., :-1, :]).reshape(-1, features)  # [B T, F]
        real = jnp.where(t.mask.reshape(-1, 1) > 0, phi, 0).astype(known.root.dtype)
        gain = prior_scale**2 / jnp.maximum(noise_variance, LEAST * prior_scale**2 + TINY)

        def taught(root: Array, action: Array) -> Array:
            return with_visits(root, jnp.where(t.action.reshape(-1, 1) == action, real, 0), gain)

        return known._replace(root=jax.vmap(taught)(known.root, jnp.arange(n_actions)))

    return Uncertainty(init=init, sigma2=sigma2, loss=loss, observe=observe, rows={})


def unit_features(directions: Array, obs: Array) -> Array:
    """Tanh features of unit length [..., F]; at an observation of zeros a constant is left."""
    bent = jnp.tanh(obs @ directions) + CONSTANT_FEATURE
    return bent / jnp.linalg.norm(bent, axis=-1, keepdims=True)


def with_visits(root: Array, phi: Array, gain: float | Array) -> Array:
    """A root of the covariance after visits at phi [N, F], from the root S [F, F] before them.

    It is S C^-T with C C^T = I + gain W^T W and W = phi S. Rows of zeros change nothing.
    """
    # Why a root: the covariance stays symmetric and positive, whatever is rounded. All ways cost
    # about N F^2 + F^3 for each action; this one at best 4 ms for two, 16 for seven, F = N = 256.
    # But in single precision, at F = 64 and rho = p^2 / 100, neither Woodbury's formula nor a sum
    # of precisions, inverted, was definite after 4,000 batches of 256 steps, and as many updates
    # of rank one as there are steps, cheaper for many actions, drift 300 times as far as this.
    # Why in parts: one observation all over a batch adds N p^2 / rho to an identity at once.
    # Visits of gain g are visits of gain g / 10 and then of 9 g / 10, and the first shrink W.

    def part(state: tuple[Array, Array]) -> tuple[Array, Array]:
        root, left = state
        spread = phi @ root  # [N, F]
        now = jnp.minimum(left, MOST / jnp.maximum(jnp.sum(jnp.square(spread)), TINY))
        identity = jnp.eye(root.shape[0], dtype=root.dtype)
        lower = jnp.linalg.cholesky(identity + now * (spread.T @ spread))
        return jax.scipy.linalg.solve_triangular(lower, root.T, lower=True).T, left - now

    start = (root, jnp.asarray(gain, root.dtype))
    return jax.lax.while_loop(lambda state: state[1] > 0, part, start)[0]
