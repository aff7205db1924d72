"""Bootstrapped DQN with randomised priors (Osband et al. 2018), as bsuite's TensorFlow agent has it.

Members are Q-networks that share a replay and nothing else. Each has a prior that is never trained, a target net with the same prior,
and learns from its own random half of the transitions. One of them, drawn anew for every episode, acts greedily; it is an index,
so it goes on learning while it acts. After every step all of them learn from one batch;
after a step in each of N environments, from N batches.

Where observations are arrays, the first layer is dense like the others, priors are networks,
and the target's weights are a copy (see `multiplied`). Where bsuite multiplies by a one-hot
observation, a row is looked up, and a step costs the same at every depth (see `looked_up`):

- The first layer of all members is a table of rows. Its Adam is lazy: that of bsuite exactly, but that a row does not drift on under
  its momentum while no batch holds it (see nets/tables.py).
- A prior is a fixed function of the state, so it is evaluated once, before the first step.
- The target's rows are never copied. A row knows how far it has moved since the target was last refreshed; the target's row is the
  row without that (see `trailing`). What is above the first layer is small, and copied.
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

from ersac.agents.base import Agent, BehaviourPolicy
from ersac.algorithm.normalise import Normaliser
from ersac.config import BootDQN
from ersac.envs.base import Box, Discrete, Space
from ersac.nets.tables import RowInfo, Rule, Store
from ersac.types import Array, Key, Learner, Params, Rng, Trajectory, Tree


class Noise(NamedTuple):
    """What is drawn for each step: two things that are stored with it for ever, and one that is used at once."""

    mask: Array  # [..., K]      bool: which members learn from it
    reward: (
        Array  # [..., K]    added to the reward that each member sees; [..., 1] where there is none
    )
    lots: Array  # [..., B]      uint32: which transitions are replayed after it


class Transition(NamedTuple):
    """What is replayed, with leading axes for many; observations and rewards are raw."""

    obs: Array  # [...]
    action: Array  # [...]
    reward: Array  # [..., K]   with each member's noise; [..., 1] where there is none
    discount: Array  # [...]
    next_obs: Array  # [...]    trusted only where discount > 0
    mask: Array  # [..., K]     bool: which members learn from it


class ReplayMemory(NamedTuple):
    """What no optimiser sees."""

    normaliser: Tree
    prior: Array  # [S, K A]        of every state; of arrays: the priors' weights [n]
    target: Array  # [n]            the weights as they were at the last refresh; no rows among them
    ring: Transition  # [N, ...]    the next transition goes where the oldest is
    added: Array  # []              transitions that were ever put into it


class QNetwork(NamedTuple):
    """The members' shape: a first layer, then dense ones, whose numbers all stand in one vector."""

    members: int
    hidden: tuple[int, ...]
    n_inputs: int  # states where observations are integers, else numbers in one
    n_actions: int

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the first bias, then of the weights and the bias of every layer above; outputs first, as their gradient comes."""
        k, widths = self.members, (*self.hidden, self.n_actions)
        layers = [[(k, n_out, n_in), (k, 1, n_out)] for n_in, n_out in itertools.pairwise(widths)]
        return [(k, 1, self.hidden[0]), *itertools.chain.from_iterable(layers)]

    def cut(self, dense: Array) -> list[Array]:
        """The vector as arrays of those shapes."""
        edges = [0, *itertools.accumulate(math.prod(shape) for shape in self.shapes)]
        return [
            dense[a:b].reshape(shape)
            for (a, b), shape in zip(itertools.pairwise(edges), self.shapes, strict=True)
        ]

    def by_member(self, of_states: Array) -> Array:
        """What states have [B, K n] as what members have [K, B, n]."""
        return of_states.reshape(len(of_states), self.members, -1).swapaxes(0, 1)

    def by_state(self, of_members: Array) -> Array:
        """The other way round; joined, because XLA transposes slowly."""
        return jnp.concatenate(list(of_members), axis=-1)


def q_values(layers: list[Array], first: Array) -> Array:
    """Q without priors [K, B, A] from the first layer before its bias [K, B, H]; numpy or jax."""
    bias, *above = layers
    x = first + bias
    for weights, bias in zip(above[::2], above[1::2], strict=True):
        x = (x * (x > 0)) @ weights.swapaxes(1, 2) + bias
    return x


def with_target(rule: Rule, period: int) -> Rule:
    """A rule that remembers besides how far a row has moved since the target was last refreshed."""

    def step(moments: list[Array], gradient: Array, info: RowInfo) -> tuple[Array, list[Array]]:
        *own, lag = moments
        step, own = rule.step(own, gradient, info)
        return step, [*own, lag_now(lag, info.idle, info.time, period) + step]

    return Rule(rule.moments + 1, step)


def lag_now(lag: Array, idle: Array, time: Array, period: int) -> Array:
    """How far a row has moved since the target was refreshed, before update `time`: not at all if it was last touched before that."""
    since = time % period + 1  # updates since the one after which it was refreshed; see `refreshes`
    return jnp.where(idle < since, lag, 0)


def refreshes(time: Array, period: int) -> Array:
    """Whether the target is refreshed after update `time`, counted from one; bsuite counts from two."""
    return (time + 1) % period == 0


Choose = Callable[[Tree], Tree]  # arrays of all members -> those of some of them


def everyone(tree: Tree) -> Tree:
    """All members."""
    return tree


class First(NamedTuple):
    """The members' first layer: a table of rows, or weights in the vector with all others.

    What is found in the table for observations is [K, B, H]; where there is no table, nothing is.
    """

    pack: Callable[[Any, Any], Params]  # first weights [D, K H], all above [n] -> parameters
    pack_prior: Callable[[float, Any, Any], Any]  # scale, the priors' weights -> Memory.prior
    cut: Callable[[Array], list[Array]]  # the vector -> its arrays [K, ...]
    look_up: Callable[[Tree, Array], Tree]  # table, obs [B, ...] -> what is found
    look_back: Callable[[Tree, Array, Array], Tree]  # table, time, obs -> what the target finds
    q: Callable[[list[Array], Tree, Array], Array]  # arrays, what is found, obs -> [K, B, A]
    prior: Callable[[Array, Array, Choose], Array]  # Memory.prior, obs, whose -> [K, B, A]
    move: Callable[[Tree, Array, Array, Tree], Tree]  # table, time, obs, gradient -> table


class Members(NamedTuple):
    """What the members are made of, and how they see."""

    net: QNetwork
    first: First
    rule: Rule  # which moves the vector
    normaliser: Normaliser  # through which the networks see
    observations: Space


def lookup_layer(net: QNetwork, store: Store, period: int) -> First:
    """The first layer for integers; the store's rule is `trailing` one of that period."""

    def pack_prior(scale: float, first: Any, above: Any) -> Any:
        prior = scale * q_values(net.cut(above), net.by_member(first))  # [K, S, A]
        return prior.swapaxes(0, 1).reshape(net.n_inputs, -1).astype(np.float32)

    def look_back(table: Array, time: Array, obs: Array) -> Array:
        rows, (*_, lag), idle = store.look_up_moments(table, time, obs)
        return net.by_member(rows - lag_now(lag, idle, time, period))

    def move(table: Array, time: Array, obs: Array, gradient: Array) -> Array:
        return store.update(table, time, obs, net.by_state(gradient))

    return First(
        pack=lambda first, above: Params(above, store.pack(first)),
        pack_prior=pack_prior,
        cut=net.cut,
        look_up=lambda table, obs: net.by_member(store.look_up(table, obs)),
        look_back=look_back,
        q=lambda layers, found, obs: q_values(layers, found),
        prior=lambda prior, obs, choose: choose(net.by_member(prior[obs])),
        move=move,
    )


def dense_layer(net: QNetwork) -> First:
    """The first layer for arrays, laid flat: its weights [K, H, D] are the end of the vector."""
    shape = (net.members, net.hidden[0], net.n_inputs)
    size = math.prod(shape)

    def pack_prior(scale: float, first: Any, above: Any) -> Any:
        """Who only acts is told no numbers: the scale is in the last weights; biases are zero."""
        *below, weights, bias = net.cut(above)
        scaled = (*below, (scale * weights).astype(np.float32), bias)
        return joined(first, np.concatenate([part.ravel() for part in scaled]))

    def joined(first: Any, above: Any) -> Any:
        return np.concatenate([above, first.T.ravel()])

    def cut(dense: Array) -> list[Array]:
        return [*net.cut(dense[:-size]), dense[-size:].reshape(shape)]

    def q(layers: list[Array], found: Tree, obs: Array) -> Array:
        *above, weights = layers
        return q_values(above, jnp.einsum("bd,khd->kbh", obs.reshape(len(obs), -1), weights))

    return First(
        pack=lambda first, above: Params(joined(first, above), ()),
        pack_prior=pack_prior,
        cut=cut,
        look_up=lambda table, obs: (),
        look_back=lambda table, time, obs: (),
        q=q,
        prior=lambda prior, obs, choose: q(choose(cut(prior)), (), obs),
        move=lambda table, time, obs, gradient: table,
    )


def draw_member_noise(settings: BootDQN, key: Key, length: int) -> Noise:
    """The noise of `length` steps."""
    key_mask, key_reward, key_lots = jax.random.split(key, 3)
    mask = jax.random.bernoulli(key_mask, settings.mask_share, (length, settings.members))
    lots = jax.random.bits(key_lots, (length, settings.batch), jnp.uint32)
    if settings.noise_variance is None:
        return Noise(mask, jnp.zeros((length, 1)), lots)
    return Noise(
        mask, jnp.sqrt(settings.noise_variance) * jax.random.normal(key_reward, mask.shape), lots
    )


def transitions(batch: Trajectory) -> Transition:
    """The steps of a batch [B, T], in their order."""
    reward, mask = (
        batch.reward[..., None] + batch.noise.reward,
        batch.noise.mask & (batch.mask[..., None] > 0),
    )
    fresh = Transition(
        batch.obs[:, :-1], batch.action, reward, batch.discount, batch.obs[:, 1:], mask
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), fresh)


def remember(
    memory: ReplayMemory, fresh: Transition, lots: Array
) -> tuple[ReplayMemory, Transition]:
    """Put new transitions [n] in the place of the oldest, then draw from all that are held, each as likely as another, with replacement.

    `lots`: random bits, a number for each that is drawn. The ring is read before it is written, what was drawn of the new ones is put in
    by hand, and all that was read is written back with them: so what is written depends on what was read, and XLA, which is then sure
    of the order, does not copy the ring at every step.
    """
    ring, size = memory.ring, len(memory.ring.obs)
    # Of more than fit only the last: two in one slot would be written in any order.
    excess = max(len(fresh.obs) - size, 0)
    fresh = jax.tree.map(lambda new: new[excess:], fresh)
    added, new = memory.added + excess, len(fresh.obs)
    chosen = (lots % jnp.minimum(added + new, size).astype(lots.dtype)).astype(added.dtype)
    after = (chosen - added) % size  # slots behind the first that is written

    def look(slots: Array, new: Array) -> Array:
        is_new = (after < len(new)).reshape(-1, *[1] * (new.ndim - 1))
        return jnp.where(is_new, new[jnp.minimum(after, len(new) - 1)], slots[chosen])

    fresh = jax.tree.map(lambda slots, new: new.astype(slots.dtype), ring, fresh)
    drawn = jax.tree.map(look, ring, fresh)
    index = jnp.concatenate([chosen, (added + jnp.arange(new)) % size])
    ring = jax.tree.map(
        lambda slots, *parts: slots.at[index].set(jnp.concatenate(parts)), ring, drawn, fresh
    )
    return memory._replace(ring=ring, added=added + new), drawn


def td_loss(
    net: QNetwork, q: Array, target: Array, t: Transition
) -> tuple[Array, dict[str, Array]]:
    """The mean of masked squared errors; `q`: [K, B, A], with priors, `target`: [K, B]."""
    value = jnp.sum(q * jax.nn.one_hot(t.action, net.n_actions)[None], axis=-1)  # [K, B]
    error = t.mask.T * (value - target)
    total = jnp.mean(jnp.square(error))
    return total, {
        "value": jnp.mean(value),
        "loss": total,
        "sigma2": jnp.mean(jnp.var(value, axis=0)),
    }


def descend(
    settings: BootDQN,
    parts: Members,
    learner: Learner,
    t: Transition,
) -> tuple[Learner, dict[str, Array]]:
    """One step of every member on a batch of transitions [B]."""
    (net, first, rule, normaliser, _), (params, log_tau, memory, opt) = parts, learner
    stats, time = memory.normaliser, opt["time"] + 1
    obs, next_obs = normaliser.obs(stats, t.obs), normaliser.obs(stats, t.next_obs)

    # targets
    later = first.look_back(params.rows, time, next_obs)
    q_later = first.q(first.cut(memory.target), later, next_obs)  # [K, B, A]
    best = jnp.max(q_later + first.prior(memory.prior, next_obs, everyone), axis=-1)  # [K, B]
    reward = normaliser.reward(stats, t.reward).T  # [K, B]
    target = stop_gradient(reward + settings.gamma * t.discount[None] * best)

    # Before there is enough to learn from, the gradient is zero; as moments are zero then,
    # nothing moves, and nothing large is selected.
    ready = memory.added >= settings.least_replay
    prior = first.prior(memory.prior, obs, everyone)

    def scaled(layers: list[Array], found: Tree) -> tuple[Array, dict[str, Array]]:
        q = first.q(layers, found, obs) + prior
        return jax.tree.map(lambda x: ready * x, td_loss(net, q, target, t))

    layers, found = first.cut(params.dense), first.look_up(params.rows, obs)
    gradients, metrics = jax.grad(scaled, (0, 1), has_aux=True)(layers, found)
    gradients, found_gradient = gradients
    gradient = jnp.concatenate([part.reshape(-1) for part in gradients])
    step, moments = rule.step(opt["dense"], gradient, RowInfo(jnp.ones(()), jnp.ones(()), time))
    dense = params.dense + step
    table = first.move(params.rows, time, obs, found_gradient)
    refresh = ready & refreshes(time, settings.target_period)
    memory = memory._replace(target=jnp.where(refresh, dense, memory.target))
    opt = {"dense": moments, "time": opt["time"] + ready}
    return Learner(Params(dense, table), log_tau, memory, opt), metrics


def update_members(
    settings: BootDQN,
    parts: Members,
    learner: Learner,
    batch: Trajectory,
) -> tuple[Learner, Array, dict[str, Array]]:
    """Remember trajectories [N, T], then take N steps, each on its own batch of what is remembered.

    That is a step for each step of an environment at T = 1, as in bsuite, however many there are.
    All batches are drawn at once, so that the ring is read and written once.
    """
    n = len(batch.action)
    lots = batch.noise.lots[:, 0].reshape(-1)
    memory, drawn = remember(learner.memory, transitions(batch), lots)
    learner = learner._replace(memory=memory)
    once = partial(descend, settings, parts)
    if n == 1:
        learner, metrics = once(learner, drawn)
        return learner, jnp.zeros(n), metrics
    batches = jax.tree.map(lambda x: x.reshape(n, -1, *x.shape[1:]), drawn)
    learner, metrics = jax.lax.scan(once, learner, batches)
    return learner, jnp.zeros(n), jax.tree.map(jnp.mean, metrics)


def init_boot_dqn(settings: BootDQN, parts: Members, rng: Rng) -> Learner:
    """A learner that has seen nothing."""
    net, first, _, normaliser, observations = parts
    params = first.pack(*weights(net, rng))
    prior = first.pack_prior(settings.prior_scale, *weights(net, rng))
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
    """The type and the shape of one observation in the replay buffer."""
    match observations:
        case Discrete():
            return np.int32, ()
        case Box(shape, is_bytes):
            return np.uint8 if is_bytes else np.float32, shape


def weights(net: QNetwork, rng: Rng) -> tuple[Any, Any]:
    """Every member's first layer [D, K H] and the vector of all above, as bsuite draws them."""
    bias, *layers = net.shapes
    above = [np.zeros(bias, np.float32)]
    for matrix, bias in zip(layers[::2], layers[1::2], strict=True):
        above += [truncated_normal(rng, matrix, matrix[-1]), np.zeros(bias, np.float32)]
    first = truncated_normal(rng, (net.n_inputs, net.members * net.hidden[0]), net.n_inputs)
    return first, np.concatenate([part.ravel() for part in above])


def truncated_normal(rng: Rng, shape: tuple[int, ...], n_in: int) -> np.ndarray:
    """Normal draws of standard deviation 1 / sqrt(n_in), those beyond two of them drawn again."""
    draws = rng.standard_normal(shape, np.float32)
    while (far := np.abs(draws) > 2).any():
        draws[far] = rng.standard_normal(int(far.sum()), np.float32)
    return draws / np.float32(n_in) ** 0.5


def boot_dqn(settings: BootDQN, parts: Members) -> Agent:
    """The agent whose shape, first layer, optimiser and lens are given."""
    net, first, _, normaliser, _ = parts

    def values(learner: Learner, obs: Array, choose: Choose) -> Array:
        """Q of every action at one observation, of some members [K, A]."""
        (dense, table), memory = learner.params, learner.memory
        obs = normaliser.obs(memory.normaliser, jnp.asarray(obs))[None]
        layers, found = choose((first.cut(dense), first.look_up(table, obs)))
        return (first.q(layers, found, obs) + first.prior(memory.prior, obs, choose))[:, 0]

    def act(learner: Learner, head: Tree, obs: Array, uniform: Array) -> tuple[Array, Array]:
        """The best action of the member that acts, ties broken evenly."""
        q = values(learner, obs, lambda tree: jax.tree.map(lambda part: part[head][None], tree))[0]
        best = q == jnp.max(q)
        return jnp.argmax(jnp.cumsum(best) > uniform * jnp.sum(best)), q

    def mode(learner: Learner, head: Tree, obs: Array) -> Array:
        """The best action of all members together."""
        return jnp.argmax(jnp.mean(values(learner, obs, everyone), axis=0))

    def actor_params(learner: Learner) -> Learner:
        """Without the replay buffer, which is far larger than all else."""
        memory = learner.memory._replace(target=(), ring=(), added=())
        return learner._replace(memory=memory, opt=())

    def observe(learner: Learner, t: Trajectory) -> Learner:
        stats = normaliser.observe(learner.memory.normaliser, t)
        return learner._replace(memory=learner.memory._replace(normaliser=stats))

    def log_mu(q: Array, action: Array) -> Array:
        """Ties have equal probability; infinite where q is not a number."""
        return -jnp.log(jnp.sum(q == jnp.max(q, axis=-1, keepdims=True), axis=-1))

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
        sigma2=lambda learner, obs, action: jnp.var(values(learner, obs, everyone)[:, action]),
    )
