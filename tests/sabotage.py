"""Does the suite see faults? One-line faults, each put into a copy of the source in turn; the tests named with it must then fail.

`make sabotage`, or `python tests/sabotage.py WORD ...` for the faults whose file or text has one of some words in it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent.parent
COPIED = ("src", "tests", "benchmarks", "docs", "README.md", "pyproject.toml")


class Fault(NamedTuple):
    """A line of the source as it is, as it would be wrong, and the test that ought to notice."""

    file: str  # below src/ersac
    old: str  # stands there exactly once
    new: str
    test: str  # below tests


FAULTS = [
    # the game
    Fault(
        "game.py",
        "+ bonus + weight * entropy",
        "+ bonus - weight * entropy",
        "test_gradient.py::test_expected_gradient_of_the_loss_is_the_gradient_of_the_game",
    ),
    Fault(
        "game.py", "log_pi_a * stop_gradient(advantage)", "log_pi_a * advantage", "test_risk.py::test_the_advantage_is_not_differentiated"
    ),
    Fault(
        "game.py",
        "return reward + bonus",
        "return reward - bonus",
        "test_gradient.py::test_expected_gradient_of_the_loss_is_the_gradient_of_the_game",
    ),
    Fault(
        "game.py", "return -jnp.sum(jnp.exp(log_pi)", "return jnp.sum(jnp.exp(log_pi)", "test_risk.py::test_entropy_is_positive_and_in_nats"
    ),
    Fault("risk.py", "sigma2 / (2 * tau), lambda tau: tau", "sigma2 / tau, lambda tau: tau", "test_risk.py::test_the_taus_of_the_paper"),
    Fault("risk.py", "mu * jnp.sqrt(sigma2)", "mu * sigma2", "test_risk.py::test_bonuses"),
    Fault(
        "risk.py",
        "risk.bonus(sigma2, stop_gradient(tau))",
        "risk.bonus(sigma2, tau)",
        "test_risk.py::test_tau_stays_still_where_nothing_depends_on_it",
    ),
    # returns
    Fault("returns.py", "return _discounted(rho * (reward", "return _discounted((reward", "test_returns.py::test_vtrace_is_its_double_sum"),
    Fault(
        "returns.py",
        "discount * value[1:] - value[:-1])",
        "discount * value[1:] - value[1:])",
        "test_returns.py::test_vtrace_is_its_double_sum",
    ),
    Fault(
        "returns.py",
        "lam * target[1:] + (1 - lam) * value[1:-1]",
        "lam * target[:-1] + (1 - lam) * value[1:-1]",
        "test_returns.py::test_targets_agree_with_rlax",
    ),
    Fault(
        "returns.py",
        "return Targets(error, reward + discount * following)",
        "return Targets(error, reward + entropy_bonus + discount * following)",
        "test_returns.py::test_entropy_of_later_steps_is_in_the_action_value_and_its_own_is_not",
    ),
    # rows and nets
    Fault(
        "rows.py",
        "first = b1**touch.idle * first",
        "first = b1 * first",
        "test_rows.py::test_momentum_does_not_move_rows_that_nobody_looks_at",
    ),
    Fault(
        "rows.py",
        "1 + (touch.occurrences - 1) * jnp.minimum(rate, 1.0)",
        "1 + touch.occurrences * jnp.minimum(rate, 1.0)",
        "test_rows.py::test_a_visit_corrects_its_share_of_a_squared_error",
    ),
    Fault(
        "rows.py",
        "ordered[1:] != ordered[:-1]",
        "ordered[1:] == ordered[:-1]",
        "test_rows.py::test_sparse_steps_are_dense_steps_where_there_is_no_momentum",
    ),
    Fault(
        "rows.py",
        "moved.append(old + step)",
        "moved.append(old - step)",
        "test_rows.py::test_sparse_steps_are_dense_steps_where_there_is_no_momentum",
    ),
    Fault(
        "nets.py",
        "return still + scale * (x - still)",
        "return scale * still + scale * (x - still)",
        "agents/test_actor_critic.py::test_the_weights_say_how_hard_a_loss_pulls_on_shared_layers_and_nothing_else",
    ),
    # Bootstrapped DQN
    Fault(
        "agents/boot_dqn.py",
        "idle < since",
        "idle <= since",
        "agents/test_boot_dqn.py::test_the_update_is_that_of_a_dense_agent_by_the_book",
    ),
    Fault(
        "agents/boot_dqn.py",
        "error = t.mask.T * (value - target)",
        "error = value - target",
        "agents/test_boot_dqn.py::test_the_update_is_that_of_a_dense_agent_by_the_book",
    ),
    Fault(
        "agents/boot_dqn.py",
        "jnp.minimum(added + new, size)",
        "jnp.minimum(added, size)",
        "agents/test_boot_dqn.py::test_what_is_replayed_is_drawn_evenly_from_what_is_held",
    ),
    Fault(
        "agents/boot_dqn.py",
        "randint(key, (), 0, net.members)",
        "randint(key, (), 1, net.members)",
        "agents/test_boot_dqn.py::test_every_member_is_as_likely_to_act",
    ),
    Fault(
        "agents/boot_dqn.py",
        "first.cut(known.target)",
        "first.cut(params.dense)",
        "agents/test_boot_dqn.py::test_on_vectors_the_update_is_the_books_with_momentum",
    ),
    Fault(
        "agents/boot_dqn.py",
        "batch.noise.lots[:, 0].reshape(-1)",
        "jnp.tile(batch.noise.lots[0, 0], n)",
        "agents/test_boot_dqn.py::test_environments_side_by_side_bring_a_gradient_step_each",
    ),
    # uncertainty
    Fault(
        "uncertainty/ensemble.py",
        "target = t.reward[:, None] + t.noise",
        "target = t.reward[:, None] + 0 * t.noise",
        "uncertainty/test_uncertainty.py::test_stored_noise_is_in_the_targets",
    ),
    Fault(
        "uncertainty/ensemble.py",
        "return stop_gradient(sigma_scale**2 * jnp.var(",
        "return (sigma_scale**2 * jnp.var(",
        "uncertainty/test_uncertainty.py::test_each_visit_shrinks_sigma_by_the_rate_and_other_pairs_keep_theirs",
    ),
    Fault(
        "uncertainty/counts.py",
        "add(t.mask.astype(count.dtype))",
        "add(1)",
        "uncertainty/test_uncertainty.py::test_counts_count_what_was_not_masked",
    ),
    Fault(
        "uncertainty/ensemble.py",
        "known / jnp.maximum(known + noise_variance, nets.TINY)",
        "known / jnp.maximum(known, nets.TINY)",
        "uncertainty/test_posterior.py::test_trained_members_are_samples_of_the_posterior_however_often_they_are_trained",
    ),
    Fault(
        "uncertainty/ensemble.py",
        "target = before + kept(",
        "target = kept(",
        "uncertainty/test_uncertainty.py::test_stored_noise_is_in_the_targets",
    ),
    Fault(
        "uncertainty/posterior.py",
        "prior_scale**2 * visits[pair] + noise_variance",
        "prior_scale**2 * visits[pair]",
        "uncertainty/test_posterior.py::test_members_in_closed_form_are_samples_of_the_posterior",
    ),
    Fault(
        "uncertainty/posterior.py",
        "prior_scale**2 * visits[pair] + noise_variance",
        "prior_scale**2 * believed.visits[pair] + noise_variance",
        "uncertainty/test_posterior.py::test_the_order_and_the_cut_of_visits_are_immaterial",
    ),
    Fault(
        "uncertainty/posterior.py",
        "t.reward[..., None] + t.noise - believed",
        "t.reward[..., None] - believed",
        "uncertainty/test_posterior.py::test_members_in_closed_form_are_samples_of_the_posterior",
    ),
    # what is kept, and what is drawn of it
    Fault(
        "feeds.py",
        "slots = (ring.pushed + jnp.arange(n)) % capacity",
        "slots = jnp.minimum(ring.pushed + jnp.arange(n), capacity - 1)",
        "test_feeds.py::test_the_ring_holds_the_last_rollouts_bit_for_bit",
    ),
    Fault(
        "feeds.py",
        "relative**exponent, 0.0",
        "relative, 0.0",
        "test_feeds.py::test_rollouts_are_drawn_in_proportion_to_a_power_of_their_priority",
    ),
    Fault(
        "feeds.py",
        "relative = ring.priority / jnp.max(ring.priority)",
        "relative = ring.priority",
        "test_feeds.py::test_rollouts_are_drawn_in_proportion_to_a_power_of_their_priority",
    ),
    Fault(
        "feeds.py",
        "jnp.minimum(sample(weights, key, batch), ring.pushed - 1)",
        "sample(weights, key, batch)",
        "test_feeds.py::test_rounding_draws_nothing_from_where_nothing_is",
    ),
    Fault(
        "feeds.py",
        "jnp.where(ring.pushed == 0, 1.0, jnp.max(ring.priority))",
        "1.0",
        "test_feeds.py::test_a_new_rollout_has_the_greatest_priority",
    ),
    Fault(
        "feeds.py",
        "set(priority + LEAST)",
        "set(priority)",
        "test_feeds.py::test_reweighting_changes_its_slots_and_no_others",
    ),
    Fault(
        "feeds.py",
        "update * batch + jnp.arange(batch)",
        "jnp.arange(batch)",
        "test_feeds.py::test_the_share_of_the_newest_is_that_of_all_updates_of_a_push",
    ),
    Fault(
        "feeds.py",
        "1 - offline_fraction - ROUNDING",
        "1 - offline_fraction",
        "test_feeds.py::test_the_newest_has_its_share_of_any_number_of_draws",
    ),
    Fault(
        "loops/learn.py",
        "agent.observe(learner, newest), feed",
        "learner, feed",
        "loops/test_learn.py::test_what_is_eaten_once_is_observed_and_learned_from",
    ),
    Fault(
        "loops/learn.py",
        "feed.reweight(food, slots, priority)), metrics",
        "food), metrics",
        "loops/test_learn.py::test_an_old_rollout_is_corrected_by_the_policy_now_over_the_one_it_was_acted_with",
    ),
    Fault(
        "loops/learn.py",
        "jax.random.fold_in(key, update)",
        "key",
        "loops/test_learn.py::test_every_update_draws_for_itself",
    ),
    Fault(
        "agents/actor_critic.py",
        "jnp.exp(log_pi_a - t.log_mu)",
        "jnp.exp(0 * log_pi_a)",
        "loops/test_learn.py::test_an_old_rollout_is_corrected_by_the_policy_now_over_the_one_it_was_acted_with",
    ),
    Fault(
        "agents/make.py",
        "steps = batch_size(settings, envs) * settings.rollout",
        "steps = settings.rollout",
        "uncertainty/test_posterior.py::test_trained_members_are_samples_of_the_posterior_however_often_they_are_trained",
    ),
    Fault(
        "config.py",
        "bisect.bisect(range(1, now + 1)",
        "bisect.bisect(range(2, now + 1)",
        "reliability/test_fuzz.py::test_as_much_is_kept_as_would_fit",
    ),
    # the critic of every action
    Fault(
        "returns.py", "jnp.append(lam * rho[1:], 0.0)", "jnp.append(lam * rho[:-1], 0.0)", "test_returns.py::test_retrace_is_its_double_sum"
    ),
    Fault(
        "returns.py",
        "delta = reward + discount * j[1:] - told",
        "delta = rho * (reward + discount * j[1:] - told)",
        "test_returns.py::test_retrace_is_its_double_sum",
    ),
    Fault(
        "agents/critics.py",
        "climb = solution - log_pi",
        "climb = solution",
        "agents/test_critics.py::test_the_natural_gradient_vanishes_at_the_boltzmann_policy",
    ),
    Fault(
        "agents/critics.py",
        "k = stop_gradient(v.bonuses + v.told)",
        "k = stop_gradient(v.told)",
        "agents/test_critics.py::test_what_was_never_done_has_its_bonus",
    ),
    Fault(
        "agents/critics.py",
        "j = jnp.sum(pi * k, axis=-1) + stop_gradient(v.weight) * entropy",
        "j = jnp.sum(pi * k, axis=-1)",
        "agents/test_critics.py::test_a_target_is_the_return_with_the_exact_entropies_and_bonuses_of_later_steps",
    ),
    Fault(
        "agents/critics.py",
        "(bonus + v.weight * entropy[:-1])",
        "(bonus - v.weight * entropy[:-1])",
        "agents/test_critics.py::test_tau_plays_against_the_mean_over_actions",
    ),
    # the environment
    Fault(
        "envs/deep_sea.py",
        "treasure = moves_right & (column == depth - 1)",
        "treasure = moves_right & (column == depth - 2)",
        "envs/test_deep_sea.py::test_ten_thousand_random_steps_are_bsuites",
    ),
    Fault(
        "envs/deep_sea.py",
        "strayed |= ~moves_right & (row == column)",
        "strayed |= ~moves_right",
        "envs/test_deep_sea.py::test_only_a_left_turn_on_the_diagonal_is_a_mistake",
    ),
    Fault(
        "envs/deep_sea.py", "<= 1 / depth", "<= 0 / depth", "envs/test_deep_sea.py::test_the_stochastic_sea_slips_and_pays_noise_as_bsuites"
    ),
    # the exact half
    Fault(
        "tabular/mdp.py",
        "gain * (observed - prior.reward_mean)",
        "gain * observed",
        "tabular/test_mdp.py::test_posterior_is_one_observation_after_another",
    ),
    Fault(
        "tabular/klearning.py",
        "beliefs.sigma2 / (2 * tau))",
        "beliefs.sigma2 / tau)",
        "tabular/test_klearning.py::test_k_values_are_those_of_the_loop",
    ),
    Fault(
        "tabular/saddle.py",
        "jnp.sqrt(total_sigma2 / (2 * total_entropy))",
        "jnp.sqrt(total_sigma2 / total_entropy)",
        "tabular/test_saddle.py::test_optimism_is_bonus_plus_entropy",
    ),
    Fault(
        "tabular/agents.py",
        "(1 - epsilon) * best + epsilon * mdps.uniform(best)",
        "(1 - epsilon) * best",
        "tabular/test_agents.py::test_epsilon_greedy_dithers",
    ),
    # verdicts and records
    Fault("study/verdicts.py", "found + RELIABLE_WINDOW - 1", "found + RELIABLE_WINDOW", "study/test_verdicts.py::test_by_hand"),
    Fault(
        "study/verdicts.py",
        "(failed < BSUITE_BAD_SHARE[stochastic] * episodes)",
        "(failed <= BSUITE_BAD_SHARE[stochastic] * episodes)",
        "study/test_verdicts.py::test_by_hand",
    ),
    Fault(
        "study/recorder.py",
        "self.recent[i] = recent[-window:]",
        "self.recent[i] = recent[:window]",
        "test_api.py::test_the_recorders_verdict_is_the_rules",
    ),
    Fault(
        "study/recorder.py",
        "np.concatenate(parts[place])[:count]",
        "np.concatenate(parts[place])",
        "test_api.py::test_train_returns_what_it_writes",
    ),
    Fault(
        "study/records.py",
        'settings_hash(settings) == told["hash"]',
        'bool(told["hash"])',
        "reliability/test_resume.py::test_damaged_settings_are_one_line",
    ),
    # disk and checkpoints
    Fault(
        "disk.py",
        "                OPS.fsync(handle)\n",
        "                pass\n",
        "reliability/test_disk.py::test_every_operation_may_be_the_last_before_a_crash",
    ),
    Fault(
        "disk.py",
        "            OPS.rename(partial, path)\n            OPS.sync_directory(path.parent)\n",
        "            OPS.rename(partial, path)\n",
        "reliability/test_disk.py::test_every_operation_may_be_the_last_before_a_crash",
    ),
    Fault(
        "disk.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        "reliability/test_disk.py::test_of_100_pairs_exactly_one_wins_and_the_other_is_told_who",
    ),
    Fault(
        "checkpoint.py",
        'if disk.digest(data) != manifest["sha256"]:',
        'if not manifest["sha256"]:',
        "reliability/test_checkpoint.py::test_1000_bit_flips",
    ),
    Fault(
        "checkpoint.py",
        "numbers(directory)[-KEPT:]",
        "numbers(directory)[:KEPT]",
        "reliability/test_disk.py::test_every_operation_may_be_the_last_before_a_crash",
    ),
    Fault(
        "study/keeper.py",
        "if changed and exact:",
        "if changed and not exact:",
        "reliability/test_resume.py::test_every_field_of_the_fingerprint_is_named",
    ),
    Fault(
        "study/keeper.py",
        "(ended - began) / COST_SHARE",
        "(ended - began) * COST_SHARE",
        "reliability/test_resume.py::test_checkpoints_cost_at_most_their_share",
    ),
    # settings, exits, commands
    Fault(
        "config.py",
        "(self.low < value if self.above else self.low <= value)",
        "(self.low <= value)",
        "reliability/test_fuzz.py::test_what_is_refused_is_what_must_be_and_says_why",
    ),
    Fault("exits.py", "return 128 + number", "return number", "reliability/test_exits.py::test_codes_are_fixed"),
    Fault(
        "study/trackers.py", 'row["step"] > heard.step', 'row["step"] >= heard.step', "study/test_trackers.py::test_trackers_show_the_facts"
    ),
    Fault(
        "study/export.py",
        "np.arange(1, len(facts.goals) + 1)",
        "np.arange(len(facts.goals))",
        "study/test_export.py::test_a_row_an_episode_whatever_became_of_other_runs",
    ),
    # the learner
    Fault(
        "agents/actor_critic.py",
        "optimisers.log_tau.update(-tau_gradient",
        "optimisers.log_tau.update(tau_gradient",
        "agents/test_actor_critic.py::test_tau_plays_against_the_policy",
    ),
    Fault(
        "agents/actor_critic.py",
        "stop_gradient(t.mask * jnp.minimum",
        "stop_gradient(jnp.minimum",
        "agents/test_actor_critic.py::test_masked_steps_teach_nothing",
    ),
    Fault(
        "agents/critics.py",
        "r_tau = game.optimistic_reward(rewards(settings, v), bonus)",
        "r_tau = v.t.reward",
        "test_gradient.py::test_expected_gradient_of_the_loss_is_the_gradient_of_the_game",
    ),
    Fault(
        "agents/critics.py",
        "entropy_bonus = stop_gradient(-v.weight * v.log_pi_a)",
        "entropy_bonus = stop_gradient(v.weight * v.log_pi_a)",
        "test_gradient.py::test_expected_gradient_of_the_loss_is_the_gradient_of_the_game",
    ),
    Fault(
        "agents/actor_critic.py",
        "stop_gradient(judged.told + judged.error)",
        "(judged.told + judged.error)",
        "agents/test_actor_critic.py::test_values_move_towards_their_targets_and_targets_stand_still",
    ),
    Fault(
        "agents/actor_critic.py",
        "mean = lambda x: jnp.sum(t.mask * x)",
        "mean = lambda x: jnp.sum(x)",
        "agents/test_actor_critic.py::test_masked_steps_teach_nothing",
    ),
    Fault(
        "agents/critics.py",
        "return jnp.clip(advantage, -settings.advantage_limit * unit, settings.advantage_limit * unit)",
        "return advantage",
        "agents/test_actor_critic.py::test_an_advantage_counts_up_to_its_limit",
    ),
    Fault(
        "policies.py",
        "jnp.argmax(logits + gumbel, axis=-1)",
        "jnp.argmax(logits + gumbel / 2, axis=-1)",
        "agents/test_actor_critic.py::test_the_policy_is_sampled_as_it_says",
    ),
    Fault(
        "agents/make.py",
        "case config.Seeking(learn_tau=True):",
        "case config.Seeking(learn_tau=False):",
        "test_api.py::test_every_agent_runs_with_every_uncertainty",
    ),
    # the loop
    Fault(
        "loops/rollout.py",
        "begin(env, agent, world, learner, key_begin), Actor",
        "begin(env, agent, world, learner, key_step), Actor",
        "reliability/test_determinism.py::test_no_key_is_used_twice",
    ),
    Fault("loops/rollout.py", "ended = step.discount == 0", "ended = step.discount == 2", "loops/test_on_device.py::test_facts_add_up"),
    Fault(
        "agents/actor_critic.py", "jnp.sqrt(uncertainty.noise_variance) * jax", "uncertainty.noise_variance * jax", "agents/test_noise.py"
    ),
    Fault(
        "loops/on_device.py",
        "visits.at[newest.obs[:, :-1]]",
        "visits.at[newest.obs[:, 1:]]",
        "loops/test_on_device.py::test_facts_add_up",
    ),
    Fault(
        "loops/on_device.py",
        "jnp.where(begun, within, before + within)",
        "within",
        "loops/test_on_device.py::test_returns_are_sums_since_the_episode_began",
    ),
    Fault(
        "loops/on_device.py",
        "numbers = carry.rollouts + jnp.arange",
        "numbers = 0 * carry.rollouts + jnp.arange",
        "loops/test_on_device.py::test_two_short_chunks_are_one_long_one_bit_for_bit",
    ),
    Fault(
        "loops/on_device.py",
        "init(np.random.default_rng(run.run.seed))",
        "init(np.random.default_rng(0))",
        "loops/test_on_device.py::test_no_two_seeds_begin_alike",
    ),
    Fault(
        "loops/guard.py",
        "np.where(bad.any(axis=2), bad.argmax(axis=2), steps + 1)",
        "np.where(bad.any(axis=2), bad.argmin(axis=2), steps + 1)",
        "reliability/test_guard.py::test_the_right_tensor_and_step_are_named",
    ),
    Fault(
        "loops/guard.py",
        "leaf.ndim <= 1 or getattr(path[-1]",
        "leaf.ndim < 1 or getattr(path[-1]",
        "reliability/test_guard.py::test_the_right_tensor_and_step_are_named",
    ),
    # sweeps
    Fault("study/runner.py", "column[place : place + 1]", "column[:1]", "study/test_runner.py::test_a_run_of_a_batch_is_that_run"),
    Fault(
        "study/runner.py",
        "size = -(-len(group) // -(-len(group) // most))",
        "size = most",
        "study/test_runner.py::test_batches_share_a_program_and_are_the_same_whatever_is_there",
    ),
    Fault(
        "study/runner.py",
        "config.override(instance.settings, seed=0)",
        "config.override(instance.settings, seed=0, episodes=1)",
        "study/test_runner.py::test_batches_share_a_program_and_are_the_same_whatever_is_there",
    ),
    Fault(
        "study/runner.py",
        " or records.failure(directory, settings) is not None",
        "",
        "study/test_runner.py::test_a_run_that_goes_bad_is_named_and_the_rest_end_as_they_would",
    ),
    Fault(
        "study/recorder.py",
        'if "failed" in state:',
        "if not state:",
        "study/test_runner.py::test_a_run_that_goes_bad_is_named_and_the_rest_end_as_they_would",
    ),
    Fault(
        "study/life.py",
        "                    life.save(carry)\n                    raise exits.Stopped",
        "                    raise exits.Stopped",
        "study/test_runner.py::test_the_list_counts_a_sweep_and_what_is_under_way",
    ),
    Fault(
        "study/records.py",
        'if disk.digest(disk.read(directory / FACTS)) != summary.get("facts_sha256"):',
        'if not summary.get("facts_sha256"):',
        "reliability/test_sweeps.py::test_of_100_runs_10_are_damaged_in_10_ways_90_are_shown_and_10_named",
    ),
    # what Python and the shell offer
    Fault(
        "study/life.py",
        "                life.recorder.add(chunk)\n",
        "                life.recorder.add(chunk) if life.recorder.chunks else None\n",
        "test_api.py::test_train_returns_what_it_writes",
    ),
    Fault(
        "study/results.py",
        "self.steps / self.run_seconds",
        "self.steps / self.wall_seconds",
        "test_api.py::test_train_returns_what_it_writes",
    ),
    Fault(
        "cli.py", "code = exits.code_of(error)", "code = exits.SETTINGS", "reliability/test_resume.py::test_damaged_settings_are_one_line"
    ),
    Fault("study/compare.py", 'side="right"', 'side="left"', "study/test_compare.py::test_a_curve_is_known_from_its_first_episode_on"),
    Fault("study/compare.py", "below[-1] + 1", "below[0] + 1", "study/test_compare.py::test_who_is_there_stays_there"),
    Fault(
        "study/verdicts.py",
        "0.5 * (above == 0)",
        "1.0 * (above == 0)",
        "study/test_compare.py::test_the_probability_of_improvement_counts_pairs_and_halves_ties",
    ),
    Fault(
        "study/verdicts.py",
        "np.minimum(episode, RELIABLE_WINDOW)",
        "np.minimum(episode, RELIABLE_WINDOW - 1)",
        "study/test_compare.py::test_running_means_are_those_of_slices",
    ),
    Fault(
        "envs/gym.py",
        "    threading.Thread(target=_leave_with, args=(multiprocessing.parent_process(),), daemon=True).start()\n",
        "",
        "reliability/test_workers.py::test_no_worker_outlives_a_learner_that_was_killed",
    ),
    Fault(
        "envs/gym.py",
        "if array.shape[1:] != shape:",
        "if array.ndim != 1 + len(shape):",
        "reliability/test_workers.py::test_what_becomes_of_a_worker_is_told_in_one_line[shape]",
    ),
    Fault(
        "loops/actor_learner.py",
        "    settings = config.with_floats(settings, numbers)\n    agent = _agent(settings, spec)\n    dice",
        "    agent = _agent(settings, spec)\n    dice",
        "loops/test_loops_agree.py::test_the_loops_agree[a table, fresh]",
    ),
    Fault(
        "loops/actor_learner.py",
        "            hand_over(Failure(error))",
        "            done.put(Failure(error))",
        "loops/test_actor_learner.py::test_who_stops_early_leaves_nobody_behind",
    ),
    Fault(
        "loops/actor_learner.py",
        "            hand_over(Failure(error))",
        "            raise",
        "loops/test_actor_learner.py::test_an_environment_that_breaks_ends_the_run_in_one_line",
    ),
    Fault(
        "loops/actor_learner.py",
        "        enough.set()\n        actor.join()",
        "        enough.set()",
        "loops/test_actor_learner.py::test_who_stops_early_leaves_nobody_behind",
    ),
    Fault(
        "loops/actor_learner.py",
        "queue.Queue(bound)",
        "queue.Queue(bound + 3)",
        "loops/test_actor_learner.py::test_side_by_side_all_that_is_acted_is_learned_from_in_order",
    ),
    Fault(
        "loops/actor_learner.py",
        "np.arange(first, first + count)",
        "np.arange(count)",
        "loops/test_loops_agree.py::test_the_loops_agree[a table, fresh]",
    ),
    Fault(
        "loops/actor_learner.py",
        "    world, base = jax.tree.map(jnp.asarray, env.world(seed)), ",
        "    world, base = env.world(seed), ",
        "loops/test_loops_agree.py::test_the_loops_agree[a table, fresh]",
    ),
    Fault(
        "loops/actor_learner.py",
        "        place.carry = saved._replace(rollouts=np.int32(saved.rollouts))",
        "        pass",
        "loops/test_actor_learner.py::test_a_run_that_goes_on_has_the_learner_that_was_saved",
    ),
    Fault(
        "loops/actor_learner.py",
        "lambda thrown: thrown[r, t], chance",
        "lambda thrown: thrown[r, 0], chance",
        "loops/test_loops_agree.py::test_the_loops_agree[a table, fresh]",
    ),
    Fault(
        "loops/actor_learner.py",
        "        obs.append(step.obs)\n",
        "        obs.append(obs[-1] if t == length - 1 else step.obs)\n",
        "loops/test_loops_agree.py::test_the_loops_agree[vectors, cut, replayed]",
    ),
    Fault(
        "lenses.py",
        "    new = jnp.sum(mask)\n",
        "    new = jnp.maximum(jnp.sum(mask), 1.0)\n",
        "test_lenses.py::test_moments_are_those_of_everything_real_that_was_seen",
    ),
    Fault(
        "lenses.py",
        "> SMALLEST * jnp.square(stats.mean)",
        "> 1e-3",
        "test_lenses.py::test_a_thousandfold_reward_and_a_hundredfold_observation_are_the_same_to_the_learner",
    ),
    Fault(
        "lenses.py",
        "> SMALLEST * jnp.square(stats.mean)",
        "> 0",
        "test_lenses.py::test_what_never_varies_tells_nothing_though_sums_are_rounded",
    ),
    Fault(
        "lenses.py",
        "jnp.where(discount == 0, 0.0, running)",
        "running",
        "test_lenses.py::test_the_largest_discounted_return_above_one_is_one",
    ),
    Fault(
        "policies.py",
        "np.linspace(-4.5, 4.5, 25)",
        "np.linspace(-4.5, 4.5, 9)",
        "test_policies.py::test_entropy_is_the_mean_of_minus_log_prob",
    ),
    Fault(
        "policies.py",
        "        return jnp.clip(point, across(low), across(high))",
        "        return point",
        "test_policies.py::test_draws_are_those_of_the_normal_distribution_and_what_is_emitted_is_in_the_box",
    ),
    Fault(
        "policies.py",
        "density - math.log(CELLS / 2)",
        "density + math.log(CELLS / 2)",
        "test_policies.py::test_probabilities_add_up_to_one_over_the_box_cut_into_cells",
    ),
    Fault(
        "policies.py",
        "- log_std - log_slope(drawn)",
        "- log_std",
        "test_policies.py::test_probabilities_add_up_to_one_over_the_box_cut_into_cells",
    ),
    Fault(
        "uncertainty/rnd.py",
        "        return stop_gradient(sigma_scale**2",
        "        return (sigma_scale**2",
        "uncertainty/test_rnd.py::test_no_gradient_through_sigma_nor_into_the_target",
    ),
    Fault(
        "uncertainty/rnd.py",
        "- stop_gradient(target.apply(fixed, obs))",
        "- target.apply(fixed, obs)",
        "uncertainty/test_rnd.py::test_no_gradient_through_sigma_nor_into_the_target",
    ),
    Fault(
        "nets.py",
        "linear(*first, bias=1.0)",
        "linear(*first)",
        "uncertainty/test_rnd.py::test_only_what_was_seen_becomes_known_and_nothing_moves_the_target",
    ),
    Fault(
        "nets.py",
        "jnp.full_like(features[..., :1], CONSTANT)",
        "jnp.full_like(features[..., :1], 1e-20)",
        "test_nets.py::test_a_random_network_is_as_wide_everywhere",
    ),
    Fault(
        "nets.py",
        "SMALL_IMAGE = 36",
        "SMALL_IMAGE = 24",
        "test_nets.py::test_filters_fit_into_images_of_any_size",
    ),
    Fault(
        "envs/gymnax.py",
        "cut = env.is_truncated(inner, params) & ~terminated",
        "cut = jnp.bool_(False)",
        "envs/test_gymnax.py::test_a_cut_shows_the_true_end_and_a_fake_step_follows",
    ),
    Fault(
        "envs/gymnax.py",
        "jnp.where(real & ~terminated, 1.0, 0.0)",
        "jnp.where(real & ~terminated & ~cut, 1.0, 0.0)",
        "envs/test_gymnax.py::test_a_cut_shows_the_true_end_and_a_fake_step_follows",
    ),
    Fault(
        "envs/gymnax.py",
        "        reward = jnp.where(real, jnp.asarray(reward, jnp.float32).reshape(()), 0.0)",
        "        reward = jnp.asarray(reward, jnp.float32).reshape(())",
        "envs/test_gymnax.py::test_a_cut_shows_the_true_end_and_a_fake_step_follows",
    ),
    Fault(
        "agents/actor_critic.py",
        "rho = stop_gradient(t.mask * ",
        "rho = stop_gradient(",
        "loops/test_truncation.py::test_a_cut_is_not_an_end[tables-device]",
    ),
    # away from the sea
    Fault(
        "agents/critics.py",
        "unit = jnp.maximum(unit, spread)",
        "unit = jnp.minimum(unit, spread)",
        "agents/test_critics.py::test_what_an_action_pays_counts_and_not_how_often_it_does",
    ),
    Fault(
        "agents/critics.py",
        "jax.lax.psum(jnp.sum(mask * x), BATCH)",
        "jnp.sum(mask * x)",
        "agents/test_critics.py::test_a_spread_is_over_the_batch_and_only_changes_the_unit",
    ),
    Fault(
        "agents/critics.py",
        "v.t.mask * v.forgone",
        "v.forgone",
        "agents/test_critics.py::test_a_termination_is_credited_what_it_forgoes_and_a_truncation_is_not",
    ),
    Fault(
        "agents/critics.py",
        "j, reward, settings.gamma",
        "j, v.t.reward, settings.gamma",
        "agents/test_critics.py::test_an_end_that_is_credited_all_it_forgoes_forfeits_neither_bonus_nor_entropy[every]",
    ),
    Fault(
        "agents/presets.py",
        "past_ends=True,",
        "past_ends=False,",
        "loops/test_ends.py::test_a_goal_that_ends_an_episode_is_taken[True]",
    ),
    Fault(
        "agents/critics.py",
        "+ sum(own)",
        "+ own[1]",
        "agents/test_critics.py::test_what_was_never_tried_is_worth_its_bonus_before_it_is",
    ),
    Fault(
        "agents/critics.py",
        "(jnp.exp(v.log_pi) - pi) * above",
        "(pi - jnp.exp(v.log_pi)) * above",
        "test_gradient.py::test_expected_gradient_of_the_loss_is_the_gradient_of_the_game",
    ),
    Fault(
        "agents/critics.py",
        "limited(settings, stop_gradient(v.bonuses - bonus[:, None]), unit)",
        "stop_gradient(v.bonuses - bonus[:, None])",
        "agents/test_critics.py::test_a_bonus_counts_as_far_as_an_advantage_does",
    ),
    Fault(
        "study/recorder.py",
        "count = min(count, in_time)",
        "count = max(count, in_time)",
        "reliability/test_resume.py::test_what_ends_after_the_budget_of_steps_does_not_count",
    ),
    Fault("nets.py", "pixels - side + offset + 1", "pixels - side + 1", "test_nets.py::test_patches_times_filters_are_a_convolution"),
    Fault("study/records.py", "if len(bits) > 256", "if len(bits) > 257", "study/test_records.py::test_returns_are_kept_to_the_last_bit"),
    Fault(
        "study/records.py",
        "            if not known:\n                _forget_if_bare",
        "            if known is not None:\n                _forget_if_bare",
        "study/test_records.py::test_a_run_that_is_to_go_on_is_never_forgotten",
    ),
    Fault(
        "study/records.py",
        'returns.view(f"u{returns.itemsize}")',
        "returns",
        "study/test_records.py::test_returns_are_kept_to_the_last_bit",
    ),
    Fault(
        "study/records.py",
        "== {LOCK, FINGERPRINT, SETTINGS}",
        "<= set()",
        "study/test_records.py::test_a_run_that_is_refused_late_leaves_nothing",
    ),
    # networks that explore
    Fault(
        "nets.py",
        "np.concatenate([top, -top])",
        "np.concatenate([top, top])",
        "test_nets.py::test_a_mirrored_network_says_nothing_at_first",
    ),
    Fault(
        "nets.py",
        "upper = upper_share / len(hidden)",
        "upper = upper_share",
        "test_nets.py::test_the_tangent_kernel_of_a_mirrored_network_is_one_and_the_first_layer_has_its_share",
    ),
    Fault(
        "nets.py",
        "first_scale, inner_scale, top_scale = (2 * (1 - upper_share)) ** 0.5",
        "first_scale, inner_scale, top_scale = (1 - upper_share) ** 0.5",
        "test_nets.py::test_the_tangent_kernel_of_a_mirrored_network_is_one_and_the_first_layer_has_its_share",
    ),
    Fault(
        "nets.py",
        "jnp.concatenate([x, jnp.ones_like(x[..., :1])], axis=-1)",
        "jnp.concatenate([x, jnp.zeros_like(x[..., :1])], axis=-1)",
        "test_nets.py::test_all_that_is_on_the_sphere_has_one_length_and_keeps_its_own_as_an_angle",
    ),
    Fault(
        "lenses.py",
        "unit = (stats.high - stats.low) / 2",
        "unit = jnp.sqrt(stats.variance)",
        "test_lenses.py::test_a_code_that_is_one_once_in_ten_thousand_steps_is_not_blown_up",
    ),
    Fault(
        "lenses.py",
        "reward / jnp.maximum(1.0, stats.largest) if scale",
        "reward / jnp.where(stats.largest > 0, stats.largest, 1.0) if scale",
        "test_lenses.py::test_rewards_are_never_scaled_up",
    ),
    Fault(
        "lenses.py",
        "jnp.where(varied, unit, jnp.where(mean_unit > 0, mean_unit, 1.0))",
        "jnp.where(varied, unit, jnp.inf)",
        "test_lenses.py::test_an_entry_that_never_varied_is_seen_when_it_first_does",
    ),
    Fault(
        "lenses.py",
        "jnp.mean(jnp.where(varied, stats.variance, 0.0) / jnp.square(unit))",
        "jnp.mean(jnp.where(varied, 1.0, 0.0))",
        "test_lenses.py::test_what_was_shown_has_a_mean_square_of_one_over_all_entries_together",
    ),
    Fault(
        "lenses.py",
        "ends = jnp.where(t.discount.T == 0, t.mask.T, 0.0)",
        "ends = jnp.where(t.discount.T == 0, 1.0, 0.0)",
        "test_lenses.py::test_what_an_episode_forgoes_is_the_discounted_steps_from_the_mean_to_the_longest",
    ),
    Fault(
        "lenses.py",
        "mean_length=stats.mean_length + error / jnp.maximum(1.0, terminated),",
        "mean_length=(stats.mean_length * stats.terminated + jnp.sum(ends * ages)) / jnp.maximum(1.0, terminated),",
        "test_lenses.py::test_where_all_episodes_terminate_at_one_length_nothing_is_forgone",
    ),
    Fault(
        "feeds.py",
        "return Feed(passes * parts, ",
        "return Feed(parts, ",
        "test_feeds.py::test_every_fresh_rollout_is_drawn_as_often_as_there_are_passes",
    ),
    Fault(
        "feeds.py",
        "(update + parts * jnp.arange(size)) % envs",
        "(update + jnp.arange(size)) % envs",
        "test_feeds.py::test_every_fresh_rollout_is_drawn_as_often_as_there_are_passes",
    ),
    Fault(
        "agents/make.py",
        "jnp.sum(jnp.square(jnp.maximum(cosines, 0.0)), axis=1)",
        "jnp.sum(jnp.maximum(cosines, 0.0), axis=1)",
        "agents/test_make.py::test_repeats_of_vectors_are_squared_cosines_and_opposites_do_not_count",
    ),
    Fault(
        "agents/make.py",
        "1 / (1 + (repeats - 1) * jnp.minimum(rate, 1.0))",
        "1 / (1 + repeats * jnp.minimum(rate, 1.0))",
        "agents/test_make.py::test_many_visits_together_correct_less_than_all",
    ),
    Fault(
        "agents/critics.py",
        "jnp.sqrt(jnp.maximum(square, v.advantage_square))",
        "jnp.sqrt(jnp.minimum(square, v.advantage_square))",
        "agents/test_critics.py::test_the_scale_of_advantages_is_the_weight_or_a_share_of_the_larger_root_mean_square",
    ),
    Fault(
        "study/records.py",
        '"network": "table",',
        '"network": "mlp",',
        "study/test_records.py::test_a_record_from_before_there_were_networks_is_read_as_what_it_was",
    ),
]


def misfits(faults: list[Fault], source: Path) -> list[str]:
    """Faults whose old text does not stand in the source exactly once, or that change nothing, or name tests that are not there."""
    told = [
        f"{f.file}: {(source / f.file).read_text().count(f.old)} times {f.old!r}"
        for f in faults
        if (source / f.file).read_text().count(f.old) != 1
    ]
    told += [f"{f.file}: changes nothing {f.old!r}" for f in faults if f.old == f.new]
    return told + [f"{f.file}: no {f.test}" for f in faults if not (HERE / "tests" / f.test.partition("::")[0]).exists()]


def run(home: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run some tests of a copy, up to the first that fails."""
    # Bytecode is told apart by whole seconds and by size, and a fault has neither: none is written.
    flags = {"PYTHONPATH": str(home / "src"), "PYTHONDONTWRITEBYTECODE": "1", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", *(f"tests/{each}" for each in tests)]
    return subprocess.run(command, cwd=home, env=os.environ | flags, capture_output=True, text=True, check=False)


def caught_by(done: subprocess.CompletedProcess[str]) -> str | None:
    """The test that failed or could not even begin, if one did; what is no verdict on the fault is an error."""
    if done.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", done.stdout, re.MULTILINE)
    if done.returncode not in (1, 2) or found is None:
        sys.exit(f"the tests did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return found[1]


def main(words: list[str]) -> int:
    """Put in each fault that was asked for, and say who noticed; the exit code is 1 if nobody did."""
    faults = [f for f in FAULTS if not words or any(word in f.file + f.old for word in words)]
    if wrong := misfits(faults, HERE / "src" / "ersac"):
        sys.exit("\n".join(wrong))
    with tempfile.TemporaryDirectory() as directory:
        home, began, missed = Path(directory), time.monotonic(), []
        for name in COPIED:
            copy = shutil.copytree if (HERE / name).is_dir() else shutil.copy
            copy(HERE / name, home / name)
        every = tuple(dict.fromkeys(f.test for f in faults))
        print(f"{len(faults)} faults; first that the tests are green without one", flush=True)
        if (red := caught_by(run(home, every))) is not None:
            sys.exit(f"{red} fails without a fault")
        for number, fault in enumerate(faults, 1):
            path = home / "src" / "ersac" / fault.file
            sound = path.read_text()
            path.write_text(sound.replace(fault.old, fault.new))
            found = caught_by(run(home, (fault.test,)))
            path.write_text(sound)
            missed += [] if found else [fault]
            done = f"{number} of {len(faults)}, {time.monotonic() - began:.0f} s"
            print(f"[{done}] {fault.file}: {' '.join(fault.new.split())}  {f'caught by {found}' if found else 'MISSED'}", flush=True)
    print(f"{len(faults) - len(missed)} of {len(faults)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
