"""K-learning on 200 random MDPs in double precision, against loops, quadrature and autodiff."""

import jax
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from jax import numpy as jnp

from ersac.theory import klearning as kl
from ersac.theory import mdp as mdps
from ersac.theory.klearning import Beliefs
from ersac.theory.mdp import MDP, Dirichlet, MdpPosterior

TAUS = np.exp(np.linspace(-4, 4, 17))


def start_j_at(beliefs, taus):
    return jax.jit(jax.vmap(lambda b: jax.vmap(lambda tau: kl.start_j(b, tau))(jnp.asarray(taus))))(
        beliefs
    )


def test_k_values_equal_those_of_an_explicit_loop(problems, random_problems, batched):
    """[e-kpi] and [e-jstar], written as loops."""
    beliefs, policy, tau = problems
    of_policy, star = (
        batched(kl.k_values, beliefs, policy, tau),
        batched(kl.optimal_k_values, beliefs, tau),
    )
    reward, transition, _, sigma2, pi, taus = random_problems
    for i in range(len(taus)):
        j_policy, j_star = np.zeros(4), np.zeros(4)
        for layer in (2, 1, 0):
            optimistic = reward[i, layer] + sigma2[i, layer] / (2 * taus[i])
            k_policy = optimistic + np.einsum("saz,z->sa", transition[i, layer], j_policy)
            k_star = optimistic + np.einsum("saz,z->sa", transition[i, layer], j_star)
            j_policy = np.array(
                [
                    pi[i, layer, s] @ (k_policy[s] - taus[i] * np.log(pi[i, layer, s]))
                    for s in range(4)
                ]
            )
            j_star = taus[i] * scipy.special.logsumexp(k_star / taus[i], axis=-1)
            scale = np.abs(k_star).max()
            np.testing.assert_allclose(of_policy.q[i, layer], k_policy, atol=1e-13 * scale)
            np.testing.assert_allclose(of_policy.v[i, layer], j_policy, atol=1e-13 * scale)
            np.testing.assert_allclose(star.q[i, layer], k_star, atol=1e-13 * scale)
            np.testing.assert_allclose(star.v[i, layer], j_star, atol=1e-13 * scale)


def test_the_boltzmann_policy_attains_the_optimum(problems, batched):
    """`J^{pi*} = J*`, and its probabilities are `exp((K* - J*) / tau)` [e-k-policy]."""
    beliefs, _, tau = problems
    solution = batched(kl.solve_at, beliefs, tau)
    attained = batched(lambda b, s: kl.k_values(b, jnp.exp(s.log_policy), s.tau), beliefs, solution)
    scale = np.abs(solution.k).max()
    np.testing.assert_allclose(attained.v, solution.j, atol=1e-14 * scale)
    printed = np.exp((solution.k - solution.j[..., None]) / tau[:, None, None, None])
    np.testing.assert_allclose(jnp.exp(solution.log_policy), printed, atol=1e-10)


def test_no_policy_has_larger_values_than_the_optimal_ones(problems, batched):
    beliefs, policy, tau = problems
    gap = (
        batched(kl.optimal_k_values, beliefs, tau).v - batched(kl.k_values, beliefs, policy, tau).v
    )
    assert float(gap.min()) > 0


def test_the_gradient_is_zero_at_the_boltzmann_policy(problems, batched):
    beliefs, _, tau = problems

    def slope(b, tau):
        value = lambda logits: b.mdp.rho @ kl.k_values(b, jax.nn.softmax(logits), tau).v[0]
        return jax.grad(value)(kl.solve_at(b, tau).log_policy)

    assert float(jnp.abs(batched(slope, beliefs, tau)).max()) < 1e-11


def test_policy_values_are_optimistic_at_every_tau(problems):
    """`K^pi >= E Q^pi` and `J^pi >= E V^pi`, with exact right sides (layerwise independence)."""
    beliefs, policy, _ = problems

    def least(b, pi):
        neutral = mdps.policy_values(b.mdp, pi)
        optimistic = jax.vmap(lambda tau: kl.k_values(b, pi, tau))(jnp.asarray(TAUS))
        return jnp.min(optimistic.q - neutral.q[None]), jnp.min(optimistic.v - neutral.v[None])

    least_k, least_j = jax.jit(jax.vmap(least))(beliefs, policy)
    assert float(least_k.min()) > 0
    assert float(least_j.min()) > 0


def gaussian_posterior(problem) -> MdpPosterior:
    """Known transitions and Gaussian rewards, for which optimism is proven."""
    beliefs, _, _ = problem
    return MdpPosterior(
        beliefs.mdp.reward,
        beliefs.sigma2,
        jnp.asarray(1.0),
        beliefs.mdp.transition,
        beliefs.mdp.rho,
    )


def test_optimal_values_are_optimistic_at_every_tau(problems):
    """`K* >= E Q*` and `J* >= E V*` [ass-upper-bound], up to four standard errors of 500 draws."""

    def least(problem, key):
        samples = jax.vmap(lambda key: mdps.sample_mdp(key, gaussian_posterior(problem)))(
            jax.random.split(key, 500)
        )
        drawn = jax.vmap(mdps.optimal_values)(samples)
        star = jax.vmap(lambda tau: kl.optimal_k_values(problem[0], tau))(jnp.asarray(TAUS))
        room = lambda x: 4 * jnp.std(x, axis=0) / jnp.sqrt(500.0) + 1e-12
        over_k = jnp.min(star.q - (jnp.mean(drawn.q, axis=0) - room(drawn.q))[None])
        over_j = jnp.min(star.v - (jnp.mean(drawn.v, axis=0) - room(drawn.v))[None])
        rho = problem[0].mdp.rho
        return jnp.minimum(over_k, over_j), jnp.min(star.v[:, 0] @ rho) - rho @ jnp.mean(
            drawn.v[:, 0], axis=0
        )

    worst, slack = jax.jit(jax.vmap(least))(
        problems, jax.random.split(jax.random.key(0), len(problems[2]))
    )
    assert float(worst.min()) > 0
    assert float(slack.min()) > 0


def test_bandit_bounds_exceed_the_expected_maximum_by_quadrature(float64):
    """`E max` is integrated numerically: every tau bounds it, and tau* gives the tightest bound."""
    mean, std = np.array([0.3, -0.2, 0.0]), np.array([0.5, 1.0, 0.2])
    beliefs = Beliefs(
        MDP(jnp.asarray(mean)[None, None], jnp.zeros((1, 1, 3), jnp.int32), jnp.ones(1)),
        jnp.asarray(std**2)[None, None],
    )
    x = np.linspace(-8, 8, 20_001)
    below = np.prod(scipy.special.ndtr((x[:, None] - mean) / std), axis=1)
    expected_max = 8 - np.trapezoid(below, x)
    bounds = np.asarray(jax.vmap(lambda tau: kl.start_j(beliefs, tau))(jnp.asarray(TAUS)))
    assert (bounds > expected_max).all()
    assert (
        expected_max
        < float(jax.jit(lambda b: kl.start_j(b, kl.tau_star(b)))(beliefs))
        < bounds.min()
    )


def test_j_star_is_convex_in_tau(problems):
    """Second divided differences of `tau -> E J*` on a grid are positive, up to rounding."""
    taus = np.exp(np.linspace(-3, 3, 200))
    j = np.asarray(start_j_at(problems[0], taus))
    slopes = np.diff(j) / np.diff(taus)
    assert (np.diff(slopes) > -1e-10 * np.abs(slopes[:, 1:])).all()
    assert (np.diff(slopes) > 0).mean() > 0.99


def test_the_tau_derivative_is_that_of_the_envelope_theorem(problems, batched):
    """`d/dtau E J* = sum E H - sum E sigma2 / (2 tau^2)` at the Boltzmann policy."""
    beliefs, _, tau = problems
    by_autodiff = batched(jax.grad(kl.start_j, argnums=1), beliefs, tau)
    total_sigma2, total_entropy = batched(kl.boltzmann_terms, beliefs, tau)
    np.testing.assert_allclose(
        total_entropy - total_sigma2 / (2 * tau**2), by_autodiff, rtol=1e-9, atol=1e-9
    )


def test_tau_star_is_the_minimum(problems, batched):
    """Against SciPy's scalar minimiser and by its derivative; it lies in the bracket."""
    beliefs = problems[0]
    tau = np.asarray(batched(kl.tau_star, beliefs))
    low, trial, high = batched(kl.tau_bracket, beliefs)
    assert ((low <= tau) & (tau <= high) & (low <= trial) & (trial <= high)).all()
    slope = batched(
        lambda b, tau: (
            tau * jax.grad(kl.start_j, argnums=1)(b, tau) / (tau * kl.boltzmann_terms(b, tau)[1])
        ),
        beliefs,
        tau,
    )
    assert float(jnp.abs(slope).max()) < 1e-11
    start_j = jax.jit(kl.start_j)
    for i in range(0, len(tau), 10):
        one = jax.tree.map(lambda x, i=i: x[i], beliefs)
        value = lambda u, one=one: float(start_j(one, jnp.exp(u)))
        found = scipy.optimize.minimize_scalar(
            value, bounds=(-12, 6), method="bounded", options={"xatol": 1e-9}
        )
        assert np.log(tau[i]) == pytest.approx(found.x, abs=1e-5)
        assert float(start_j(one, tau[i])) <= found.fun + 1e-12


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1e3, 1e8])
def test_tau_star_is_exact_at_every_scale_of_sigma(problems, batched, scale):
    beliefs = problems[0]._replace(sigma2=scale * problems[0].sigma2)
    tau = batched(kl.tau_star, beliefs)
    total_sigma2, total_entropy = batched(kl.boltzmann_terms, beliefs, tau)
    np.testing.assert_allclose(2 * tau**2 * total_entropy, total_sigma2, rtol=1e-9)


def test_tau_star_in_single_precision_is_nearly_that_of_double(random_problems, batched):
    reward, transition, rho, sigma2, _, _ = random_problems
    double = Beliefs(MDP(*(jnp.asarray(x) for x in (reward, transition, rho))), jnp.asarray(sigma2))
    assert double.sigma2.dtype == jnp.float32
    single = np.asarray(batched(kl.tau_star, double))
    with jax.enable_x64(True):
        exact = np.asarray(
            batched(
                kl.tau_star,
                Beliefs(
                    MDP(*(jnp.asarray(x) for x in (reward, transition, rho))), jnp.asarray(sigma2)
                ),
            )
        )
    np.testing.assert_allclose(single, exact, rtol=1e-3)


def test_policies_do_not_depend_on_the_unit_of_rewards(problems, batched):
    """Rewards and sigma times c give values and tau* times c, and the same policy."""
    beliefs = problems[0]
    scaled = Beliefs(beliefs.mdp._replace(reward=7 * beliefs.mdp.reward), 49 * beliefs.sigma2)
    one, other = batched(kl.solve, beliefs), batched(kl.solve, scaled)
    np.testing.assert_allclose(other.tau, 7 * one.tau, rtol=1e-12)
    at = batched(kl.solve_at, scaled, 7 * one.tau)
    np.testing.assert_allclose(at.j, 7 * one.j, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(at.k, 7 * one.k, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(jnp.exp(at.log_policy), jnp.exp(one.log_policy), atol=1e-12)


def test_without_uncertainty_k_values_are_the_optimal_values(problems, batched):
    """With sigma = 0, `J* - V* <= tau L log A`, and tau* is zero, where both are equal."""
    beliefs = problems[0]._replace(sigma2=jnp.zeros_like(problems[0].sigma2))
    optimal = batched(mdps.optimal_values, beliefs.mdp)
    for tau in (1e-1, 1e-3, 1e-6):
        j = batched(lambda b, tau=tau: kl.optimal_k_values(b, jnp.asarray(tau)).v, beliefs)
        assert float((j - optimal.v).min()) > -1e-14
        assert float((j - optimal.v).max()) <= tau * 3 * np.log(3) + 1e-14
    solution = batched(kl.solve, beliefs)
    assert float(solution.tau.max()) < 1e-300
    np.testing.assert_allclose(solution.k, optimal.q, atol=1e-14)
    np.testing.assert_allclose(solution.j, optimal.v, atol=1e-14)
    np.testing.assert_array_equal(
        jnp.exp(solution.log_policy), batched(mdps.greedy_policy, optimal.q)
    )


def test_the_certainty_equivalent_is_between_mean_and_maximum(float64):
    """It decreases in tau, and is mu + sigma2 / (2 tau) for a Gaussian."""
    x = jnp.asarray(0.3 + 0.5 * scipy.special.ndtri((np.arange(200_000) + 0.5) / 200_000))
    for tau in (0.4, 1.0, 5.0):
        assert float(kl.certainty_equivalent(x, jnp.asarray(tau))) == pytest.approx(
            0.3 + 0.25 / (2 * tau), abs=1e-3
        )
    values = [float(kl.certainty_equivalent(x[::1000], jnp.asarray(tau))) for tau in TAUS]
    assert (np.diff(values) < 0).all()
    assert float(x[::1000].mean()) < values[-1] < values[0] < float(x.max())


def test_sigma2_bounded_is_a_variance_proxy_of_a_beta(float64):
    """`log E exp(z (X - E X)) <= z^2 sigma2 / 2` for Beta(a, b), tight if a = b."""
    rng = np.random.default_rng(0)
    counts = np.exp(rng.uniform(-4, 5, size=(300, 2)))
    counts[:100, 1] = counts[:100, 0]
    beliefs = MdpPosterior(
        jnp.zeros((1, 1, 300)),
        jnp.zeros((1, 1, 300)),
        jnp.asarray(1.0),
        Dirichlet(jnp.asarray(counts)[None, None]),
        jnp.ones(1),
    )
    sigma2 = np.asarray(kl.sigma2_bounded(beliefs, jnp.ones(1)))[0, 0]
    for (a, b), proxy in zip(counts, sigma2, strict=True):
        z = rng.uniform(-30, 30, size=20)
        log_mgf = np.log(scipy.special.hyp1f1(a, a + b, z)) - z * a / (a + b)
        assert (log_mgf <= z**2 * proxy / 2 + 1e-9).all()
    variance = counts[:, 0] * counts[:, 1] / (counts.sum(1) ** 2 * (counts.sum(1) + 1))
    assert (sigma2 >= variance - 1e-15).all()
    np.testing.assert_allclose(sigma2[:100], variance[:100], rtol=1e-12)


def draw_transitions(rng, concentration, draws):
    """Dirichlet rows [..., draws, L, S, A, S] from concentrations [..., L, S, A, S]."""
    gamma = rng.standard_gamma(np.repeat(concentration[..., None, :, :, :, :], draws, axis=-5))
    return gamma / gamma.sum(-1, keepdims=True)


def test_sigma2_bounded_implies_optimism(float64, batched):
    """[ass-upper-bound] with Dirichlet transitions and known |r| <= 1, on 200 random posteriors."""
    rng = np.random.default_rng(3)
    horizon, n_states, shape = 4, 3, (200, 4, 3, 2)
    reward, rho = rng.uniform(-1, 1, size=shape), np.full((200, n_states), 1 / n_states)
    concentration = rng.exponential(size=(*shape, n_states)) + 0.01
    repeated = lambda x: jnp.asarray(np.repeat(x[:, None], 100, axis=1))
    samples = MDP(
        repeated(reward), jnp.asarray(draw_transitions(rng, concentration, 100)), repeated(rho)
    )
    drawn = np.asarray(
        batched(jax.vmap(lambda mdp: mdps.start_value(mdp.rho, mdps.optimal_values(mdp))), samples)
    )

    def bound(reward, concentration, rho):
        phi = MdpPosterior(
            reward, jnp.zeros_like(reward), jnp.asarray(1.0), Dirichlet(concentration), rho
        )
        beliefs = Beliefs(
            mdps.mean_mdp(phi), kl.sigma2_bounded(phi, kl.bounded_span(horizon, reward.dtype))
        )
        return kl.start_j(beliefs, kl.tau_star(beliefs))

    bounds = np.asarray(batched(bound, *(jnp.asarray(x) for x in (reward, concentration, rho))))
    assert (bounds > drawn.mean(1) - 4 * drawn.std(1) / 10).all()


def test_the_constant_of_sigma2_bounded_is_one(float64):
    """`sigma2 = Var r + (L - l)^2 / (n + 1)`."""
    span = kl.bounded_span(4, jnp.dtype("float64"))
    np.testing.assert_array_equal(span, [6, 4, 2, 0])
    prior = mdps.random_prior(4, 3, 2)  # three outcomes with a count of one each
    np.testing.assert_allclose(
        kl.sigma2_bounded(prior, span)[:, 0, 0], 1 + np.array([9, 4, 1, 0]) / 4
    )


def test_sigma2_plug_in_is_the_variance_of_one_step(float64):
    """`Var(r + P . V)`, estimated from samples, with V the optimal values of the mean MDP."""
    rng = np.random.default_rng(2)
    shape = (3, 3, 2)
    beliefs = MdpPosterior(
        jnp.asarray(rng.normal(size=shape)),
        jnp.asarray(rng.exponential(size=shape)),
        jnp.asarray(1.0),
        Dirichlet(jnp.asarray(rng.exponential(size=(*shape, 3)))),
        jnp.ones(3) / 3,
    )
    next_value = np.vstack(
        [np.asarray(mdps.optimal_values(mdps.mean_mdp(beliefs)).v)[1:], np.zeros((1, 3))]
    )
    transition = draw_transitions(rng, np.asarray(beliefs.transition.concentration), 20_000)
    reward = rng.normal(beliefs.reward_mean, np.sqrt(beliefs.reward_var), size=(20_000, *shape))
    steps = reward + np.einsum("nlsaz,lz->nlsa", transition, next_value)
    np.testing.assert_allclose(kl.sigma2_plug_in(beliefs), steps.var(0), rtol=0.06)


def test_with_known_transitions_sigma2_is_the_reward_variance():
    prior = mdps.deep_sea_prior(mdps.deep_sea_mdp(4, 0), 0.1, 0.0, True)
    for sigma2 in (
        kl.sigma2_plug_in(prior),
        kl.sigma2_bounded(prior, kl.bounded_span(4, jnp.dtype("float32"))),
    ):
        np.testing.assert_array_equal(sigma2, prior.reward_var)


def test_sigma2_deterministic_is_zero_after_a_visit():
    mdp = mdps.deep_sea_mdp(3, 0)
    visits = jnp.zeros((3, 3, 2)).at[0, 0, 1].set(1)
    known = kl.sigma2_deterministic(mdps.deep_sea_prior(mdp, 0.1, 0.0, True), visits, jnp.ones(3))
    unknown = kl.sigma2_deterministic(
        mdps.deep_sea_prior(mdp, 0.1, 0.0, False), visits, jnp.ones(3)
    )
    assert float(known[0, 0, 1]) == float(unknown[0, 0, 1]) == 0
    assert float(known[1, 0, 1]) == pytest.approx(0.01)
    assert float(unknown[1, 0, 1]) == pytest.approx(0.01 + 0.25)


@pytest.mark.parametrize(
    ("sigma2", "message"),
    [
        (
            jnp.zeros((2, 2, 2)).at[1, 0, 1].set(-1),
            "layer 2 of 2, state 0, action 1: sigma2 is negative",
        ),
        (
            jnp.zeros((2, 2, 2)).at[0, 1, 0].set(jnp.nan),
            "layer 1 of 2, state 1, action 0: sigma2 is not finite",
        ),
        (jnp.zeros((3, 2, 2)), "layer 1: sigma2 has shape (3, 2, 2), the rewards (2, 2, 2)"),
    ],
)
def test_an_invalid_sigma2_is_a_one_line_error(sigma2, message):
    model = mdps.mean_mdp(mdps.random_prior(2, 2, 2))
    assert kl.check_beliefs(Beliefs(model, jnp.zeros((2, 2, 2)))).mdp is model
    with pytest.raises(ValueError) as error:  # noqa: PT011
        kl.check_beliefs(Beliefs(model, sigma2))
    assert str(error.value) == message
