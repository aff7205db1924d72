"""Bootstrapped DQN with randomised priors (Osband et al. 2018), as in bsuite's TensorFlow agent.

Members are Q-networks that share a replay and nothing else. Each has a prior that is not trained, a
target network with the same prior, and a random mask of the transitions that it learns from. One
member, drawn for every episode, acts greedily, with its newest weights. After every step all
members learn from one batch; after a step in each of N environments, from N batches.

Where observations are arrays, the first layer is dense like the others, priors are networks, and
target weights are a copy (`dense_layer`). Where they are integers, bsuite multiplies by a one-hot
vector; here a row is looked up, so that a step costs the same at every depth (`lookup_layer`):

- The first layer of all members is a table of rows. Its Adam equals bsuite's, except that a row
  does not move by momentum while it is in no batch (see nets/tables.py).
- A prior is a fixed function of the state and evaluated once, before the first step.
- The target's rows are not copied. Each row stores how far it has moved since the target was last
  refreshed, and the target's row is the difference (`with_target`). The layers above are small and
  copied.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.agents.base import Agent, BehaviourPolicy, Metrics
from ersac.algorithm import replay
from ersac.algorithm.action_dist import mask_logits
from ersac.algorithm.normalise import Normaliser
from ersac.config import BootDQN
from ersac.envs.base import Box, Discrete, PackedSpace, Space
from ersac.nets.tables import RowInfo, Rule, Store
from ersac.types import Array, Key, Learner, Params, Rng, Trajectory, Tree


class Noise(NamedTuple):
    """What is drawn for each step."""

    mask: Array  # [..., K] bool         members that learn from it; stored in the replay
    reward: Array  # [..., K]            noise on each member's reward; [..., 1] without noise
    replay_bits: Array  # [..., B] uint32  random bits that choose the batch after this step


class Transition(NamedTuple):
    """Transitions in the replay; observations and rewards are raw.

    The ring has observations as `replay.Storage` packs them.
    """

    obs: Array  # [...]
    action: Array  # [...]
    reward: Array  # [..., K]   with each member's noise; [..., 1] without noise
    discount: Array  # [...]
    next_obs: Array  # [...]    valid only where discount > 0
    mask: Array  # [..., K] bool   members that learn from it


class ReplayMemory(NamedTuple):
    """The state of Bootstrapped DQN that no optimiser trains."""

    normaliser: Tree
    prior: Array  # [S, K A]      of all states; for arrays the priors' weights [n]
    target: Array  # [n]          the target's weights, without rows
    ring: Transition  # [N, ...]  the next transition overwrites the oldest
    added: Array  # []            transitions that were ever added


class QNetwork(NamedTuple):
    """The shape of the members; their weights, except for rows, are in one vector."""

    members: int
    hidden: tuple[int, ...]
    n_inputs: int  # states where observations are integers, else numbers in an observation
    n_actions: int

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the first bias, then of weights (outputs first) and bias of each next layer."""
        k, widths = self.members, (*self.hidden, self.n_actions)
        layers = [[(k, n_out, n_in), (k, 1, n_out)] for n_in, n_out in itertools.pairwise(widths)]
        return [(k, 1, self.hidden[0]), *itertools.chain.from_iterable(layers)]

    def split(self, dense: Array) -> list[Array]:
        """Split the vector into arrays of these shapes."""
        edges = [0, *itertools.accumulate(math.prod(shape) for shape in self.shapes)]
        return [
            dense[a:b].reshape(shape)
            for (a, b), shape in zip(itertools.pairwise(edges), self.shapes, strict=True)
        ]

    def by_member(self, rows: Array) -> Array:
        """Rows of states [B, K n] -> [K, B, n]."""
        return rows.reshape(len(rows), self.members, -1).swapaxes(0, 1)

    def by_state(self, arrays: Array) -> Array:
        """The inverse of `by_member`; by concatenation, because XLA transposes slowly."""
        return jnp.concatenate(list(arrays), axis=-1)


def q_values(layers: list[Array], first: Array) -> Array:
    """Return Q without priors [K, B, A] from the first layer before its bias [K, B, H].

    Arrays may be numpy's or JAX's.
    """
    bias, *above = layers
    x = first + bias
    for weights, bias in zip(above[::2], above[1::2], strict=True):
        x = (x * (x > 0)) @ weights.swapaxes(1, 2) + bias
    return x


def with_target(rule: Rule, period: int) -> Rule:
    """Return the rule with one more moment: how far a row has moved since the last refresh."""

    def step(moments: list[Array], gradient: Array, info: RowInfo) -> tuple[Array, list[Array]]:
        *inner, lag = moments
        step, inner = rule.step(inner, gradient, info)
        return step, [*inner, target_lag(lag, info.idle, info.time, period) + step]

    return Rule(rule.moments + 1, step)


def target_lag(lag: Array, idle: Array, time: Array, period: int) -> Array:
    """Return how far rows have moved since the last refresh of the target, before update `time`.

    It is the stored lag, or 0 if the last update of the row was before the refresh.
    """
    since_refresh = time % period + 1  # updates, see `is_refresh`
    return jnp.where(idle < since_refresh, lag, 0)


def is_refresh(time: Array, period: int) -> Array:
    """Return whether the target is refreshed after update `time`, counted from one as here.

    bsuite counts from two.
    """
    return (time + 1) % period == 0


Select = Callable[[Tree], Tree]  # arrays of all members [K, ...] -> those of some members


def all_members(tree: Tree) -> Tree:
    """Select all members."""
    return tree


class FirstLayer(NamedTuple):
    """The members' first layer: a table of rows, or dense weights in the vector with all others.

    `rows` are the table's rows of a batch, [K, B, H]; () where there is no table.
    """

    pack: Callable[[Any, Any], Params]  # first weights [D, K H], vector of the others -> params
    pack_prior: Callable[[float, Any, Any], Any]  # scale, the same of priors -> ReplayMemory.prior
    split: Callable[[Array], list[Array]]  # vector -> arrays [K, ...]
    look_up: Callable[[Tree, Array], Tree]  # table, obs [B, ...] -> rows
    look_up_target: Callable[[Tree, Array, Array], Tree]  # table, time, obs -> the target's rows
    q: Callable[[list[Array], Tree, Array], Array]  # arrays, rows, obs -> [K, B, A]
    prior: Callable[[Array, Array, Select], Array]  # ReplayMemory.prior, obs, select -> [K, B, A]
    update: Callable[[Tree, Array, Array, Tree], Tree]  # table, time, obs, gradient -> table


class Members(NamedTuple):
    """The components of Bootstrapped DQN."""

    net: QNetwork
    first: FirstLayer
    rule: Rule  # optimiser of the vector
    normaliser: Normaliser
    observations: Space  # as they are stored
    # stored observations -> (observations, mask of the allowed actions or None)
    unpack: Callable[[Array], tuple[Array, Array | None]] = lambda obs: (obs, None)


def lookup_layer(net: QNetwork, store: Store, period: int) -> FirstLayer:
    """Return the first layer for integers; the store's rule is `with_target` of that period."""

    def pack_prior(scale: float, first: Any, above: Any) -> Any:
        prior = scale * q_values(net.split(above), net.by_member(first))  # [K, S, A]
        return prior.swapaxes(0, 1).reshape(net.n_inputs, -1).astype(np.float32)

    def look_up_target(table: Array, time: Array, obs: Array) -> Array:
        rows, (*_, lag), idle = store.look_up_moments(table, time, obs)
        return net.by_member(rows - target_lag(lag, idle, time, period))

    def update(table: Array, time: Array, obs: Array, gradient: Array) -> Array:
        return store.update(table, time, obs, net.by_state(gradient))

    return FirstLayer(
        pack=lambda first, above: Params(above, store.pack(first)),
        pack_prior=pack_prior,
        split=net.split,
        look_up=lambda table, obs: net.by_member(store.look_up(table, obs)),
        look_up_target=look_up_target,
        q=lambda layers, rows, obs: q_values(layers, rows),
        prior=lambda prior, obs, select: select(net.by_member(prior[obs])),
        update=update,
    )


def dense_layer(net: QNetwork) -> FirstLayer:
    """Return the first layer for arrays; its weights [K, H, D] are the end of the vector."""
    shape = (net.members, net.hidden[0], net.n_inputs)
    size = math.prod(shape)

    def pack_prior(scale: float, first: Any, above: Any) -> Any:
        """Multiply the last weights by the scale: acting has no access to traced settings."""
        *below, weights, bias = net.split(above)
        scaled = (*below, (scale * weights).astype(np.float32), bias)
        return join(first, np.concatenate([part.ravel() for part in scaled]))

    def join(first: Any, above: Any) -> Any:
        return np.concatenate([above, first.T.ravel()])

    def split(dense: Array) -> list[Array]:
        return [*net.split(dense[:-size]), dense[-size:].reshape(shape)]

    def q(layers: list[Array], rows: Tree, obs: Array) -> Array:
        *above, weights = layers
        return q_values(above, jnp.einsum("bd,khd->kbh", obs.reshape(len(obs), -1), weights))

    return FirstLayer(
        pack=lambda first, above: Params(join(first, above), ()),
        pack_prior=pack_prior,
        split=split,
        look_up=lambda table, obs: (),
        look_up_target=lambda table, time, obs: (),
        q=q,
        prior=lambda prior, obs, select: q(select(split(prior)), (), obs),
        update=lambda table, time, obs, gradient: table,
    )


def draw_member_noise(settings: BootDQN, key: Key, length: int) -> Noise:
    """Return the noise of T steps."""
    key_mask, key_reward, key_bits = jax.random.split(key, 3)
    mask = jax.random.bernoulli(key_mask, settings.mask_share, (length, settings.members))
    bits = jax.random.bits(key_bits, (length, settings.batch), jnp.uint32)
    if settings.noise_variance is None:
        return Noise(mask, jnp.zeros((length, 1)), bits)
    reward = jnp.sqrt(settings.noise_variance) * jax.random.normal(key_reward, mask.shape)
    return Noise(mask, reward, bits)


def transitions(batch: Trajectory) -> Transition:
    """Return the steps of trajectories [B, T] as transitions [B T]."""
    by_step = Transition(
        obs=batch.obs[:, :-1],
        action=batch.action,
        reward=batch.reward[..., None] + batch.noise.reward,
        discount=batch.discount,
        next_obs=batch.obs[:, 1:],
        mask=batch.noise.mask & (batch.mask[..., None] > 0),
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), by_step)


def add_and_sample(
    memory: ReplayMemory, new: Transition, bits: Array
) -> tuple[ReplayMemory, Transition]:
    """Add transitions [n] to the replay; then draw from it uniformly, with replacement.

    The ring is read before it is written: drawn transitions that are new are taken from `new`, and
    everything that was read is written back with the new ones. What is written then depends on what
    was read, so XLA knows their order and does not copy the ring at every step.

    bits: random bits, one number for each transition drawn.
    """
    ring, size = memory.ring, len(memory.ring.obs)
    # If there are more than slots, keep the last: two writes to a slot would have no fixed order.
    excess = max(len(new.obs) - size, 0)
    new = jax.tree.map(lambda leaf: leaf[excess:], new)
    added, count = memory.added + excess, len(new.obs)
    slots = (bits % jnp.minimum(added + count, size).astype(bits.dtype)).astype(added.dtype)
    offset = (slots - added) % size  # from the first slot that is written

    def take(ring: Array, new: Array) -> Array:
        is_new = (offset < len(new)).reshape(-1, *[1] * (new.ndim - 1))
        return jnp.where(is_new, new[jnp.minimum(offset, len(new) - 1)], ring[slots])

    new = jax.tree.map(lambda ring, leaf: leaf.astype(ring.dtype), ring, new)
    drawn = jax.tree.map(take, ring, new)
    index = jnp.concatenate([slots, (added + jnp.arange(count)) % size])
    ring = jax.tree.map(
        lambda ring, *parts: ring.at[index].set(jnp.concatenate(parts)), ring, drawn, new
    )
    return memory._replace(ring=ring, added=added + count), drawn


def td_loss(net: QNetwork, q: Array, target: Array, t: Transition) -> tuple[Array, Metrics]:
    """Return the mean masked squared error, and metrics.

    q: [K, B, A], with priors; target: [K, B].
    """
    value = jnp.sum(q * jax.nn.one_hot(t.action, net.n_actions)[None], axis=-1)  # [K, B]
    error = t.mask.T * (value - target)
    loss = jnp.mean(jnp.square(error))
    sigma2 = jnp.mean(jnp.var(value, axis=0))
    return loss, {"value": jnp.mean(value), "loss": loss, "sigma2": sigma2}


def take_step(
    settings: BootDQN, parts: Members, learner: Learner, t: Transition
) -> tuple[Learner, Metrics]:
    """Take one gradient step of every member on transitions [B]."""
    (net, first, rule, normaliser, *_), (params, log_tau, memory, opt) = parts, learner
    stats, time = memory.normaliser, opt["time"] + 1
    (obs, _), (next_obs, allowed) = parts.unpack(t.obs), parts.unpack(t.next_obs)
    obs, next_obs = normaliser.obs(stats, obs), normaliser.obs(stats, next_obs)

    # targets
    target_rows = first.look_up_target(params.rows, time, next_obs)
    next_q = first.q(first.split(memory.target), target_rows, next_obs)  # [K, B, A]
    next_prior = first.prior(memory.prior, next_obs, all_members)
    next_q = next_q + next_prior
    if allowed is not None:
        next_q = mask_logits(next_q, jnp.broadcast_to(allowed, next_q.shape))
    next_value = jnp.max(next_q, axis=-1)  # [K, B]
    reward = normaliser.reward(stats, t.reward).T  # [K, B]
    target = stop_gradient(reward + settings.gamma * t.discount[None] * next_value)

    # Before the replay has `least_replay` transitions the gradient is zero. The moments are zero
    # then, so nothing moves, and no large array has to be selected.
    is_ready = memory.added >= settings.least_replay
    prior = first.prior(memory.prior, obs, all_members)

    def loss(layers: list[Array], rows: Tree) -> tuple[Array, Metrics]:
        q = first.q(layers, rows, obs) + prior
        return jax.tree.map(lambda x: is_ready * x, td_loss(net, q, target, t))

    layers, rows = first.split(params.dense), first.look_up(params.rows, obs)
    gradients, metrics = jax.grad(loss, (0, 1), has_aux=True)(layers, rows)
    layer_gradients, row_gradient = gradients
    gradient = jnp.concatenate([part.reshape(-1) for part in layer_gradients])
    info = RowInfo(jnp.ones(()), jnp.ones(()), time)
    step, moments = rule.step(opt["dense"], gradient, info)
    dense = params.dense + step
    table = first.update(params.rows, time, obs, row_gradient)
    refresh = is_ready & is_refresh(time, settings.target_period)
    memory = memory._replace(target=jnp.where(refresh, dense, memory.target))
    opt = {"dense": moments, "time": opt["time"] + is_ready}
    return Learner(Params(dense, table), log_tau, memory, opt), metrics


def update_members(
    settings: BootDQN, parts: Members, learner: Learner, batch: Trajectory
) -> tuple[Learner, Array, Metrics]:
    """Add trajectories [N, T] to the replay, then take N gradient steps, each on its own batch.

    With T = 1 that is a gradient step per environment step, as in bsuite, for any N. All batches
    are drawn at once, so that the ring is read and written once.
    """
    n = len(batch.action)
    bits = batch.noise.replay_bits[:, 0].reshape(-1)
    pack, unpack = replay.storage_of(parts.observations)
    new = transitions(batch._replace(obs=pack(batch.obs)))
    memory, drawn = add_and_sample(learner.memory, new, bits)
    obs, next_obs = (unpack(stored, batch.obs.dtype) for stored in (drawn.obs, drawn.next_obs))
    drawn = drawn._replace(obs=obs, next_obs=next_obs)
    learner = learner._replace(memory=memory)
    step = partial(take_step, settings, parts)
    if n == 1:
        learner, metrics = step(learner, drawn)
        return learner, jnp.zeros(n), metrics
    batches = jax.tree.map(lambda x: x.reshape(n, -1, *x.shape[1:]), drawn)
    learner, metrics = jax.lax.scan(step, learner, batches)
    return learner, jnp.zeros(n), jax.tree.map(jnp.mean, metrics)


def init_boot_dqn(settings: BootDQN, parts: Members, rng: Rng) -> Learner:
    """Return the learner before the first step."""
    net, first, _, normaliser, observations, _ = parts
    params = first.pack(*init_weights(net, rng))
    prior = first.pack_prior(settings.prior_scale, *init_weights(net, rng))
    zeros = lambda shape, dtype: jnp.asarray(np.zeros(shape, dtype))
    slots = lambda dtype, *shape: zeros((settings.replay, *shape), dtype)
    dtype, shape = observation_form(observations)
    ring = Transition(
        obs=slots(dtype, *shape),
        action=slots(np.int32),
        reward=slots(np.float32, 1 if settings.noise_variance is None else net.members),
        discount=slots(np.float32),
        next_obs=slots(dtype, *shape),
        mask=slots(np.bool_, net.members),
    )
    memory = ReplayMemory(normaliser.init(), prior, params.dense, ring, zeros((), np.int32))
    moments = [zeros(params.dense.shape, np.float32) for _ in range(2)]
    opt = {"dense": moments, "time": zeros((), np.int32)}
    learner = Learner(params, zeros((), np.float32), memory, opt)  # tau is not used
    return jax.tree.map(jnp.asarray, learner)


def observation_form(observations: Space) -> tuple[type, tuple[int, ...]]:
    """Return the type and the shape of an observation in the replay."""
    match observations:
        case Discrete():
            return np.int32, ()
        case Box(stored_as="bits"):
            return np.uint8, (observations.stored_bytes,)
        case Box(shape, is_bytes, stored_as=stored_as):
            return np.uint8 if is_bytes or stored_as == "bytes" else np.float32, shape
        case PackedSpace():
            return np.uint8, observations.shape


def init_weights(net: QNetwork, rng: Rng) -> tuple[Any, Any]:
    """Return the members' first layer [D, K H] and the vector of all others, drawn as in bsuite."""
    bias, *layers = net.shapes
    above = [np.zeros(bias, np.float32)]
    for matrix, bias in zip(layers[::2], layers[1::2], strict=True):
        above += [truncated_normal(rng, matrix, matrix[-1]), np.zeros(bias, np.float32)]
    first = truncated_normal(rng, (net.n_inputs, net.members * net.hidden[0]), net.n_inputs)
    return first, np.concatenate([part.ravel() for part in above])


def truncated_normal(rng: Rng, shape: tuple[int, ...], n_in: int) -> np.ndarray:
    """Return normal draws, truncated at two standard deviations, times 1 / sqrt(n_in)."""
    draws = rng.standard_normal(shape, np.float32)
    while (far := np.abs(draws) > 2).any():
        draws[far] = rng.standard_normal(int(far.sum()), np.float32)
    return draws / np.float32(n_in) ** 0.5


def boot_dqn(settings: BootDQN, parts: Members) -> Agent:
    """Return the Bootstrapped DQN agent made of these parts."""
    net, first, _, normaliser, _, unpack = parts

    def action_values(learner: Learner, obs: Array, select: Select) -> Array:
        """Return Q at one observation, of the selected members [K, A]; that of allowed actions."""
        (dense, table), memory = learner.params, learner.memory
        obs, allowed = unpack(jnp.asarray(obs))
        obs = normaliser.obs(memory.normaliser, obs)[None]
        layers, rows = select((first.split(dense), first.look_up(table, obs)))
        q = (first.q(layers, rows, obs) + first.prior(memory.prior, obs, select))[:, 0]
        return q if allowed is None else mask_logits(q, jnp.broadcast_to(allowed, q.shape))

    def act(learner: Learner, member: Tree, obs: Array, uniform: Array) -> tuple[Array, Array]:
        """Return the greedy action of the episode's member, ties broken uniformly, and its Q."""
        select = lambda tree: jax.tree.map(lambda part: part[member][None], tree)
        q = action_values(learner, obs, select)[0]
        is_greedy = q == jnp.max(q)
        return jnp.argmax(jnp.cumsum(is_greedy) > uniform * jnp.sum(is_greedy)), q

    def log_mu(q: Array, action: Array) -> Array:
        """Return minus the logarithm of the number of greedy actions; infinite where q is NaN."""
        return -jnp.log(jnp.sum(q == jnp.max(q, axis=-1, keepdims=True), axis=-1))

    def mode(learner: Learner, member: Tree, obs: Array) -> Array:
        """Return the greedy action of the mean Q of all members."""
        return jnp.argmax(jnp.mean(action_values(learner, obs, all_members), axis=0))

    def actor_params(learner: Learner) -> Learner:
        """Return the learner without its replay, which is far larger than the rest."""
        memory = learner.memory._replace(target=(), ring=(), added=())
        return learner._replace(memory=memory, opt=())

    def observe(learner: Learner, t: Trajectory) -> Learner:
        t = t._replace(obs=unpack(t.obs)[0])
        stats = normaliser.observe(learner.memory.normaliser, t)
        return learner._replace(memory=learner.memory._replace(normaliser=stats))

    def sigma2(learner: Learner, obs: Array, action: Array) -> Array:
        return jnp.var(action_values(learner, obs, all_members)[:, action])

    policy = BehaviourPolicy(
        init_episode=lambda learner, key: jax.random.randint(key, (), 0, net.members),
        action_noise=lambda key, length: jax.random.uniform(key, (length,)),
        act=act,
        log_mu=log_mu,
        mode=mode,
        to_env=lambda action: action,
        actor_params=actor_params,
    )
    return Agent(
        init=lambda rng: init_boot_dqn(settings, parts, rng),
        policy=policy,
        noise=lambda key, length: draw_member_noise(settings, key, length),
        observe=observe,
        update=lambda learner, batch: update_members(settings, parts, learner, batch),
        sigma2=sigma2,
    )
