"""Networks: filters fit every image, batches equal single inputs, priors have one scale everywhere.

And the properties that a rate per visit needs: zero outputs and a known tangent kernel at first.
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
from ersac.envs.base import Box, Discrete, PackedSpace, Spec
from ersac.envs.gym.spaces import pack_bytes
from ersac.nets import heads, layers, packed
from ersac.types import Params, Trajectory

HIDDEN = (8, 6)
FLAX = nn.Sequential(
    (nn.Conv(2, (3, 3)), nn.relu, lambda x: x.reshape(*x.shape[:-3], -1), nn.Dense(5))
)


@pytest.mark.parametrize("space", [Box((84, 84, 4), is_bytes=True), Box((10, 10, 7))])
def test_images_of_games(space):
    """Normalised bytes of 84 x 84 with the filters of DQN, a small board with those of MinAtar."""
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
def test_a_batch_equals_single_observations(net, shape):
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
def test_a_random_network_has_the_same_scale_everywhere(make, shape):
    """At zero as at large observations; outputs at opposite observations are independent."""
    prior = heads.random_net(make(shape, (64,)), shape, 4000, scale=0.3)
    params = jax.tree.map(jnp.asarray, prior.init(np.random.default_rng(0)))
    one = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    outputs = {
        factor: np.asarray(prior.apply(params, jnp.asarray(factor * one)))
        for factor in (-1.0, 0.0, 1e-3, 1.0, 1e3)
    }
    for output in outputs.values():
        assert output.std() == pytest.approx(0.3, rel=0.06)
    assert abs(np.corrcoef(outputs[-1.0], outputs[1.0])[0, 1]) < 0.5


@pytest.mark.parametrize("network", ["mlp", "table"])
def test_a_custom_torso_needs_array_observations(network):
    settings = config.ActorCritic(hidden=HIDDEN, torso=FLAX, network=network)
    with pytest.raises(SettingsError, match="torso"):
        make_networks(settings, Discrete(4))
    with pytest.raises(SettingsError, match="tuples"):
        make_networks(dataclasses.replace(settings, torso=nn.Sequential([nn.Dense(2)])), Box((3,)))
    assert make_networks(settings, Box((6, 7, 2))).torso.width == 5


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
    convolved = jax.lax.conv_general_dilated(
        images, filters, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(
        layers.patches(images, side, stride) @ filters.reshape(-1, 5), convolved, atol=1e-4
    )


WIDE = 1024
OBSERVATIONS = {
    "integers": (Discrete(25), jnp.arange(4)),
    "vectors": (Box((7,)), jnp.asarray(np.random.default_rng(1).normal(size=(4, 7)), jnp.float32)),
}


class Mirrored:
    """A mirrored network with its initial parameters."""

    def __init__(self, space, hidden, n_out, upper_share, seed=0, init_scale=1.0):
        self.head = heads.mirrored_mlp(space, hidden, n_out, upper_share, init_scale)
        self.params = jax.tree.map(jnp.asarray, self.head.init(np.random.default_rng(seed)))

    def apply(self, params: Params, obs):
        rows = jax.tree.map(lambda table: table[obs], params.rows)  # empty for vectors
        return self.head.apply(params.dense, rows, obs, jnp.zeros(0))

    def shares(self, obs) -> tuple[float, float]:
        """Return the tangent kernel of the first layer and of the others, mean over outputs."""

        @jax.jit
        def of_output(out):
            slopes = jax.grad(lambda params: self.apply(params, obs)[out])(self.params)
            squares = lambda tree: sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree))
            first = squares(slopes.rows) + squares(slopes.dense.get("first", ()))
            return first, squares(slopes) - first

        first, upper = jax.lax.map(of_output, jnp.arange(self.apply(self.params, obs).shape[-1]))
        return float(first.mean()), float(upper.mean())


@pytest.mark.parametrize("observed", OBSERVATIONS)
@pytest.mark.parametrize("hidden", [(16,), (WIDE, 6), (10, 8, 6)])
def test_outputs_of_a_mirrored_network_are_zero_at_first(observed, hidden):
    """Pairs of units cancel exactly, up to rounding of the sum; changed parameters give outputs."""
    space, obs = OBSERVATIONS[observed]
    net = Mirrored(space, hidden, 3, 0.1)
    first = net.params.rows.get("first", net.params.dense.get("first"))
    np.testing.assert_array_equal(*np.split(first, 2, axis=1))
    np.testing.assert_array_equal(
        *np.split(
            net.params.dense["top"] * jnp.repeat(jnp.array([1, -1]), hidden[-1] // 2)[:, None], 2
        )
    )
    largest = lambda params: np.abs(jax.vmap(lambda one: net.apply(params, one))(obs)).max()
    assert largest(net.params) < 1e-6
    assert (
        largest(
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
    """As in a table: for errors of any size, averaged over outputs (one step each) and inputs."""
    space, obs = OBSERVATIONS[observed]
    net = Mirrored(space, hidden, 16, 0.1)

    @jax.jit
    def corrected(one):
        def of_output(out, target):
            loss = lambda params: 0.5 * jnp.square(net.apply(params, one)[out] - target)
            after = jax.tree.map(
                lambda x, slope: x - rate * slope, net.params, jax.grad(loss)(net.params)
            )
            return net.apply(after, one)[out] / target

        return jax.lax.map(lambda x: of_output(*x), (jnp.arange(16), jnp.geomspace(1e-3, 1.0, 16)))

    assert np.mean([corrected(one) for one in obs]) == pytest.approx(rate, rel=0.1)


@pytest.mark.parametrize(("init_scale", "is_lazy"), [(1.0, False), (16.0, True)])
def test_the_tangent_kernel_changes_little_only_with_a_large_initial_scale(init_scale, is_lazy):
    """Descend to an output of 20, as large as a logit, at one of 25 integer observations."""
    net = Mirrored(Discrete(25), (128,), 2, 0.1, init_scale=init_scale)
    loss = lambda params: 0.5 * jnp.square(net.apply(params, 3)[0] - 20.0)
    step = jax.jit(
        lambda params: jax.tree.map(
            lambda x, slope: x - 0.05 * slope, params, jax.grad(loss)(params)
        )
    )

    def kernel(params: Params) -> float:
        slopes = jax.grad(lambda params: net.apply(params, 3)[0])(params)
        return sum(float(jnp.sum(jnp.square(leaf))) for leaf in jax.tree.leaves(slopes))

    far = net.params
    for _ in range(200):
        far = step(far)
    assert float(net.apply(far, 3)[0]) == pytest.approx(20, rel=0.01)
    ratio = kernel(far) / kernel(net.params)
    assert ratio == pytest.approx(1, abs=0.1) if is_lazy else ratio > 1.5


def test_a_looked_up_first_layer_is_a_dense_one_on_one_hot_vectors(float64):
    """`sqrt(n) one_hot` with a constant appended has a root mean square of 1 already."""
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
    outputs = jax.vmap(lambda obs: looked_up.apply(stirred, obs))(jnp.arange(n))
    np.testing.assert_allclose(
        jax.vmap(lambda obs: dense.apply(same, obs))(n**0.5 * jnp.eye(n)),
        outputs,
        rtol=1e-12,
        atol=1e-13,
    )
    assert np.abs(outputs).max() > 0.1


def test_widths_of_mirrored_networks_must_be_even():
    with pytest.raises(SettingsError, match="even"):
        heads.mirrored_mlp(Discrete(4), (8, 7), 1, 0.1)


@pytest.mark.parametrize("n", [1, 3, 40])
def test_on_sphere_normalises_and_preserves_length_as_an_angle(float64, n):
    obs = jnp.asarray(np.random.default_rng(0).normal(size=(6, n)))
    for factor in (0.0, 1e-6, 1.0, 1e6):
        x = layers.on_sphere(factor * obs)
        np.testing.assert_allclose(jnp.mean(jnp.square(x), axis=-1), 1, rtol=1e-12)
        np.testing.assert_allclose(x[:, :-1], factor * obs * x[:, -1:], rtol=1e-12)


def normalised(obs: np.ndarray) -> jax.Array:
    """Return vectors [M, n], normalised with the statistics of themselves."""
    normaliser = normalise.running(Box(obs.shape[1:]), 1, 0.99, normalise=True, scale_rewards=False)
    ones, obs = jnp.ones((1, len(obs))), jnp.asarray(obs, jnp.float32)
    t = Trajectory(jnp.concatenate([obs, obs[:1]])[None], ones, ones, ones, ones, ones, ones)
    return normaliser.obs(normaliser.observe(jax.tree.map(jnp.asarray, normaliser.init()), t), obs)


RNG = np.random.default_rng(5)
INPUTS = {
    "25 integers": (Discrete(25), jnp.arange(25)),
    "400 integers": (Discrete(400), jnp.arange(400)),
    "one-hot of 25": (Box((25,)), normalised(np.eye(25))),
    "one-hot of 400": (Box((400,)), normalised(np.eye(400))),
    "sparse": (Box((100,)), normalised((RNG.random((300, 100)) < 0.05).astype(float))),
    "normal": (Box((100,)), normalised(RNG.normal(3.0, 7.0, (300, 100)))),
}


def correlation(outputs: np.ndarray) -> float:
    """Return the mean absolute correlation between distinct states, given [S, outputs]."""
    return np.abs(np.corrcoef(outputs)[np.triu_indices(len(outputs), 1)]).mean()


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_random_features_have_one_scale_and_tell_states_apart(name, seed):
    """2,000 outputs are as many draws: their standard deviation has an error of 1.6 per cent."""
    space, obs = INPUTS[name]
    prior = heads.random_features(space, 256, 2000, scale=0.3)
    outputs = np.asarray(prior.apply(prior.init(np.random.default_rng(seed)), obs[:40]))
    np.testing.assert_allclose(outputs.std(axis=1), 0.3, rtol=0.08)
    assert correlation(outputs) < 0.15


@pytest.mark.parametrize("n", [25, 400])
def test_a_random_network_on_raw_one_hot_vectors_tells_no_state_from_another(n):
    """Its biases dominate. This is why `random_features` has none."""
    prior = heads.random_net(layers.mlp((n,), (256,)), (n,), 2000, scale=0.3)
    outputs = np.asarray(prior.apply(prior.init(np.random.default_rng(0)), jnp.eye(n)[:40]))
    assert correlation(outputs) > 0.9


def test_a_scaled_gradient_leaves_the_value_as_it_is(float64):
    x, scale = jnp.array([1.5, -2.0, 0.0]), jnp.array([0.25, 3.0, 0.5])
    value, pull_back = jax.vjp(lambda x: layers.scale_gradient(x, scale), x)
    np.testing.assert_allclose(value, x, rtol=1e-15)
    np.testing.assert_allclose(pull_back(jnp.ones(3))[0], scale, rtol=1e-15)


def test_features_of_opposite_observations_are_independent():
    """A tanh network without biases would be odd: its features would only change sign."""
    net = layers.mlp((5,), (4096,))
    params = net.init(np.random.default_rng(0))
    obs = jnp.asarray(np.random.default_rng(1).normal(size=5), jnp.float32)
    assert abs(np.corrcoef(net.apply(params, obs), net.apply(params, -obs))[0, 1]) < 0.9
    assert not np.allclose(net.apply(params, obs), -net.apply(params, -obs), atol=0.1)


CAMERA, POSE = Box((5, 4, 2), is_bytes=True), Box((3,))


def test_packed_frames_come_back_as_they_were():
    """Also the mask, which is that of the newest frame; channels and numbers are stacked."""
    rng = np.random.default_rng(0)
    space = PackedSpace((CAMERA, POSE), choices=4)
    image = rng.integers(0, 256, (2, 6, *CAMERA.shape), np.uint8)  # [frames, N, ...]
    pose = rng.normal(size=(2, 6, 3)).astype(np.float32)
    mask = rng.integers(0, 2, (2, 6, 4), np.uint8)
    frames = [pack_bytes(parts) for parts in zip(image, pose, mask, strict=True)]
    assert frames[0].shape == (6, *space.shape)
    obs, allowed = packed.unpack(space._replace(frames=2), np.concatenate(frames, axis=-1))
    stacked = np.concatenate(list(image), axis=-1).reshape(6, -1) / np.float32(255)
    np.testing.assert_allclose(obs[:, : stacked.shape[1]], stacked, rtol=1e-6)
    np.testing.assert_array_equal(obs[:, stacked.shape[1] :], np.concatenate(list(pose), axis=-1))
    np.testing.assert_array_equal(allowed, mask[1] > 0)
    single = PackedSpace((Discrete(9),), choices=2)
    states = rng.integers(0, 9, (6, 1), np.int32)
    obs, allowed = packed.unpack(single, pack_bytes([states[:, 0], mask[0, :, :2]]))
    np.testing.assert_array_equal(obs, states[:, 0])
    assert packed.inner_space(single) == Discrete(9)
    assert packed.inner_space(PackedSpace((CAMERA,), 3, frames=2)) == Box((5, 4, 4), is_bytes=True)


def test_a_camera_has_convolutions_and_the_rest_is_normalised_beside_it():
    """The features depend on both entries; statistics are kept for the vector alone."""
    space = PackedSpace((CAMERA, POSE))
    net = layers.combined_net(packed.stacked_boxes(space), HIDDEN)
    params = net.init(np.random.default_rng(0))
    (image, vector), obs = params["entries"], jnp.full((2, 43), 0.5)
    assert image["convolutions"][0]["w"].shape[:3] == (3, 3, 2)
    assert vector[0]["w"].shape == (3, HIDDEN[0])
    features = net.apply(params, obs)
    assert features.shape == (2, HIDDEN[-1])
    for entry in (0, 41):
        assert not np.allclose(features, net.apply(params, obs.at[:, entry].set(3.0)))
    spec = Spec("robot", space, Discrete(3), 1)
    normaliser = make_normaliser(config.ActorCritic(), spec, config.Normalise(True, True))
    stats = jax.tree.map(jnp.asarray, normaliser.init())
    assert stats.mean.shape == (3,)
    far = jnp.full((1, 4, 43), 0.5).at[:, :, 40:].add(1000 * jnp.arange(4.0)[None, :, None])
    ones = jnp.ones((1, 3))
    stats = normaliser.observe(
        stats, Trajectory(far, jnp.zeros((1, 3)), ones, ones, ones, ones, ())
    )
    seen = normaliser.obs(stats, far[0])
    np.testing.assert_array_equal(seen[:, :40], 0.5)
    assert np.abs(seen[:3, 40:]).max() < 2


def test_the_convolution_of_xla_is_the_product_of_patches():
    shape, rng = (40, 44, 3), np.random.default_rng(0)
    filters = layers.A3C_FILTERS
    nets = [layers.conv_net(shape, (8,), filters, runs_alone=alone) for alone in (False, True)]
    params, x = nets[0].init(rng), jnp.asarray(rng.random((2, 3, *shape), np.float32))
    np.testing.assert_allclose(*(net.apply(params, x) for net in nets), rtol=1e-4, atol=1e-5)


def test_the_residual_torso_is_that_of_flax():
    shape, rng = (37, 40, 4), np.random.default_rng(0)
    net = layers.image_net(shape, "impala")
    params, x = net.init(rng), jnp.asarray(rng.random((2, *shape), np.float32))

    def convolution(params, x):
        variables = {"params": {"kernel": params["w"], "bias": params["b"]}}
        return nn.Conv(params["w"].shape[-1], (3, 3)).apply(variables, x)

    y = x
    for first, a, b, c, d in params["sections"]:
        y = nn.max_pool(convolution(first, y), (3, 3), (2, 2), "SAME")
        for one, two in ((a, b), (c, d)):
            y = y + convolution(two, nn.relu(convolution(one, nn.relu(y))))
    y = nn.relu(y).reshape(2, -1) @ params["top"]["w"]  # biases are zero
    variables = {"params": {}}
    y = nn.LayerNorm(use_bias=False, use_scale=False, epsilon=1e-5).apply(variables, y)
    np.testing.assert_allclose(net.apply(params, x), nn.relu(y), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("size", "width"), [("small", 256), ("nature", 512), ("impala", 256)])
def test_about_half_of_the_units_of_an_image_torso_are_active(size, width):
    net, rng = layers.image_net((36, 36, 1), size), np.random.default_rng(0)
    params, x = net.init(rng), jnp.asarray(rng.random((2, 36, 36, 1), np.float32))
    features = net.apply(params, x)
    assert features.shape == (2, width)
    assert 0.3 < float(jnp.mean(features > 0)) < 0.7
