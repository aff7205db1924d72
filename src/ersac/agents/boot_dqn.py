"""Bootstrapped DQN with randomised priors (Osband et al. 2018), as bsuite's TensorFlow agent has it.

Members are Q-networks that share a replay and nothing else. Each has a prior that is never trained, a target net with the same prior,
and learns from its own random half of the transitions. One of them, drawn anew for every episode, acts greedily; it is an index,
so it goes on learning while it acts. After every step all of them learn from one batch.

Where bsuite multiplies by a one-hot observation, a row is looked up, and a step costs the same at every depth:

- The first layer of all members is a table of rows. Its Adam is lazy: that of bsuite exactly, but that a row does not drift on under
  its momentum while no batch holds it (see rows.py).
- A prior is a fixed function of the state, so it is evaluated once, before the first step.
- The target's rows are never copied. A row knows how far it has moved since the target was last refreshed; the target's row is the
  row without that (see `trailing`). What is above the first layer is small, and copied.
"""

import itertools
import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp
from jax.lax import stop_gradient

from ersac.agents.base import Agent
from ersac.config import BootDQN
from ersac.rows import Rule, Store, Touch
from ersac.types import Array, Key, Learner, Params, Rng, Trajectory, Tree


class Noise(NamedTuple):
    """What is drawn for each step: two things that are stored with it for ever, and one that is used at once."""

    mask: Array  # [..., K]      bool: which members learn from it
    reward: Array  # [..., K]    added to the reward that each member sees; [..., 1] where there is none
    lots: Array  # [..., B]      uint32: which transitions are replayed after it


class Transition(NamedTuple):
    """What is replayed, with leading axes for many."""

    obs: Array  # [...]
    action: Array  # [...]
    reward: Array  # [..., K]   with each member's noise; [..., 1] where there is none
    discount: Array  # [...]
    next_obs: Array  # [...]    trusted only where discount > 0
    mask: Array  # [..., K]     bool: which members learn from it


class Memory(NamedTuple):
    """What no optimiser sees."""

    prior: Array  # [S, K A]
    target: Array  # [n]            what is above the first layer, as it was when the target was last refreshed
    ring: Transition  # [N, ...]    the next transition goes where the oldest is
    added: Array  # []              transitions that were ever put into it


class Net(NamedTuple):
    """The members' shape: rows of `hidden[0]`, then dense layers, all of whose numbers stand in one vector."""

    members: int
    hidden: tuple[int, ...]
    n_states: int
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
        return [dense[a:b].reshape(shape) for (a, b), shape in zip(itertools.pairwise(edges), self.shapes, strict=True)]

    def by_member(self, of_states: Array) -> Array:
        """What states have [B, K n] as what members have [K, B, n]."""
        return of_states.reshape(len(of_states), self.members, -1).swapaxes(0, 1)

    def by_state(self, of_members: Array) -> Array:
        """The other way round; joined, because XLA transposes slowly."""
        return jnp.concatenate(list(of_members), axis=-1)


def q_values(layers: list[Array], first: Array) -> Array:
    """Q of every action [K, B, A] from the first layer's rows [K, B, H], priors not included; numpy and jax alike."""
    bias, *above = layers
    x = first + bias
    for weights, bias in zip(above[::2], above[1::2], strict=True):
        x = (x * (x > 0)) @ weights.swapaxes(1, 2) + bias
    return x


def trailing(rule: Rule, period: int) -> Rule:
    """A rule that remembers besides how far a row has moved since the target was last refreshed."""

    def step(moments: list[Array], gradient: Array, touch: Touch) -> tuple[Array, list[Array]]:
        *own, lag = moments
        step, own = rule.step(own, gradient, touch)
        return step, [*own, lag_now(lag, touch.idle, touch.time, period) + step]

    return Rule(rule.moments + 1, step)


def lag_now(lag: Array, idle: Array, time: Array, period: int) -> Array:
    """How far a row has moved since the target was refreshed, before update `time`: not at all if it was last touched before that."""
    since = time % period + 1  # updates since the one after which it was refreshed; see `refreshes`
    return jnp.where(idle < since, lag, 0)


def refreshes(time: Array, period: int) -> Array:
    """Whether the target is refreshed after update `time`, counted from one; bsuite counts from two."""
    return (time + 1) % period == 0


def drawn_noise(settings: BootDQN, key: Key, length: int) -> Noise:
    """The noise of `length` steps."""
    key_mask, key_reward, key_lots = jax.random.split(key, 3)
    mask = jax.random.bernoulli(key_mask, settings.mask_share, (length, settings.members))
    lots = jax.random.bits(key_lots, (length, settings.batch), jnp.uint32)
    if settings.noise_variance is None:
        return Noise(mask, jnp.zeros((length, 1)), lots)
    return Noise(mask, jnp.sqrt(settings.noise_variance) * jax.random.normal(key_reward, mask.shape), lots)


def transitions(batch: Trajectory) -> Transition:
    """The steps of a batch [B, T], in their order."""
    reward, mask = batch.reward[..., None] + batch.noise.reward, batch.noise.mask & (batch.mask[..., None] > 0)
    fresh = Transition(batch.obs[:, :-1], batch.action, reward, batch.discount, batch.obs[:, 1:], mask)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), fresh)


def remember(memory: Memory, fresh: Transition, lots: Array) -> tuple[Memory, Transition]:
    """Put new transitions [n] in the place of the oldest, then draw from all that are held, each as likely as another, with replacement.

    `lots`: random bits, a number for each that is drawn. The ring is read before it is written, what was drawn of the new ones is put in
    by hand, and all that was read is written back with them: so what is written depends on what was read, and XLA, which is then sure
    of the order, does not copy the ring at every step.
    """
    ring, added, new = memory.ring, memory.added, len(fresh.obs)
    size = len(ring.obs)
    chosen = (lots % jnp.minimum(added + new, size).astype(lots.dtype)).astype(added.dtype)
    after = (chosen - added) % size  # slots behind the first that is written

    def look(slots: Array, new: Array) -> Array:
        is_new = (after < len(new)).reshape(-1, *[1] * (new.ndim - 1))
        return jnp.where(is_new, new[jnp.minimum(after, len(new) - 1)], slots[chosen])

    fresh = jax.tree.map(lambda slots, new: new.astype(slots.dtype), ring, fresh)
    drawn = jax.tree.map(look, ring, fresh)
    index = jnp.concatenate([chosen, (added + jnp.arange(new)) % size])
    ring = jax.tree.map(lambda slots, *parts: slots.at[index].set(jnp.concatenate(parts)), ring, drawn, fresh)
    return memory._replace(ring=ring, added=added + new), drawn


def loss(net: Net, layers: list[Array], first: Array, prior: Array, target: Array, t: Transition) -> tuple[Array, dict[str, Array]]:
    """The mean over members and a batch of masked squared errors; `first`: [K, B, H], the rows of t.obs, `target`: [K, B]."""
    q = q_values(layers, first) + net.by_member(prior)  # [K, B, A]
    value = jnp.sum(q * jax.nn.one_hot(t.action, net.n_actions)[None], axis=-1)  # [K, B]
    error = t.mask.T * (value - target)
    total = jnp.mean(jnp.square(error))
    return total, {"value": jnp.mean(value), "loss": total, "sigma2": jnp.mean(jnp.var(value, axis=0))}


def update(
    settings: BootDQN, net: Net, rule: Rule, store: Store, learner: Learner, batch: Trajectory
) -> tuple[Learner, Array, dict[str, Array]]:
    """Remember a batch of trajectories [B, T], then take one step of every member on a batch of what is remembered."""
    params, log_tau, memory, opt = learner
    memory, t = remember(memory, transitions(batch), batch.noise.lots[0, 0])
    time = opt["time"] + 1

    # targets
    later, (*_, lag), idle = store.recall(params.rows, time, t.next_obs)
    later = later - lag_now(lag, idle, time, settings.target_period)
    q_later = q_values(net.cut(memory.target), net.by_member(later)) + net.by_member(memory.prior[t.next_obs])  # [K, B, A]
    target = stop_gradient(t.reward.T + settings.gamma * t.discount[None] * jnp.max(q_later, axis=-1))  # [K, B]

    # Before there is enough to learn from, the gradient is zero; as moments are zero then, nothing moves, and nothing large is selected.
    ready = memory.added >= settings.least_replay
    scaled = lambda layers, first: jax.tree.map(lambda x: ready * x, loss(net, layers, first, memory.prior[t.obs], target, t))
    rows = net.by_member(store.look_up(params.rows, t.obs))
    (gradients, row_gradient), metrics = jax.grad(scaled, (0, 1), has_aux=True)(net.cut(params.dense), rows)
    gradient = jnp.concatenate([part.reshape(-1) for part in gradients])
    step, moments = rule.step(opt["dense"], gradient, Touch(jnp.ones(()), jnp.ones(()), time))
    dense = params.dense + step
    tables = store.update(params.rows, time, t.obs, net.by_state(row_gradient))
    memory = memory._replace(target=jnp.where(ready & refreshes(time, settings.target_period), dense, memory.target))
    opt = {"dense": moments, "time": opt["time"] + ready}
    return Learner(Params(dense, tables), log_tau, memory, opt), jnp.zeros(len(batch.action)), metrics


def init(settings: BootDQN, net: Net, store: Store, rng: Rng) -> Learner:
    """A learner that has seen nothing."""
    first, dense = weights(net, rng)
    prior_first, prior_dense = weights(net, rng)
    prior = settings.prior_scale * q_values(net.cut(prior_dense), net.by_member(prior_first))  # [K, S, A]
    prior = prior.swapaxes(0, 1).reshape(net.n_states, -1).astype(np.float32)
    zeros = lambda shape, dtype: jnp.asarray(np.zeros(shape, dtype))
    slots = lambda dtype, *shape: zeros((settings.replay, *shape), dtype)
    ring = Transition(
        obs=slots(np.int32),
        action=slots(np.int32),
        reward=slots(np.float32, 1 if settings.noise_variance is None else net.members),
        discount=slots(np.float32),
        next_obs=slots(np.int32),
        mask=slots(np.bool_, net.members),
    )
    memory = Memory(jnp.asarray(prior), jnp.asarray(dense), ring, zeros((), np.int32))
    params = Params(jnp.asarray(dense), jnp.asarray(store.pack(first)))
    opt = {"dense": [zeros(dense.shape, np.float32) for _ in range(2)], "time": zeros((), np.int32)}
    return Learner(params, zeros((), np.float32), memory, opt)  # nobody plays tau


def weights(net: Net, rng: Rng) -> tuple[Any, Any]:
    """Every member's first layer [S, K H] and the vector of all above, as bsuite draws them."""
    bias, *layers = net.shapes
    above = [np.zeros(bias, np.float32)]
    for matrix, bias in zip(layers[::2], layers[1::2], strict=True):
        above += [truncated_normal(rng, matrix, matrix[-1]), np.zeros(bias, np.float32)]
    first = truncated_normal(rng, (net.n_states, net.members * net.hidden[0]), net.n_states)
    return first, np.concatenate([part.ravel() for part in above])


def truncated_normal(rng: Rng, shape: tuple[int, ...], n_in: int) -> np.ndarray:
    """Normal draws of standard deviation 1 / sqrt(n_in), those beyond two of them drawn again."""
    draws = rng.standard_normal(shape, np.float32)
    while (far := np.abs(draws) > 2).any():
        draws[far] = rng.standard_normal(int(far.sum()), np.float32)
    return draws / np.float32(n_in) ** 0.5


def boot_dqn(settings: BootDQN, net: Net, rule: Rule, store: Store) -> Agent:
    """The agent whose shape and optimisers are given."""

    def every(learner: Learner, obs: Array) -> Array:
        """Q of every member and action at one state [K, A]."""
        first = store.look_up(learner.params.rows, obs)[None]
        prior = learner.memory.prior[obs][None]
        return (q_values(net.cut(learner.params.dense), net.by_member(first)) + net.by_member(prior))[:, 0]

    def act(learner: Learner, head: Tree, obs: Array, uniform: Array) -> tuple[Array, Array]:
        """The best action of the member that acts, ties broken evenly."""
        layers = [part[head][None] for part in net.cut(learner.params.dense)]
        own = lambda of_state: of_state.reshape(net.members, -1)[head][None, None]
        q = (q_values(layers, own(store.look_up(learner.params.rows, obs))) + own(learner.memory.prior[obs]))[0, 0]
        best = q == jnp.max(q)
        return jnp.argmax(jnp.cumsum(best) > uniform * jnp.sum(best)), q

    return Agent(
        init=lambda rng: init(settings, net, store, rng),
        begin=lambda learner, key: jax.random.randint(key, (), 0, net.members),
        chance=lambda key, length: jax.random.uniform(key, (length,)),
        act=act,
        acting=lambda learner: learner._replace(opt=()),
        best=lambda learner, head, obs: jnp.argmax(jnp.mean(every(learner, obs), axis=0)),  # of all members together
        emit=lambda action: action,
        noise=lambda key, length: drawn_noise(settings, key, length),
        log_mu=lambda q, action: -jnp.log(jnp.sum(q == jnp.max(q, axis=-1, keepdims=True), axis=-1)),  # infinite where q is not a number
        observe=lambda learner, t: learner,
        update=lambda learner, batch: update(settings, net, rule, store, learner, batch),
        sigma2=lambda learner, obs, action: jnp.var(every(learner, obs)[:, action]),
    )
