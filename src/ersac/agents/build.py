"""Builds an agent and its buffer from settings and the specification of an environment."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import optax
from jax import numpy as jnp

from ersac import config
from ersac.agents import critics
from ersac.agents.actor_critic import Optimisers, Parts, actor_critic, update_actor_critic
from ersac.agents.base import Agent, Metrics
from ersac.agents.boot_dqn import (
    Members,
    QNetwork,
    boot_dqn,
    dense_layer,
    lookup_layer,
    with_target,
)
from ersac.algorithm import normalise, replay
from ersac.algorithm import risk as risks
from ersac.algorithm.action_dist import MAX_JOINT, ActionDist, make_action_dist
from ersac.algorithm.normalise import Normaliser
from ersac.algorithm.replay import Buffer
from ersac.algorithm.risk import Risk
from ersac.envs.base import Box, Discrete, MultiDiscrete, PackedSpace, Space, Spec, cardinality
from ersac.nets import heads, layers, packed, tables
from ersac.types import Array, Learner, Trajectory, Tree
from ersac.uncertainty import images
from ersac.uncertainty.base import Uncertainty
from ersac.uncertainty.counts import visit_counts
from ersac.uncertainty.ensemble import reward_ensemble
from ersac.uncertainty.hashed import hashed_counts
from ersac.uncertainty.linear import bayesian_linear
from ersac.uncertainty.posterior import posterior_ensemble
from ersac.uncertainty.rnd import random_network_distillation

# Gain of the last layer of policy and value: small, so that the initial policy is nearly uniform
# and the initial values are nearly zero.
HEAD_GAIN = 0.01
# Correlation of the ReLU features of two orthogonal observations. A batch of N steps changes what
# they share by N times the rate times this; above 2 that diverges.
RELU_CORRELATION = 1 / math.pi
# Initial weight scale of policy networks. Logits change by tens, values and rewards by about one
# (where values change by more, see `critic_init_scale`). A small network that changes by tens has
# different features afterwards, and another learning rate at each observation: with a scale of 1
# the replay agent solved no seed at depth 40, with 16 all.
LOGIT_SCALE = 16.0
MIN_TAU_SCALE = 1e-3  # lower bound of a learned ratio of tau(s, a) to sigma(s, a)
# Factor of the prior's scale on images. Heads trained by Adam change by as much as its learning
# rate whatever the size of the bonus, so the bonus has to be larger than that.
IMAGE_PRIOR = 10.0
IMAGE_HEAD_GAIN = 5.0  # so that Adam's step is about a twentieth of that prior
# Random features of a prior network: the priors of two states correlate by about PRIOR_WIDTH^-1/2.
PRIOR_WIDTH = 256


def make_agent(
    settings: config.ActorCritic | config.BootDQN,
    spec: Spec,
    normalisation: config.Normalise = config.NO_NORMALISATION,
) -> Agent:
    """Return the agent for an environment."""
    match settings:
        case config.ActorCritic():
            return make_actor_critic(settings, spec, normalisation)
        case config.BootDQN():
            return make_boot_dqn(settings, spec, normalisation)


def agent_of(settings: config.Experiment, spec: Spec) -> Agent:
    """Return the agent of a run."""
    return make_agent(settings.agent, spec, settings.env.normalisation)


def make_buffer(
    settings: config.ActorCritic | config.BootDQN, envs: int = 1, observations: Space | None = None
) -> Buffer:
    """Return the buffer of an agent; Bootstrapped DQN has its replay in its memory."""
    match settings:
        case config.ActorCritic(buffer=config.Replay() as prioritised):
            return replay.prioritised(
                prioritised.capacity,
                prioritised.batch,
                prioritised.updates,
                prioritised.offline_fraction,
                prioritised.priority_exponent,
                replay.rollout_storage(observations),
            )
        case config.ActorCritic(buffer=config.OnPolicy(passes, minibatch)):
            return replay.on_policy(passes, envs, minibatch)
        case _:
            return replay.on_policy(envs=envs)


def buffer_of(settings: config.Experiment, spec: Spec) -> Buffer:
    """Return the buffer of a run's agent."""
    return make_buffer(settings.agent, spec.envs, spec.observations)


def make_actor_critic(
    settings: config.ActorCritic,
    spec: Spec,
    normalisation: config.Normalise = config.NO_NORMALISATION,
) -> Agent:
    """Return the actor-critic with the attitude to risk of the settings."""
    match settings.risk:
        case config.Seeking(tau0, tau_rate, tau_min, learn_tau=True):
            pass
        case config.LocalSeeking(tau0, tau_rate, learn_tau=True):
            tau_min = MIN_TAU_SCALE
        case config.Seeking(tau0) | config.LocalSeeking(tau0):
            tau_rate, tau_min = 0.0, 0.0
        case _:  # nothing depends on tau
            tau0, tau_rate, tau_min = 1.0, 0.0, 0.0
    parts = make_parts(settings, spec, normalisation)
    optimisers = make_optimisers(settings, parts, tau_rate, tau_min, spec.envs)
    agent = actor_critic(settings, parts, optimisers, tau0)
    if settings.schedule == "constant":
        return agent

    def update(learner: Learner, batch: Trajectory) -> tuple[Learner, Array, Metrics]:
        """Take a gradient step with the rates of this moment; see `Agent.update`."""
        factor = schedule_factor(settings, spec.envs, learner.opt["time"])
        now = scale_rates(settings, factor)
        optimisers = make_optimisers(now, parts, tau_rate, tau_min, spec.envs)
        return update_actor_critic(now, parts, optimisers, learner, batch)

    return agent._replace(update=update)


SCHEDULES: dict[str, optax.Schedule] = {  # of the share of the run that is over
    "linear": optax.schedules.linear_schedule(1.0, 0.0, 1),
    "cosine": optax.schedules.cosine_decay_schedule(1.0, 1),
}


def schedule_factor(settings: config.ActorCritic, envs: int, updates: Array) -> Array:
    """Return the factor on the learning rates after a number of updates."""
    per_step = make_buffer(settings, envs).updates / (settings.rollout * envs)
    total = settings.schedule_steps * per_step
    return SCHEDULES[settings.schedule](updates / jnp.maximum(total, 1.0))


def scale_rates(settings: config.ActorCritic, factor: Array) -> config.ActorCritic:
    """Return settings with the learning rates of policy and critic multiplied by a factor.

    Those of tau and of the estimator stay: how fast sigma falls is a matter of visits, not of time.
    """
    names = ("learning_rate", "policy_rate", "value_rate")
    return config.override(settings, **{name: factor * getattr(settings, name) for name in names})


def make_parts(
    settings: config.ActorCritic,
    spec: Spec,
    normalisation: config.Normalise = config.NO_NORMALISATION,
) -> Parts:
    """Return the networks, the estimator and the attitude to risk of an actor-critic."""
    stored, spec = spec.observations, unpacked_spec(spec)
    networks, action_dist = make_networks(settings, spec.observations), choose_dist(settings, spec)

    def unpack(obs: Array) -> tuple[Array, Array | None]:
        obs, allowed = packed.unpack(stored, obs)
        return obs, None if allowed is None else action_dist.allowed(allowed)

    critic = critics.CRITICS[settings.critic]
    return Parts(
        torso=networks.torso,
        policy=networks.policy(action_dist.outputs),
        value=networks.value(critic.outputs(action_dist.n_actions)),
        uncertainty=make_uncertainty(settings.uncertainty, spec, networks, action_dist.n_actions),
        risk=make_risk(settings.risk),
        critic=critic,
        action_dist=action_dist,
        normaliser=make_normaliser(settings, spec, normalisation),
        max_logit_gap=settings.max_logit_gap,
        per_visit=networks.per_visit,
        unpack=unpack,
    )


def unpacked_spec(spec: Spec) -> Spec:
    """Return the specification with the observations that networks and estimators see."""
    return spec._replace(observations=packed.inner_space(spec.observations))


def choose_dist(settings: config.ActorCritic, spec: Spec) -> ActionDist:
    """Return the action distribution; SettingsError where a setting does not fit the actions."""
    all_actions, has_limit = settings.critic == "all-actions", settings.max_logit_gap is not None
    options = {"--critic all-actions": all_actions, "--max-logit-gap": has_limit}
    for option, is_set in options.items():
        if is_set and isinstance(spec.actions, Box):
            raise config.SettingsError(
                f"{option} needs discrete actions; those of {spec.name} are continuous"
            )
    if all_actions and settings.objective == "clipped":
        raise config.SettingsError(
            "--objective clipped needs --critic sampled or expected-bonus: all-actions follows the "
            "natural gradient of every action"
        )
    if isinstance(spec.actions, MultiDiscrete):
        n = math.prod(spec.actions.sizes)
        if all_actions and n > MAX_JOINT:
            raise config.SettingsError(
                f"--critic all-actions numbers all combinations of choices, up to {MAX_JOINT}; "
                f"{spec.name} has {n:,}: choose --critic expected-bonus"
            )
        if has_limit and not all_actions:
            raise config.SettingsError(
                f"--max-logit-gap needs one discrete action; {spec.name} has several factors"
            )
    return make_action_dist(spec.actions, joint=all_actions)


def make_risk(
    settings: config.Seeking | config.LocalSeeking | config.Neutral | config.Optimist,
) -> Risk:
    """Return the attitude to risk."""
    match settings:
        case config.Seeking(learn_tau=True):
            return risks.risk_seeking()
        case config.Seeking():
            return risks.frozen(risks.risk_seeking())
        case config.LocalSeeking(tau_min=tau_min, learn_tau=True):
            return risks.local_risk_seeking(tau_min)
        case config.LocalSeeking(tau_min=tau_min):
            return risks.frozen(risks.local_risk_seeking(tau_min))
        case config.Neutral(alpha):
            return risks.risk_neutral(alpha)
        case config.Optimist(mu, alpha):
            return risks.simple_optimism(mu, alpha)


def make_normaliser(
    settings: config.ActorCritic | config.BootDQN, spec: Spec, normalisation: config.Normalise
) -> Normaliser:
    """Return the normaliser of observations and rewards."""
    if isinstance(spec.observations, PackedSpace):
        pixels, numbers = packed.count_entries(spec.observations)
        vectors = spec._replace(observations=Box((numbers,)))
        return normalise.beside_images(make_normaliser(settings, vectors, normalisation), pixels)
    is_bytes = isinstance(spec.observations, Box) and spec.observations.is_bytes
    # Credits for early ends depend on the lengths of episodes, which a running normaliser records.
    needs_lengths = isinstance(settings, config.ActorCritic) and settings.credit_early_ends
    if normalisation == config.NO_NORMALISATION and not is_bytes and not needs_lengths:
        return normalise.identity()
    return normalise.running(
        spec.observations,
        spec.envs,
        settings.gamma,
        normalisation.normalise,
        normalisation.scale_rewards,
        normalisation.clip_rewards,
    )


class Networks(NamedTuple):
    """The network architecture for an observation space; heads are made by number of outputs."""

    torso: heads.Torso
    policy: Callable[[int], heads.Head]
    value: Callable[[int], heads.Head]
    shared_head: Callable[[int], heads.Head]  # of reward members, on the shared features
    separate_head: Callable[[int], heads.Head]  # of the estimator, with parameters of its own
    prior: Callable[[int, float], layers.Net]  # outputs, standard deviation -> random function
    # Whether all parameters are trained by gradient descent at a rate per visit. If not, rows of
    # heads are, and Adam trains the rest.
    per_visit: bool
    is_table: bool = False  # every observation has its own rows in all heads
    is_image: bool = False  # the members of an ensemble are linear in the pixels of small images


def make_networks(settings: config.ActorCritic, observations: Space) -> Networks:
    """Return the networks for an observation space: tables, MLPs or convolutional networks."""
    is_mlp = settings.network == "mlp" and settings.torso is None
    match observations:
        case Discrete() if is_mlp:
            return per_visit_networks(settings, observations)
        case Box(shape) if is_mlp and len(shape) < 3:
            return per_visit_networks(settings, observations)
        case Discrete(n):
            return table_networks(settings, n)
        case Box(shape) if settings.torso is None and layers.is_large_image(observations):
            return image_networks(settings, shape)
        case Box(shape):
            make_net = layers.conv_net if len(shape) == 3 else layers.mlp
            return adam_networks(settings, shape, partial(make_net, shape))
        case PackedSpace():
            shape = (sum(packed.count_entries(observations)),)
            entries = packed.stacked_boxes(observations)
            return adam_networks(settings, shape, partial(layers.combined_net, entries))


def per_visit_networks(settings: config.ActorCritic, observations: Space) -> Networks:
    """Return a separate MLP for each head, trained at a rate per visit, and a random network."""

    def mlp(hidden: tuple[int, ...], init_scale: float = 1.0) -> Callable[[int], heads.Head]:
        share = settings.upper_percent / 100
        return lambda outputs: heads.mirrored_mlp(observations, hidden, outputs, share, init_scale)

    estimator = mlp(settings.estimator_hidden)
    prior = lambda outputs, scale: heads.random_features(observations, PRIOR_WIDTH, outputs, scale)
    return Networks(
        torso=heads.no_torso(),
        policy=mlp(settings.hidden, LOGIT_SCALE),
        value=mlp(settings.hidden, settings.critic_init_scale),
        shared_head=estimator,
        separate_head=estimator,
        prior=prior,
        per_visit=True,
    )


def table_networks(settings: config.ActorCritic, n_states: int) -> Networks:
    """Return heads with a row for each integer observation, beside a shared torso."""
    if settings.torso is not None:
        raise config.SettingsError(
            "a custom torso needs observations that are arrays; these are integers"
        )
    torso = heads.row_torso(n_states, settings.hidden, row_scale=n_states**-0.5)
    head = lambda gain: lambda outputs: heads.row_head(n_states, torso.width, outputs, gain)
    return Networks(
        torso=torso,
        policy=head(HEAD_GAIN),
        value=head(HEAD_GAIN),
        shared_head=head(0.0),
        separate_head=lambda outputs: heads.table_head(n_states, outputs),
        prior=lambda outputs, scale: heads.random_table(n_states, outputs, scale),
        per_visit=False,
        is_table=True,
    )


def image_networks(settings: config.ActorCritic, shape: tuple[int, ...]) -> Networks:
    """Return heads on a convolutional torso that they share, as in the paper, trained by Adam."""
    net = layers.image_net(shape, settings.image_torso)
    torso, small = heads.dense_torso(net, shape), layers.image_net(shape, "small")
    head = lambda gain: lambda outputs: heads.linear_head(torso.width, outputs, gain)
    return Networks(
        torso=torso,
        policy=head(HEAD_GAIN),
        value=head(HEAD_GAIN),
        shared_head=head(0.0),
        separate_head=lambda outputs: heads.separate_head(small, shape, outputs, 0.0),
        prior=lambda outputs, scale: heads.random_net(small, shape, outputs, scale),
        per_visit=False,
        is_image=True,
    )


def adam_networks(
    settings: config.ActorCritic,
    shape: tuple[int, ...],
    make_net: Callable[[tuple[int, ...]], layers.Net],
) -> Networks:
    """Return networks on arrays trained by Adam; the policy's torso may be a custom flax module.

    make_net: widths of the hidden layers -> network on arrays [..., *shape].
    """
    hidden, custom = settings.hidden, settings.torso
    if isinstance(custom, config.NotStored):
        raise config.SettingsError(
            "the torso of this run is a Python object, which is not stored: resume it from Python"
        )
    net = make_net(hidden) if custom is None else layers.flax_net(custom, shape)
    torso = heads.dense_torso(net, shape)
    if custom is not None:
        sown = layers.flax_metrics(custom)
        torso = torso._replace(metrics=lambda dense, rows, obs: sown(dense, obs))
    return Networks(
        torso=torso,
        policy=lambda outputs: heads.linear_head(torso.width, outputs, HEAD_GAIN),
        value=lambda outputs: heads.separate_head(net, shape, outputs, HEAD_GAIN),
        shared_head=lambda outputs: heads.linear_head(torso.width, outputs, 0.0),
        separate_head=lambda outputs: heads.separate_head(net, shape, outputs, 0.0),
        prior=lambda outputs, scale: heads.random_net(make_net(hidden), shape, outputs, scale),
        per_visit=False,
    )


def make_uncertainty(
    settings: config.Estimator, spec: Spec, networks: Networks, n_actions: int
) -> Uncertainty:
    """Return the uncertainty estimator; SettingsError where it does not fit the observations."""
    match settings, spec.observations:
        case config.Ensemble(), _:
            return make_ensemble(settings, spec, networks, n_actions)
        case config.Rnd(), _ if not networks.is_table:
            outputs = settings.outputs * n_actions
            head, target = networks.separate_head(outputs), networks.prior(outputs, 1.0)
            return random_network_distillation(
                head, target, n_actions, settings.outputs, settings.sigma_scale
            )
        case config.HashedCounts(bits, scale), Box(shape) if len(shape) == 1:
            return hashed_counts(shape[0], n_actions, bits, scale)
        case config.BayesianLinear(), Box(shape) if len(shape) == 1:
            scales = (settings.prior_scale, settings.noise_variance, settings.sigma_scale)
            return bayesian_linear(shape[0], n_actions, settings.features, *scales)
        case config.Posterior(), Discrete(n):
            scales = (settings.prior_scale, settings.noise_variance, settings.sigma_scale)
            return posterior_ensemble(n, n_actions, settings.members, *scales)
        case config.Counts(), Discrete(n):
            return visit_counts(n, n_actions, settings.sigma_scale)
        case config.CustomEstimator(name, estimator), _:
            if not callable(estimator):
                raise config.SettingsError(
                    f"the estimator {name} is a Python object, which is not stored: "
                    "resume this run from Python"
                )
            return estimator(spec, n_actions)
    name = next(name for name, cls in config.UNCERTAINTIES.items() if isinstance(settings, cls))
    fitting = (
        "ensemble, posterior, counts, or with --network mlp rnd"
        if isinstance(spec.observations, Discrete)
        else "ensemble, rnd, or for vectors hashed or linear"
    )
    raise config.SettingsError(
        f"--uncertainty {name} does not fit the observations of {spec.name}: choose {fitting}"
    )


def make_ensemble(
    settings: config.Ensemble, spec: Spec, networks: Networks, n_actions: int
) -> Uncertainty:
    """Return the ensemble of reward heads."""
    if settings.shared_reward_heads and not networks.torso.width:
        raise config.SettingsError(
            "--shared-reward-heads needs --network table: with mlp no layers are shared"
        )
    outputs, shared = settings.members * n_actions, settings.shared_reward_heads
    make_head = networks.shared_head if shared else networks.separate_head
    head, prior = make_head(outputs), networks.prior(outputs, settings.prior_scale)
    on_features = networks.is_image and not shared
    if on_features:
        assert isinstance(spec.observations, Box)
        shape, frames = spec.observations.shape, spec.observations.frames
        n = math.prod(images.small_shape(shape, frames))
        head = heads.scaled_head(n, outputs, IMAGE_HEAD_GAIN)
        prior = images.linear_prior(n, outputs, settings.prior_scale * IMAGE_PRIOR)
    ensemble = reward_ensemble(
        head=head,
        prior=prior,
        n_states=cardinality(spec.observations) if networks.is_table else None,
        n_actions=n_actions,
        members=settings.members,
        prior_scale=settings.prior_scale,
        noise_variance=settings.noise_variance,
        sigma_scale=settings.sigma_scale,
    )
    if not on_features:
        return ensemble
    return images.on_small_images(ensemble, shape, frames)


def make_optimisers(
    settings: config.ActorCritic,
    parts: Parts,
    tau_rate: float | Array,
    tau_min: float | Array = 0.0,
    envs: int = 1,
) -> Optimisers:
    """Return the optimisers: gradient descent at a rate per visit, or Adam.

    Per visit: all of the networks of `per_visit_networks`, and the rows that each head has for each
    state. Adam: everything else.
    """
    rates = {
        "policy": settings.policy_rate,
        "value": settings.value_rate,
        "uncertainty": estimator_rate(settings.uncertainty),
    }
    widths = {name: getattr(parts, name).rows for name in ("torso", *rates)}
    steps = batch_size(settings, envs) * settings.rollout  # the loss is a mean over these
    tau, adam = optax.adam(tau_rate), optax.adam(settings.learning_rate, settings.b1, settings.b2)
    row_adam = tables.row_adam(settings.learning_rate, settings.b1, settings.b2)
    if parts.per_visit:
        per_step = {name: rate * steps for name, rate in rates.items()}
        rules: dict[str, Any] = {"torso": {}} | {
            name: dict.fromkeys(widths[name], tables.row_descent(rate))
            for name, rate in per_step.items()
        }
        # A custom estimator is not initialised for a rate per visit.
        is_custom = isinstance(settings.uncertainty, config.CustomEstimator)
        if is_custom:
            rules["uncertainty"] = dict.fromkeys(widths["uncertainty"], row_adam)
        upper_scale = {
            name: 1 / jnp.maximum(1.0, rate * settings.upper_percent / 100 * RELU_CORRELATION)
            for name, rate in per_step.items()
        }
        with_adam = ("uncertainty",) if is_custom else ()
        has_rows = bool(parts.policy.rows)
        return Optimisers(
            dense=per_visit_descent(per_step, upper_scale, with_adam, adam),
            log_tau=tau,
            tau_min=tau_min,
            rows=tables.make_store(rules, widths) if has_rows else tables.empty_store(widths),
            damping=lambda obs: {
                name: visit_damping(repeats(obs), rate) for name, rate in rates.items()
            },
        )
    rules = {
        name: dict.fromkeys(widths[name], tables.per_visit(rate, steps))
        for name, rate in rates.items()
    }
    rules["torso"] = {"first": row_adam}
    has_rows = bool(parts.torso.rows)
    return Optimisers(
        dense=optax.flatten(adam),
        log_tau=tau,
        tau_min=tau_min,
        rows=tables.make_store(rules, widths) if has_rows else tables.empty_store(widths),
        damping=lambda obs: dict.fromkeys(rates, jnp.ones(obs.shape[:2])),
    )


def estimator_rate(settings: config.Estimator) -> float | Array:
    """Return the rate per visit of an estimator's network or rows; 0 where nothing is trained."""
    match settings:
        case config.Ensemble():
            return settings.reward_rate
        case config.Rnd():
            return settings.predictor_rate
    return 0.0


def batch_size(settings: config.ActorCritic, envs: int) -> int:
    """Return the number of rollouts in an update."""
    if isinstance(settings.buffer, config.Replay):
        return settings.buffer.batch
    return -(-envs // -(-envs // (settings.buffer.minibatch or envs)))


def per_visit_descent(
    rates: dict[str, Any],
    upper_scale: dict[str, Any],
    with_adam: tuple[str, ...],
    adam: optax.GradientTransformation,
) -> optax.GradientTransformation:
    """Return gradient descent with a rate for each head.

    Above the first layer ("first") the rate is multiplied by `upper_scale`. The heads named in
    `with_adam` are trained by Adam instead.
    """

    def step(gradient: dict[str, Tree], state: Tree, params: Tree = None) -> tuple[Tree, Tree]:
        def scale(name: str, path: Any, g: Array) -> Array:
            if path[0].key == "first":
                return -rates[name] * g
            return -rates[name] * upper_scale[name] * g

        descent = {
            name: jax.tree_util.tree_map_with_path(partial(scale, name), gradient[name])
            for name in rates
            if name not in with_adam
        }
        results = {name: adam.update(gradient[name], state[name]) for name in with_adam}
        adam_steps = {name: result[0] for name, result in results.items()}
        return gradient | descent | adam_steps, {name: new for name, (_, new) in results.items()}

    init = lambda params: {name: adam.init(params[name]) for name in with_adam}
    return optax.GradientTransformation(init, step)


def repeats(obs: Array) -> Array:
    """Return how often each observation of a batch [B, T, ...] occurs in the batch [B, T].

    For arrays it is the sum of the squared cosines to all observations, where these are positive.
    """
    leading = obs.shape[:2]
    if jnp.issubdtype(obs.dtype, jnp.integer):
        flat = obs.reshape(-1)
        return jnp.sum(flat[:, None] == flat[None, :], axis=1).reshape(leading)
    flat = layers.on_sphere(obs.reshape(leading[0] * leading[1], -1))
    cosines = flat @ flat.T / flat.shape[1]
    return jnp.sum(jnp.square(jnp.maximum(cosines, 0.0)), axis=1).reshape(leading)


def visit_damping(repeats: Array, rate: float | Array) -> Array:
    """Return the weight `1 / (1 + (m - 1) rate)` of each of m visits to one observation in a batch.

    Together they then correct m rate / (1 + (m - 1) rate) of an error: never more than all of it.
    """
    return 1 / (1 + (repeats - 1) * jnp.minimum(rate, 1.0))


def make_boot_dqn(
    settings: config.BootDQN,
    spec: Spec,
    normalisation: config.Normalise = config.NO_NORMALISATION,
) -> Agent:
    """Return Bootstrapped DQN, with the same Adam for all layers."""
    if not isinstance(spec.actions, Discrete):
        raise config.SettingsError(
            f"boot-dqn needs discrete actions; those of {spec.name} are "
            + ("continuous" if isinstance(spec.actions, Box) else "products of several choices")
        )
    n_actions = spec.actions.n
    stored, spec = spec.observations, unpacked_spec(spec)
    adam = tables.row_adam(settings.learning_rate, settings.b1, settings.b2)
    make_net = lambda n_in: QNetwork(settings.members, settings.hidden, n_in, n_actions)
    match spec.observations:
        case Discrete(n):
            net, rule = make_net(n), with_target(adam, settings.target_period)
            store = tables.make_store(rule, net.members * net.hidden[0])
            first = lookup_layer(net, store, settings.target_period)
        case Box() as box:
            net = make_net(box.size)
            first = dense_layer(net)
        case PackedSpace() as several:
            net = make_net(sum(packed.count_entries(several)))
            first = dense_layer(net)
    normaliser = make_normaliser(settings, spec, normalisation)
    unpack = partial(packed.unpack, stored)
    return boot_dqn(settings, Members(net, first, adam, normaliser, stored, unpack))
