"""The labels of the paper: its equations and results, its sections and its fifteen figures.

O'Donoghue, Efficient Exploration via Epistemic-Risk-Seeking Policy Optimization, ICML 2023. The
descriptions are ours.
"""

RESULTS = {
    "e-opt-qv": "optimal Q-values and values of a layered MDP",
    "e-bayes-regret": "cumulative Bayesian regret of an agent",
    "e-kpi": "risk-seeking values K and J of a policy",
    "e-jstar": "optimal J: a log-sum-exp of K",
    "e-k-policy": "the Boltzmann policy of the optimal K-values",
    "ass-upper-bound": "assumption: every tau gives an upper bound on the optimal value",
    "e-saddle": "the game: the policy maximises J, tau minimises it",
    "ass-strong-duality": "assumption: the order of maximum and minimum does not matter",
    "l-kl": "lemma: Dist is the suboptimality of a policy",
    "l-decomp": "lemma: regret is at most Dist plus Optimism",
    "t-main": "theorem: each player of the game minimises one part of the regret bound",
    "l-opt-regret": "lemma: the sum of Optimism grows like the square root of time",
    "c-basic": "corollary: the regret bound of K-learning",
    "e-pol-grad": "gradient of the game for the policy",
    "a-kac": "Algorithm 1, epistemic-risk-seeking actor-critic",
}
SECTIONS = {
    "s-intro": "introduction",
    "s-preliminaries": "preliminaries",
    "s-regret": "regret",
    "s-off-policy": "off-policy data",
    "s-proofs": "proofs",
    "s-app-DeepSea": "DeepSea, further results",
    "app-atari": "Atari, results by game",
    "s-future-work": "future work",
}
FIGURES_OF_PAPER = {  # in the order of the paper
    "f-DeepSea_solved_v_boot_dqn": "episodes until solved against depth, four agents",
    "f-solve_time_v_depth": "the law of the solve time",
    "f-replay_v_no_replay": "with and without replay, on logarithmic axes",
    "f-depth_100_kimpala_100_seeds": "learning curves at depth 100",
    "f-atari_human_normalized_median": "median human-normalised score over 57 Atari games",
    "f-DeepSea": "the DeepSea environment, a diagram",
    "f-robustness_lambda": "other values of lambda",
    "f-robustness_rollout": "other rollout lengths",
    "f-robustness_tau": "tau learned and tau fixed",
    "f-depth_250": "learning curve at depth 250",
    "f-replay_v_no_replay_not_log": "with and without replay, on linear axes",
    "f-replay_noise_v_no_noise": "replay with and without stored noise",
    "f-solve_time_v_depth_kimpala": "the law of the solve time with replay",
    "f-atari_hard_exp": "seven Atari games that are hard to explore",
    "f-atari_all_games": "every one of 57 Atari games",
}
