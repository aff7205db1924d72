"""The comparisons of `ersac bench` by name, each a function from a plan to comparisons.

Other implementations run in processes of their own, with jax as installed: one device, and none of
ersac's settings.
"""

import os
from collections.abc import Callable
from functools import partial

from benchmarks import atari, growth, sampling, workloads
from benchmarks.measure import (
    Comparison,
    OnProgress,
    Plan,
    in_subprocess,
    measure_paces,
    warm_up,
)

KERNEL_DEPTH = 50  # neither side depends on it much


def against_actor_critic(plan: Plan, on_progress: OnProgress) -> list[Comparison]:
    """ersac with one seed, and with many on all cores, against bsuite's JAX actor-critic."""
    comparisons = []
    for depth in (50,) if plan.quick else (20, 50, 100):
        makers = {
            "one_seed": partial(workloads.ersac, depth),
            "bsuite": partial(in_subprocess, workloads.bsuite_actor_critic, depth),
            "many_seeds": partial(workloads.ersac, depth, plan.seeds),
        }
        paces = measure_paces(warm_up(makers, on_progress), plan, on_progress)
        for side, seeds in (("one_seed", "1 seed"), ("many_seeds", f"{plan.seeds} seeds")):
            comparisons.append(
                Comparison(
                    f"bsuite_actor_critic/depth_{depth}/{side}",
                    f"ersac, {seeds} / bsuite actor-critic (JAX), depth {depth}",
                    paces[side],
                    paces["bsuite"],
                )
            )
    return comparisons


def against_boot_dqn(plan: Plan, on_progress: OnProgress) -> list[Comparison]:
    """ersac, an actor-critic, against bsuite's JAX Bootstrapped DQN."""
    depth = 25 if plan.quick else 20  # already compiled by `growth`
    makers = {
        "ersac": partial(workloads.ersac, depth),
        "bsuite": partial(in_subprocess, workloads.bsuite_boot_dqn, depth),
    }
    paces = measure_paces(warm_up(makers, on_progress), plan, on_progress)
    name = f"bsuite_boot_dqn/depth_{depth}/one_seed"
    meaning = f"ersac, 1 seed / bsuite boot_dqn (JAX), depth {depth}"
    return [Comparison(name, meaning, paces["ersac"], paces["bsuite"])]


def against_same_boot_dqn(plan: Plan, on_progress: OnProgress) -> list[Comparison]:
    """The two Bootstrapped DQNs with as many members, the same batch, one update per step."""
    depth = 20
    makers = {
        "ersac": partial(workloads.boot_dqn, depth),
        "bsuite": partial(in_subprocess, workloads.bsuite_boot_dqn_of_ten, depth),
    }
    paces = measure_paces(warm_up(makers, on_progress), plan, on_progress)
    meaning = f"ersac's boot-dqn / bsuite boot_dqn (JAX), 10 members, 1 seed, depth {depth}"
    return [Comparison(f"boot_dqn/depth_{depth}", meaning, paces["ersac"], paces["bsuite"])]


def against_dense(plan: Plan, on_progress: OnProgress) -> list[Comparison]:
    """ersac with tables against the same agent with one-hot inputs and dense optimisers."""
    comparisons = []
    for depth in (250,) if plan.quick else (25, 100, 250):
        makers = {
            "ersac": partial(workloads.ersac, depth, **workloads.TABLE),
            "dense": partial(in_subprocess, workloads.dense_ersac, depth),
        }
        paces = measure_paces(warm_up(makers, on_progress), plan, on_progress)
        meaning = f"ersac / the same agent with dense one-hot layers, depth {depth}"
        comparisons.append(
            Comparison(f"dense/depth_{depth}", meaning, paces["ersac"], paces["dense"])
        )
    return comparisons


def against_kernel(plan: Plan, on_progress: OnProgress) -> list[Comparison]:
    """ersac against the hand-written kernel, both on the same single core."""
    core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    depth = KERNEL_DEPTH
    counts = (1,) if plan.quick else (1, plan.seeds)
    makers = {
        f"seeds {count}": partial(in_subprocess, workloads.ersac_on_core, core, depth, count)
        for count in counts
    }
    makers["numba"] = partial(in_subprocess, workloads.kernel_on_core, core, depth)
    paces = measure_paces(warm_up(makers, on_progress), plan, on_progress)
    name = lambda count: "numba/one_seed" if count == 1 else f"numba/seeds_{count}"
    seeds = lambda count: "1 seed" if count == 1 else f"{count} seeds"
    meaning = lambda count: f"ersac, {seeds(count)} / numba kernel, one core, depth {depth}"
    return [
        Comparison(name(count), meaning(count), paces[f"seeds {count}"], paces["numba"])
        for count in counts
    ]


def against_sum_tree(plan: Plan, on_progress: OnProgress) -> list[Comparison]:
    """Prioritised sampling: the prefix sums of ersac's replay against a sum tree."""
    makers = {"ersac": sampling.prefix_sums, "tree": sampling.sum_tree}
    paces = measure_paces(warm_up(makers, on_progress), plan, on_progress)
    slots, batch = sampling.SLOTS, sampling.BATCH
    meaning = f"prefix sums / sum tree, {batch} draws and priority updates of {slots:,} slots"
    return [
        Comparison(f"sampling/slots_{slots}", meaning, paces["ersac"], paces["tree"], "rounds/s")
    ]


def against_random_actions(plan: Plan, on_progress: OnProgress) -> list[Comparison]:
    """Training on the host against stepping its environments with random actions."""
    makers = {
        "ersac": workloads.host_loop,
        "same": workloads.random_actions,
        "gymnasium": workloads.gymnasium_random_actions,
    }
    paces = measure_paces(warm_up(makers, on_progress), plan, on_progress)
    ersac = f"ersac on {workloads.HOST_ENVS} x gym:{workloads.HOST_ENV}"
    return [
        Comparison(
            "host/same_environments",
            f"{ersac} / the same environments with random actions",
            paces["ersac"],
            paces["same"],
        ),
        Comparison(
            "host/gymnasium_vector",
            f"{ersac} / Gymnasium's vector environment with random actions",
            paces["ersac"],
            paces["gymnasium"],
        ),
    ]


SUITE: dict[str, Callable[[Plan, OnProgress], list[Comparison]]] = {
    "bsuite_actor_critic": against_actor_critic,
    "bsuite_boot_dqn": against_boot_dqn,
    "boot_dqn": against_same_boot_dqn,
    "dense": against_dense,
    "numba": against_kernel,
    "growth": growth.measure_growth,
    "sampling": against_sum_tree,
    "host": against_random_actions,
    "atari": atari.measure_atari,
}

TARGETS: dict[str, float] = {  # the least ratio that is promised
    "bsuite_actor_critic/depth_50/one_seed": 150,
    "bsuite_actor_critic/depth_50/many_seeds": 500,
    "dense/depth_100": 10,
    "dense/depth_250": 40,
    "numba/one_seed": 0.5,
    "growth/depth_250_over_25": 0.9,
    "boot_dqn/depth_20": 30,
    "host/gymnasium_vector": 0.6,
    "atari/together_over_slower": 0.6,
}
