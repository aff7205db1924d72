"""An ensemble of K reward heads with randomised priors (Osband et al. 2018): the paper's source of sigma."""

from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac import nets
from ersac.types import Array, Params, Rng, Trajectory, Tree
from ersac.uncertainty.base import Uncertainty


def reward_ensemble(
    head: nets.Head, n_states: int, n_actions: int, members: int, prior_scale: float, sigma_scale: float | Array
) -> Uncertainty:
    """Members that come to agree where they are trained, and keep to their priors where they are not.

    A member's prior on one-hot observations is a table of independent normal draws, looked up like any row. `head` is what is
    trained, all members at once: a table too, or one that reads features and trains them, the paper's auxiliary task.
    """

    def init(rng: Rng) -> tuple[Params, Tree]:
        return head.init(rng), nets.normal(rng, (n_states, members * n_actions), prior_scale)

    def predict(params: Params, prior: Tree, obs: Array, features: Array, action: Array) -> Array:
        """Predicted rewards [..., K] of the action: the only place where the trained part and the prior meet."""
        every = head.apply(params.dense, params.rows, features) + stop_gradient(prior[obs])  # [..., K A]
        every = every.reshape(*action.shape, members, n_actions)
        return jnp.take_along_axis(every, action[..., None, None], axis=-1)[..., 0]

    def sigma2(params: Params, prior: Tree, obs: Array, features: Array, action: Array) -> Array:
        return stop_gradient(sigma_scale**2 * jnp.var(predict(params, prior, obs, features, action), axis=-1))

    def loss(params: Params, prior: Tree, obs: Array, features: Array, t: Trajectory) -> Array:
        """Half the sum over members of squared errors: a member's pace does not depend on how many there are."""
        target = t.reward[:, None] + t.noise  # [T, K]
        return 0.5 * jnp.sum(jnp.square(predict(params, prior, obs, features, t.action) - target), axis=-1)

    return Uncertainty(init, sigma2, loss, lambda prior, t: prior, head.rows)
