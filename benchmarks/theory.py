"""The speed of exact K-learning solves of DeepSea 40, tau* included.

python benchmarks/theory.py
"""

import time

import jax
import numpy as np
from jax import numpy as jnp

from ersac.theory import klearning
from ersac.theory import mdp as mdps
from ersac.theory.klearning import Beliefs

DEPTH, SOLVES, REPEATS = 40, 1000, 3


def halfway_beliefs(seed: int) -> Beliefs:
    """Beliefs in which a random half of the rewards is known: the hardest case for tau*."""
    env_params = mdps.deep_sea_mdp(DEPTH, seed)
    known = jnp.asarray(np.random.default_rng(seed).random(env_params.reward.shape) < 0.5)
    return Beliefs(
        env_params._replace(reward=jnp.where(known, env_params.reward, 0)),
        jnp.where(known, 0, 0.01).astype(env_params.reward.dtype),
    )


def main() -> None:
    beliefs = jax.tree.map(
        lambda *x: jnp.stack(x), *[halfway_beliefs(seed) for seed in range(SOLVES)]
    )
    solve = jax.jit(jax.vmap(klearning.solve))
    start = time.perf_counter()
    solution = jax.block_until_ready(solve(beliefs))
    print(f"compiled and solved once in {time.perf_counter() - start:.2f} s")
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        solution = jax.block_until_ready(solve(beliefs))
        times.append(time.perf_counter() - start)
    terms = jax.jit(jax.vmap(klearning.boltzmann_terms))(beliefs, solution.tau)
    residual = np.abs(np.asarray(jnp.log(2 * solution.tau**2 * terms[1] / terms[0])))
    seconds = min(times)
    print(
        f"{SOLVES:,} exact K-learning solves of DeepSea {DEPTH}, tau* included: {seconds:.2f} s"
        f" ({1e3 * seconds / SOLVES:.2f} ms each)"
    )
    print(
        f"tau* from {solution.tau.min():.4f} to {solution.tau.max():.4f},"
        f" first-order condition met within {residual.max():.1e}"
    )


if __name__ == "__main__":
    main()
