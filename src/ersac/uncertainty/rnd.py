"""Random network distillation (Burda et al. 2018): what cannot yet be predicted of a fixed random function is unknown."""

from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.nets.heads import Head
from ersac.nets.layers import Net
from ersac.types import Array, Params, Rng, Trajectory, Tree
from ersac.uncertainty.base import Uncertainty


def random_network_distillation(
    head: Head, target: Net, n_actions: int, outputs: int, sigma_scale: float | Array
) -> Uncertainty:
    """`sigma_scale^2` times the mean squared error on random targets of unit variance, some for each action.

    `head` predicts zero at first, so that sigma is `sigma_scale` where nothing was learned, whatever the observation.
    """

    def init(rng: Rng) -> tuple[Params, Tree]:
        fixed = target.init(rng)
        return head.init(rng), fixed

    def missed(params: Params, fixed: Tree, obs: Array, features: Array, action: Array) -> Array:
        """Squared errors [..., outputs] of what is predicted for the action."""
        error = head.apply(params.dense, params.rows, obs, features) - stop_gradient(
            target.apply(fixed, obs)
        )
        error = error.reshape(*action.shape, n_actions, outputs)
        return jnp.square(jnp.take_along_axis(error, action[..., None, None], axis=-2)[..., 0, :])

    def sigma2(params: Params, fixed: Tree, obs: Array, features: Array, action: Array) -> Array:
        return stop_gradient(
            sigma_scale**2 * jnp.mean(missed(params, fixed, obs, features, action), axis=-1)
        )

    def loss(params: Params, fixed: Tree, obs: Array, features: Array, t: Trajectory) -> Array:
        return 0.5 * jnp.sum(missed(params, fixed, obs, features, t.action), axis=-1)

    return Uncertainty(
        init=init,
        sigma2=sigma2,
        loss=loss,
        observe=lambda fixed, t: fixed,
        rows=head.rows,
    )
