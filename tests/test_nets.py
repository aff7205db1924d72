"""Networks: every image finds filters that fit, one of many is one alone, and a prior is as wide everywhere."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import config, nets
from ersac.agents.make import make_lens, make_networks
from ersac.config import SettingsError
from ersac.envs.base import Box, Discrete, Spec

HIDDEN = (8, 6)
FLAX = nn.Sequential((nn.Conv(2, (3, 3)), nn.relu, lambda x: x.reshape(*x.shape[:-3], -1), nn.Dense(5)))


@pytest.mark.parametrize("space", [Box((84, 84, 4), is_bytes=True), Box((10, 10, 7))])
def test_images_of_games(space):
    """As they come, seen through the lens: bytes of 84 x 84 with the filters of DQN, a small board with those of MinAtar."""
    lens = make_lens(config.ActorCritic(), Spec("game", space, Discrete(3), 1), config.PLAIN)
    net = nets.convolutional(space.shape, HIDDEN)
    params = net.init(np.random.default_rng(0))
    obs = np.random.default_rng(1).integers(0, 256 if space.is_bytes else 2, (3, *space.shape))
    obs = jnp.asarray(obs, jnp.uint8 if space.is_bytes else jnp.float32)
    memory = jax.tree.map(jnp.asarray, lens.wrap(()))
    features = np.asarray(jax.jit(lambda obs: net.apply(params, lens.obs(memory, obs)))(obs))
    assert features.shape == (3, HIDDEN[-1])
    assert 0.01 < features.std() < 10
    kernels = [layer["w"].shape for layer in params["convolutions"]]
    assert kernels == ([(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64)] if space.is_bytes else [(3, 3, 7, 16)])


def test_filters_fit_into_images_of_any_size():
    for side in (1, 2, 3, 5, 23, 24, 30, 35, 36, 37, 96):
        for shape in ((side, side, 1), (side, 50, 2)):
            net = nets.convolutional(shape, (4,))
            assert nets.dense_torso(net, shape).width == 4


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nets.mlp((2, 3), HIDDEN), (2, 3)),
        (nets.convolutional((6, 7, 2), HIDDEN), (6, 7, 2)),
        (nets.flax_net(FLAX, (6, 7, 2)), (6, 7, 2)),
    ],
    ids=["layers", "filters", "flax"],
)
def test_one_of_many_is_one_alone(net, shape):
    params = jax.tree.map(jnp.asarray, net.init(np.random.default_rng(0)))
    obs = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, *shape)).astype(np.float32))
    apply = jax.jit(net.apply)
    many, width = apply(params, obs), nets.dense_torso(net, shape).width
    assert many.shape == (2, 3, width)
    for one in (
        apply(params, obs[1, 2]),
        apply(params, obs[1, 2][None])[0],
        jax.vmap(jax.vmap(lambda obs: net.apply(params, obs)))(obs)[1, 2],
    ):
        np.testing.assert_allclose(one, many[1, 2], rtol=1e-4, atol=1e-5)
    assert not np.allclose(many[1, 2], many[0, 2])


@pytest.mark.parametrize(("make", "shape"), [(nets.mlp, (4,)), (nets.convolutional, (6, 6, 1))])
def test_a_random_network_is_as_wide_everywhere(make, shape):
    """At an observation of zeros as at large ones; and what it says of opposite observations has nothing to do with one another."""
    prior = nets.random_net(make(shape, (64,)), shape, 4000, scale=0.3)
    params = jax.tree.map(jnp.asarray, prior.init(np.random.default_rng(0)))
    one = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    told = {unit: np.asarray(prior.apply(params, jnp.asarray(unit * one))) for unit in (-1.0, 0.0, 1e-3, 1.0, 1e3)}
    for each in told.values():
        assert each.std() == pytest.approx(0.3, rel=0.06)
    assert abs(np.corrcoef(told[-1.0], told[1.0])[0, 1]) < 0.5


def test_a_torso_of_ones_own_needs_arrays():
    with pytest.raises(SettingsError, match="torso"):
        make_networks(Discrete(4), HIDDEN, FLAX)
    with pytest.raises(SettingsError, match="tuples"):
        make_networks(Box((3,)), HIDDEN, nn.Sequential([nn.Dense(2)]))
    assert make_networks(Box((6, 7, 2)), HIDDEN, FLAX).torso.width == 5


@pytest.mark.parametrize(("side", "stride", "shape"), [(3, 1, (10, 9, 4)), (8, 4, (84, 36, 2)), (4, 2, (9, 10, 3)), (3, 3, (3, 3, 1))])
def test_patches_times_filters_are_a_convolution(side, stride, shape):
    rng = np.random.default_rng(0)
    images, filters = jnp.asarray(rng.normal(size=(2, *shape))), jnp.asarray(rng.normal(size=(side, side, shape[-1], 5)))
    wanted = jax.lax.conv_general_dilated(images, filters, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    np.testing.assert_allclose(nets.patches(images, side, stride) @ filters.reshape(-1, 5), wanted, atol=1e-4)
