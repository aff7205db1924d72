"""Networks: every image finds filters that fit, one of many is one alone, and a prior is as wide everywhere.

And what plain descent at a rate per visit needs: networks that say nothing at first, and whose tangent kernel is known.
"""

import dataclasses

import flax.linen as nn
import jax
import numpy as np
import pytest
from jax import numpy as jnp

from ersac import config
from ersac.agents.build import make_networks, make_normaliser
from ersac.algorithm import normalise
from ersac.config import SettingsError
from ersac.envs.base import Box, Discrete, Spec
from ersac.nets import heads, layers
from ersac.types import Params, Trajectory

HIDDEN = (8, 6)
FLAX = nn.Sequential(
    (nn.Conv(2, (3, 3)), nn.relu, lambda x: x.reshape(*x.shape[:-3], -1), nn.Dense(5))
)


@pytest.mark.parametrize("space", [Box((84, 84, 4), is_bytes=True), Box((10, 10, 7))])
def test_images_of_games(space):
    """As they come, seen through the lens: bytes of 84 x 84 with the filters of DQN, a small board with those of MinAtar."""
    normaliser = make_normaliser(
        config.ActorCritic(), Spec("game", space, Discrete(3), 1), config.NO_NORMALISATION
    )
    net = layers.conv_net(space.shape, HIDDEN)
    params = net.init(np.random.default_rng(0))
    obs = np.random.default_rng(1).integers(0, 256 if space.is_bytes else 2, (3, *space.shape))
    obs = jnp.asarray(obs, jnp.uint8 if space.is_bytes else jnp.float32)
    memory = jax.tree.map(jnp.asarray, normaliser.init())
    features = np.asarray(jax.jit(lambda obs: net.apply(params, normaliser.obs(memory, obs)))(obs))
    assert features.shape == (3, HIDDEN[-1])
    assert 0.01 < features.std() < 10
    kernels = [layer["w"].shape for layer in params["convolutions"]]
    assert kernels == (
        [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64)] if space.is_bytes else [(3, 3, 7, 16)]
    )


def test_filters_fit_into_images_of_any_size():
    for side in (1, 2, 3, 5, 23, 24, 30, 35, 36, 37, 96):
        for shape in ((side, side, 1), (side, 50, 2)):
            net = layers.conv_net(shape, (4,))
            assert heads.dense_torso(net, shape).width == 4


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (layers.mlp((2, 3), HIDDEN), (2, 3)),
        (layers.conv_net((6, 7, 2), HIDDEN), (6, 7, 2)),
        (layers.flax_net(FLAX, (6, 7, 2)), (6, 7, 2)),
    ],
    ids=["layers", "filters", "flax"],
)
def test_one_of_many_is_one_alone(net, shape):
    params = jax.tree.map(jnp.asarray, net.init(np.random.default_rng(0)))
    obs = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, *shape)).astype(np.float32))
    apply = jax.jit(net.apply)
    many, width = apply(params, obs), heads.dense_torso(net, shape).width
    assert many.shape == (2, 3, width)
    for one in (
        apply(params, obs[1, 2]),
        apply(params, obs[1, 2][None])[0],
        jax.vmap(jax.vmap(lambda obs: net.apply(params, obs)))(obs)[1, 2],
    ):
        np.testing.assert_allclose(one, many[1, 2], rtol=1e-4, atol=1e-5)
    assert not np.allclose(many[1, 2], many[0, 2])


@pytest.mark.parametrize(("make", "shape"), [(layers.mlp, (4,)), (layers.conv_net, (6, 6, 1))])
def test_a_random_network_is_as_wide_everywhere(make, shape):
    """At an observation of zeros as at large ones; and what it says of opposite observations has nothing to do with one another."""
    prior = heads.random_net(make(shape, (64,)), shape, 4000, scale=0.3)
    params = jax.tree.map(jnp.asarray, prior.init(np.random.default_rng(0)))
    one = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    told = {
        unit: np.asarray(prior.apply(params, jnp.asarray(unit * one)))
        for unit in (-1.0, 0.0, 1e-3, 1.0, 1e3)
    }
    for each in told.values():
        assert each.std() == pytest.approx(0.3, rel=0.06)
    assert abs(np.corrcoef(told[-1.0], told[1.0])[0, 1]) < 0.5


@pytest.mark.parametrize("kind", ["mlp", "table"])
def test_a_torso_of_ones_own_needs_arrays(kind):
    network = config.ActorCritic(hidden=HIDDEN, torso=FLAX, network=kind)
    with pytest.raises(SettingsError, match="torso"):
        make_networks(network, Discrete(4))
    with pytest.raises(SettingsError, match="tuples"):
        make_networks(dataclasses.replace(network, torso=nn.Sequential([nn.Dense(2)])), Box((3,)))
    assert make_networks(network, Box((6, 7, 2))).torso.width == 5


@pytest.mark.parametrize(
    ("side", "stride", "shape"),
    [(3, 1, (10, 9, 4)), (8, 4, (84, 36, 2)), (4, 2, (9, 10, 3)), (3, 3, (3, 3, 1))],
)
def test_patches_times_filters_are_a_convolution(side, stride, shape):
    rng = np.random.default_rng(0)
    images, filters = (
        jnp.asarray(rng.normal(size=(2, *shape))),
        jnp.asarray(rng.normal(size=(side, side, shape[-1], 5))),
    )
    wanted = jax.lax.conv_general_dilated(
        images, filters, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(
        layers.patches(images, side, stride) @ filters.reshape(-1, 5), wanted, atol=1e-4
    )


WIDE = 1024
OBSERVATIONS = {
    "integers": (Discrete(25), jnp.arange(4)),
    "vectors": (Box((7,)), jnp.asarray(np.random.default_rng(1).normal(size=(4, 7)), jnp.float32)),
}


class Mirrored:
    """A network, its first parameters, and what it says of one observation."""

    def __init__(self, space, hidden, n_out, upper_share, seed=0, init_scale=1.0):
        self.head = heads.mirrored_mlp(space, hidden, n_out, upper_share, init_scale)
        self.params = jax.tree.map(jnp.asarray, self.head.init(np.random.default_rng(seed)))

    def told(self, params: Params, obs):
        rows = jax.tree.map(lambda table: table[obs], params.rows)  # of vectors there are none
        return self.head.apply(params.dense, rows, obs, jnp.zeros(0))

    def shares(self, obs) -> tuple[float, float]:
        """The tangent kernel at an observation, a mean over outputs: of the first layer, and of those above it."""

        @jax.jit
        def of_output(out):
            slopes = jax.grad(lambda params: self.told(params, obs)[out])(self.params)
            squares = lambda tree: sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree))
            first = squares(slopes.rows) + squares(slopes.dense.get("first", ()))
            return first, squares(slopes) - first

        first, upper = jax.lax.map(of_output, jnp.arange(self.told(self.params, obs).shape[-1]))
        return float(first.mean()), float(upper.mean())


@pytest.mark.parametrize("observed", OBSERVATIONS)
@pytest.mark.parametrize("hidden", [(16,), (WIDE, 6), (10, 8, 6)])
def test_a_mirrored_network_says_nothing_at_first(observed, hidden):
    """Units come in pairs that cancel to the last bit, so what is left is the rounding of their sum. A step away it says something."""
    space, obs = OBSERVATIONS[observed]
    net = Mirrored(space, hidden, 3, 0.1)
    first = net.params.rows.get("first", net.params.dense.get("first"))
    np.testing.assert_array_equal(*np.split(first, 2, axis=1))
    np.testing.assert_array_equal(
        *np.split(
            net.params.dense["top"] * jnp.repeat(jnp.array([1, -1]), hidden[-1] // 2)[:, None], 2
        )
    )
    every = lambda params: np.abs(jax.vmap(lambda one: net.told(params, one))(obs)).max()
    assert every(net.params) < 1e-6
    assert (
        every(
            jax.tree.map(
                lambda x: x + 0.1 * jnp.cos(jnp.arange(x.size)).reshape(x.shape), net.params
            )
        )
        > 1e-3
    )


@pytest.mark.parametrize("observed", OBSERVATIONS)
@pytest.mark.parametrize("hidden", [(WIDE,), (WIDE, WIDE)], ids=["one layer", "two layers"])
@pytest.mark.parametrize("upper_share", [0.1, 0.5])
@pytest.mark.parametrize("init_scale", [1.0, 16.0])
def test_the_tangent_kernel_of_a_mirrored_network_is_one_and_the_first_layer_has_its_share(
    observed, hidden, upper_share, init_scale
):
    space, obs = OBSERVATIONS[observed]
    net = Mirrored(space, hidden, 32, upper_share, init_scale=init_scale)
    first, upper = np.mean([net.shares(one) for one in obs], axis=0)
    assert first + upper == pytest.approx(1, rel=0.1)
    assert first == pytest.approx(1 - upper_share, rel=0.1)
    assert upper == pytest.approx(upper_share, rel=0.1)


@pytest.mark.parametrize("observed", OBSERVATIONS)
@pytest.mark.parametrize("hidden", [(WIDE,), (WIDE, WIDE)], ids=["one layer", "two layers"])
@pytest.mark.parametrize("rate", [0.03, 0.5])
def test_a_step_of_plain_descent_corrects_its_share_of_an_error(observed, hidden, rate):
    """As a table's row does. A mean over outputs, each of which takes its step alone, and observations; errors are of any size."""
    space, obs = OBSERVATIONS[observed]
    net = Mirrored(space, hidden, 16, 0.1)

    @jax.jit
    def corrected(one):
        def of_output(out, target):
            loss = lambda params: 0.5 * jnp.square(net.told(params, one)[out] - target)
            after = jax.tree.map(
                lambda x, slope: x - rate * slope, net.params, jax.grad(loss)(net.params)
            )
            return net.told(after, one)[out] / target

        return jax.lax.map(lambda x: of_output(*x), (jnp.arange(16), jnp.geomspace(1e-3, 1.0, 16)))

    assert np.mean([corrected(one) for one in obs]) == pytest.approx(rate, rel=0.1)


@pytest.mark.parametrize(("init_scale", "is_lazy"), [(1.0, False), (16.0, True)])
def test_the_tangent_kernel_stays_where_outputs_have_moved_far_only_with_a_large_initial_scale(
    init_scale, is_lazy
):
    """Descent to an output of 20 at one of 25 integers, as a logit goes: the kernel is then as it was, or has doubled."""
    net = Mirrored(Discrete(25), (128,), 2, 0.1, init_scale=init_scale)
    loss = lambda params: 0.5 * jnp.square(net.told(params, 3)[0] - 20.0)
    step = jax.jit(
        lambda params: jax.tree.map(
            lambda x, slope: x - 0.05 * slope, params, jax.grad(loss)(params)
        )
    )

    def kernel(params: Params) -> float:
        slopes = jax.grad(lambda params: net.told(params, 3)[0])(params)
        return sum(float(jnp.sum(jnp.square(leaf))) for leaf in jax.tree.leaves(slopes))

    far = net.params
    for _ in range(200):
        far = step(far)
    assert float(net.told(far, 3)[0]) == pytest.approx(20, rel=0.01)
    ratio = kernel(far) / kernel(net.params)
    assert ratio == pytest.approx(1, abs=0.1) if is_lazy else ratio > 1.5


def test_a_looked_up_first_layer_is_a_dense_one_on_one_hot_vectors(float64):
    """`sqrt(n) one_hot` has, with its constant, a root mean square of 1 as it is; n of its n + 1 inputs are the table's."""
    n, hidden = 25, (12, 8)
    looked_up, dense = (
        Mirrored(Discrete(n), hidden, 3, 0.1, seed=3),
        Mirrored(Box((n,)), hidden, 3, 0.1, seed=4),
    )
    stirred = jax.tree.map(
        lambda x: x + 0.3 * jnp.asarray(np.random.default_rng(x.size).normal(size=x.shape)),
        looked_up.params,
    )
    table = stirred.rows["first"] * ((n + 1) / n) ** 0.5
    same = Params(
        stirred.dense | {"first": jnp.concatenate([table, jnp.zeros((1, hidden[0]))])}, {}
    )
    told = jax.vmap(lambda obs: looked_up.told(stirred, obs))(jnp.arange(n))
    np.testing.assert_allclose(
        jax.vmap(lambda obs: dense.told(same, obs))(n**0.5 * jnp.eye(n)),
        told,
        rtol=1e-12,
        atol=1e-13,
    )
    assert np.abs(told).max() > 0.1


def test_units_that_come_in_pairs_have_even_numbers():
    with pytest.raises(SettingsError, match="even"):
        heads.mirrored_mlp(Discrete(4), (8, 7), 1, 0.1)


@pytest.mark.parametrize("n", [1, 3, 40])
def test_all_that_is_on_the_sphere_has_one_length_and_keeps_its_own_as_an_angle(float64, n):
    obs = jnp.asarray(np.random.default_rng(0).normal(size=(6, n)))
    for unit in (0.0, 1e-6, 1.0, 1e6):
        put = layers.on_sphere(unit * obs)
        np.testing.assert_allclose(jnp.mean(jnp.square(put), axis=-1), 1, rtol=1e-12)
        np.testing.assert_allclose(put[:, :-1], unit * obs * put[:, -1:], rtol=1e-12)


def seen(obs: np.ndarray) -> jax.Array:
    """Vectors [M, n] as a network sees them, once each of them was met."""
    normaliser = normalise.running(Box(obs.shape[1:]), 1, 0.99, normalise=True, scale=False)
    ones, obs = jnp.ones((1, len(obs))), jnp.asarray(obs, jnp.float32)
    t = Trajectory(jnp.concatenate([obs, obs[:1]])[None], ones, ones, ones, ones, ones, ones)
    return normaliser.obs(normaliser.observe(jax.tree.map(jnp.asarray, normaliser.init()), t), obs)


RNG = np.random.default_rng(5)
SHOWN = {
    "25 integers": (Discrete(25), jnp.arange(25)),
    "400 integers": (Discrete(400), jnp.arange(400)),
    "one-hot of 25": (Box((25,)), seen(np.eye(25))),
    "one-hot of 400": (Box((400,)), seen(np.eye(400))),
    "sparse": (Box((100,)), seen((RNG.random((300, 100)) < 0.05).astype(float))),
    "normal": (Box((100,)), seen(RNG.normal(3.0, 7.0, (300, 100)))),
}


def correlation(told: np.ndarray) -> float:
    """The mean absolute correlation over outputs between distinct states [S, outputs]."""
    return np.abs(np.corrcoef(told)[np.triu_indices(len(told), 1)]).mean()


@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.parametrize("seed", [0, 1])
def test_random_features_are_as_wide_everywhere_and_tell_states_apart(shown, seed):
    """Over 2,000 outputs, which are as many draws: a standard deviation's own is 1.6 per cent."""
    space, obs = SHOWN[shown]
    prior = heads.random_features(space, 256, 2000, scale=0.3)
    told = np.asarray(prior.apply(prior.init(np.random.default_rng(seed)), obs[:40]))
    np.testing.assert_allclose(told.std(axis=1), 0.3, rtol=0.08)
    assert correlation(told) < 0.15


@pytest.mark.parametrize("n", [25, 400])
def test_a_random_network_on_raw_one_hot_vectors_tells_no_state_from_another(n):
    """Which is why random features are not one: its biases are all that it sees."""
    prior = heads.random_net(layers.mlp((n,), (256,)), (n,), 2000, scale=0.3)
    told = np.asarray(prior.apply(prior.init(np.random.default_rng(0)), jnp.eye(n)[:40]))
    assert correlation(told) > 0.9


def test_a_scaled_gradient_leaves_the_value_as_it_is(float64):
    x, scale = jnp.array([1.5, -2.0, 0.0]), jnp.array([0.25, 3.0, 0.5])
    value, pull_back = jax.vjp(lambda x: layers.scale_gradient(x, scale), x)
    np.testing.assert_allclose(value, x, rtol=1e-15)
    np.testing.assert_allclose(pull_back(jnp.ones(3))[0], scale, rtol=1e-15)


def test_features_of_opposite_observations_are_independent():
    """A tanh network without biases would be odd: what is learned of an observation would hold, negated, of its opposite."""
    net = layers.mlp((5,), (4096,))
    params = net.init(np.random.default_rng(0))
    obs = jnp.asarray(np.random.default_rng(1).normal(size=5), jnp.float32)
    assert abs(np.corrcoef(net.apply(params, obs), net.apply(params, -obs))[0, 1]) < 0.9
    assert not np.allclose(net.apply(params, obs), -net.apply(params, -obs), atol=0.1)
