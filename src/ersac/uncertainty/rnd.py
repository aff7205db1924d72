"""Random network distillation (Burda et al. 2018): the error of predicting a random function."""

from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.nets.heads import Head
from ersac.nets.layers import Net
from ersac.types import Array, Params, Rng, Trajectory, Tree
from ersac.uncertainty.base import Uncertainty


def random_network_distillation(
    head: Head, target: Net, n_actions: int, outputs: int, sigma_scale: float | Array
) -> Uncertainty:
    """Return the estimator `sigma2 = sigma_scale^2 mean((prediction - random target)^2)`.

    Each action has `outputs` targets of unit variance. The head predicts zero at the start, so
    sigma is about `sigma_scale` at every observation that it was not trained on.

    head, target: networks with `n_actions * outputs` outputs; the target's parameters are memory.
    """

    def init(rng: Rng) -> tuple[Params, Tree]:
        target_params = target.init(rng)
        return head.init(rng), target_params

    def squared_errors(
        params: Params, target_params: Tree, obs: Array, features: Array, action: Array
    ) -> Array:
        """Return the squared errors [..., outputs] of the targets of an action."""
        prediction = head.apply(params.dense, params.rows, obs, features)
        error = prediction - stop_gradient(target.apply(target_params, obs))
        error = error.reshape(*action.shape, n_actions, outputs)
        return jnp.square(jnp.take_along_axis(error, action[..., None, None], axis=-2)[..., 0, :])

    def sigma2(
        params: Params, target_params: Tree, obs: Array, features: Array, action: Array
    ) -> Array:
        squares = squared_errors(params, target_params, obs, features, action)
        return stop_gradient(sigma_scale**2 * jnp.mean(squares, axis=-1))

    def loss(
        params: Params, target_params: Tree, obs: Array, features: Array, t: Trajectory
    ) -> Array:
        return 0.5 * jnp.sum(
            squared_errors(params, target_params, obs, features, t.action), axis=-1
        )

    return Uncertainty(
        init=init,
        sigma2=sigma2,
        loss=loss,
        observe=lambda target_params, t: target_params,
        rows=head.rows,
    )
