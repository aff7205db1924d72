"""What is measured: comparisons by name, each a function from a plan to findings.

Whoever is not ours lives in a process of its own, where jax is as it comes: one device, and nothing of our settings.
"""

import os
from collections.abc import Callable
from functools import partial

from benchmarks import contestants, growth, sampling
from benchmarks.measure import Finding, Plan, Tell, alternate, prepared, resident

LIMIT_DEPTH = 50  # at which ours meets the kernel; neither depends on it much


def against_bsuite(plan: Plan, tell: Tell) -> list[Finding]:
    """Ours against bsuite's JAX actor-critic: one seed against one, and ours with many seeds on all cores."""
    found = []
    for depth in (50,) if plan.quick else (20, 50, 100):
        makers = {
            "one_seed": partial(contestants.ours, depth),
            "bsuite": partial(resident, contestants.bsuite_actor_critic, depth),
            "many_seeds": partial(contestants.ours, depth, plan.seeds),
        }
        paces = alternate(prepared(makers, tell), plan, tell)
        whose = f"bsuite's JAX actor-critic, depth {depth}"
        for name, seeds in (("one_seed", "one seed"), ("many_seeds", f"{plan.seeds} seeds")):
            found.append(
                Finding(
                    f"bsuite_actor_critic/depth_{depth}/{name}",
                    f"{seeds} of ours / {whose}",
                    paces[name],
                    paces["bsuite"],
                )
            )
    return found


def against_boot_dqn(plan: Plan, tell: Tell) -> list[Finding]:
    """Ours, the actor-critic, against bsuite's JAX Bootstrapped DQN."""
    depth = 25 if plan.quick else 20  # where growth has compiled ours already
    makers = {
        "ours": partial(contestants.ours, depth),
        "boot_dqn": partial(resident, contestants.bsuite_boot_dqn, depth),
    }
    paces = alternate(prepared(makers, tell), plan, tell)
    meaning = f"one seed of ours / bsuite's JAX boot_dqn, depth {depth}"
    return [
        Finding(
            f"bsuite_boot_dqn/depth_{depth}/one_seed", meaning, paces["ours"], paces["boot_dqn"]
        )
    ]


def against_same_boot_dqn(plan: Plan, tell: Tell) -> list[Finding]:
    """Our Bootstrapped DQN against bsuite's JAX one: as many members, the same batch, an update a step."""
    depth = 20
    makers = {
        "ours": partial(contestants.boot_dqn, depth),
        "bsuite": partial(resident, contestants.bsuite_boot_dqn_of_ten, depth),
    }
    paces = alternate(prepared(makers, tell), plan, tell)
    meaning = f"one seed of our boot-dqn / bsuite's JAX boot_dqn with ten members, depth {depth}"
    return [Finding(f"boot_dqn/depth_{depth}", meaning, paces["ours"], paces["bsuite"])]


def against_dense(plan: Plan, tell: Tell) -> list[Finding]:
    """Ours against the same learner with one-hot inputs and dense optimisers."""
    found = []
    for depth in (250,) if plan.quick else (25, 100, 250):
        makers = {
            "ours": partial(contestants.ours, depth),
            "dense": partial(resident, contestants.dense_ours, depth),
        }
        paces = alternate(prepared(makers, tell), plan, tell)
        meaning = f"ours / the same learner, dense, depth {depth}"
        found.append(Finding(f"dense/depth_{depth}", meaning, paces["ours"], paces["dense"]))
    return found


def against_kernel(plan: Plan, tell: Tell) -> list[Finding]:
    """Ours against the hand-written kernel, each with the same single core."""
    core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    depth = LIMIT_DEPTH
    counts = (1,) if plan.quick else (1, plan.seeds)
    makers = {
        f"seeds {count}": partial(resident, contestants.ours_on_core, core, depth, count)
        for count in counts
    }
    paces = alternate(
        prepared(
            makers | {"numba": partial(resident, contestants.kernel_on_core, core, depth)}, tell
        ),
        plan,
        tell,
    )
    name = lambda count: "numba/one_seed" if count == 1 else f"numba/seeds_{count}"
    meaning = lambda count: (
        f"{'one seed' if count == 1 else f'{count} seeds'} of ours / numba kernel, one core, depth {depth}"
    )
    return [
        Finding(name(count), meaning(count), paces[f"seeds {count}"], paces["numba"])
        for count in counts
    ]


def against_sum_tree(plan: Plan, tell: Tell) -> list[Finding]:
    """Drawing sixteen of ten thousand by priority and reweighting them: short running sums against a sum tree."""
    paces = alternate(
        prepared({"ours": sampling.short_sums, "tree": sampling.sum_tree}, tell), plan, tell
    )
    meaning = f"short running sums / sum tree, {sampling.BATCH} draws and new priorities among {sampling.SLOTS:,}"
    return [
        Finding(
            f"sampling/slots_{sampling.SLOTS}", meaning, paces["ours"], paces["tree"], "rounds/s"
        )
    ]


def against_random_actions(plan: Plan, tell: Tell) -> list[Finding]:
    """The loop for environments on the host against what those environments can be stepped at."""
    makers = {
        "ours": contestants.host_loop,
        "same": contestants.random_actions,
        "gymnasium": contestants.gymnasium_random_actions,
    }
    paces = alternate(prepared(makers, tell), plan, tell)
    what = f"ersac on {contestants.HOST_ENVS} x gym:{contestants.HOST_ENV}"
    return [
        Finding(
            "host/same_environments",
            f"{what} / the same, random actions",
            paces["ours"],
            paces["same"],
        ),
        Finding(
            "host/gymnasium_vector",
            f"{what} / Gymnasium's vector of them, random actions",
            paces["ours"],
            paces["gymnasium"],
        ),
    ]


SUITE: dict[str, Callable[[Plan, Tell], list[Finding]]] = {
    "bsuite_actor_critic": against_bsuite,
    "bsuite_boot_dqn": against_boot_dqn,
    "boot_dqn": against_same_boot_dqn,
    "dense": against_dense,
    "numba": against_kernel,
    "growth": growth.measure,
    "sampling": against_sum_tree,
    "host": against_random_actions,
}

WANTED: dict[str, float] = {  # at least: what this library promises
    "bsuite_actor_critic/depth_50/one_seed": 150,
    "bsuite_actor_critic/depth_50/many_seeds": 500,
    "dense/depth_100": 10,
    "dense/depth_250": 40,
    "numba/one_seed": 0.5,
    "growth/depth_250_over_25": 0.9,
    "boot_dqn/depth_20": 30,
    "host/gymnasium_vector": 0.6,
}
