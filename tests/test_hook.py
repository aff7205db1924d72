"""`on_chunk`, evaluation during training, Ctrl-C in Python, and starting from what was learned."""

import json
import os
import signal

import numpy as np
import pytest

import ersac
from ersac import api, cli
from ersac.policy import evaluate
from ersac.runs import checkpoint, run_dir

pytest.importorskip("gymnasium")
# A chunk is 50 steps, ten episodes.
SEA = {"env": "deep-sea", "depth": 5, "episodes": 60, "stop_when_solved": False}
SMALL = {"seeds": 1, "seed": 3, "hidden": (8,), "rollout": 10, "chunk": 5, "show": False}
SEA |= SMALL
# A chunk is 100 steps.
POLE = SMALL | {"env": "gym:CartPole-v1", "envs": 2, "steps": 400, "lockstep": True}


def arrays(result: ersac.Result) -> dict[str, bytes]:
    """Return every number that a run of one seed has recorded."""
    metrics = {f"metric {name}": values for name, values in result.metrics.values.items()}
    found = metrics | {"returns": result.returns[3], "lengths": result.lengths[3]}
    return {name: np.asarray(value).tobytes() for name, value in found.items()}


@pytest.mark.parametrize("settings", [SEA, POLE], ids=["device", "host"])
def test_the_hook_does_not_change_a_bit(settings, tmp_path):
    seen = []

    def watch(progress: ersac.Progress) -> None:
        policy = progress.policy()
        seen.append((progress.steps, progress.episodes, policy.evaluate(2, show=False)))

    plain = ersac.train(**settings)
    watched = ersac.train(**settings, on_chunk=watch, eval_every=100, out=tmp_path / "run")
    assert arrays(watched) == arrays(plain)
    assert [steps for steps, _, _ in seen] == plain.metrics.step.tolist()
    assert not watched.stopped


def test_the_policy_of_the_hook_is_that_of_its_moment(tmp_path):
    """It stays as it is while training goes on, and equals the one that is saved."""
    kept = []
    result = ersac.train(**SEA, on_chunk=lambda progress: kept.append(progress.policy()))
    arrays_of = lambda policy: checkpoint.flatten(policy.trained.learner.params)[0]
    last, final = arrays_of(kept[-1]), arrays_of(result.policy)
    assert all(np.array_equal(last[name], final[name]) for name in final)
    first, second = arrays_of(kept[0]), arrays_of(kept[1])
    assert any(not np.array_equal(first[name], second[name]) for name in first)


def test_a_run_that_the_hook_stops_has_a_checkpoint_and_a_result(tmp_path, capsys):
    out = tmp_path / "run"
    stopped = ersac.train(**SEA, out=out, on_chunk=lambda progress: progress.steps >= 150)
    assert (stopped.stopped, stopped.state, stopped.steps) == (True, "stopped", 150)
    assert f"stopped after 150 steps; resume with: ersac resume {out}" in capsys.readouterr().err
    assert stopped.policy(0) in (0, 1)
    again = ersac.train(**SEA, out=out, resume=True)
    assert not again.stopped
    assert arrays(again) == arrays(ersac.train(**SEA))


def test_an_error_in_the_hook_is_raised_as_it_is_and_nothing_is_lost(tmp_path):
    class Own(Exception):
        pass

    def fail(progress: ersac.Progress) -> None:
        if progress.steps >= 100:
            raise Own

    with pytest.raises(Own):
        ersac.train(**SEA, out=tmp_path / "run", on_chunk=fail)
    assert ersac.read(tmp_path / "run").steps == 100


def test_an_evaluation_that_fails_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "MAX_EPISODE_STEPS", 1)
    with pytest.raises(ersac.SettingsError, match="has not ended after 1 steps"):
        ersac.train(**POLE, out=tmp_path / "run", eval_every=150)
    assert ersac.read(tmp_path / "run").steps == 200


def test_a_hook_that_stops_a_run_at_its_end_lets_it_end(tmp_path):
    result = ersac.train(
        **SEA, out=tmp_path / "run", on_chunk=lambda progress: progress.steps >= 300
    )
    assert (result.state, ersac.read(tmp_path / "run").state) == ("ended", "ended")


@pytest.mark.parametrize("settings", [SEA, POLE], ids=["device", "host"])
def test_ctrl_c_returns_the_result_so_far(settings, capsys):
    before = signal.getsignal(signal.SIGINT)
    press = lambda progress: os.kill(os.getpid(), signal.SIGINT)
    result = ersac.train(**settings, on_chunk=press)
    assert result.stopped
    assert len(result.metrics.step) == 1  # one chunk
    assert "Ctrl-C again" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before
    assert result.policy.evaluate(1, show=False).mean_length > 0


def test_a_second_ctrl_c_interrupts_at_once():
    def press(progress: ersac.Progress) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        ersac.train(**SEA, on_chunk=press)


def test_the_metrics_of_the_hook_are_named_numbers():
    seen = []
    ersac.train(**POLE, on_chunk=lambda progress: seen.append(progress.metrics))
    last = seen[-1]
    wanted = {"tau", "entropy", "sigma2", "payoff", "critic", "reward", "value", "staleness"}
    wanted |= {"mean_return", "mean_length", "steps_per_second"}
    assert wanted <= last.keys()
    assert all(isinstance(value, float) and np.isfinite(value) for value in last.values())
    assert last["mean_return"] == pytest.approx(last["mean_length"])  # a reward of 1 a step


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "in memory"])
def test_evaluations_during_training_keep_the_best_policy(stored, tmp_path):
    out = tmp_path / "run" if stored else None
    settings = POLE | {"seeds": 2, "steps": 600}
    evaluated = []
    result = ersac.train(
        **settings,
        out=out,
        eval_every=200,
        eval_episodes=3,
        on_chunk=lambda progress: evaluated.append(progress.metrics.get("eval_return")),
    )
    rows = result.evaluations
    assert [(row["step"], row["seed"]) for row in rows] == [
        (step, seed) for step in (200, 400, 600) for seed in (3, 4)
    ]
    best = max(rows, key=lambda row: row["mean_return"])
    again = result.best_policy.evaluate(3, show=False)
    assert result.best_policy.seed == best["seed"]
    assert again.mean_return == best["mean_return"]
    assert evaluated[0] is None
    assert evaluated[-1] == pytest.approx(np.mean([row["mean_return"] for row in rows[-2:]]))
    if stored:
        assert ersac.read(out).evaluations == rows
        assert ersac.load(out / "best-policy.npz").seed == best["seed"]


def test_a_resumed_run_evaluates_each_moment_once(tmp_path):
    out = tmp_path / "run"
    options = {"out": out, "eval_every": 50, "eval_episodes": 2}
    ersac.train(**SEA, **options, on_chunk=lambda progress: progress.steps >= 150)
    stored = json.loads((out / "evaluations.json").read_text())
    stored["evaluations"].append(stored["evaluations"][-1] | {"step": 200})  # after the checkpoint
    (out / "evaluations.json").write_text(json.dumps(stored))
    rows = ersac.train(**SEA, **options, resume=True).evaluations
    assert [row["step"] for row in rows] == [50, 100, 150, 200, 250, 300]
    assert rows == ersac.train(**SEA, eval_every=50, eval_episodes=2).evaluations


def test_eval_every_from_the_shell(tmp_path, capsys):
    argv = "train deep-sea --depth 5 --episodes 20 --seeds 1 --hidden 8 --rollout 10 --chunk 5"
    argv += f" --quiet --eval-every 5e1 --eval-episodes 2 --out {tmp_path / 'run'}"
    assert cli.dispatch(argv.split()) == 0
    assert [row["step"] for row in ersac.read(tmp_path / "run").evaluations] == [50, 100]
    assert (tmp_path / "run" / "best-policy.npz").exists()


# Starting from what was learned


def learner(policy: "ersac.policy.policy.Policy") -> dict[str, np.ndarray]:
    return checkpoint.flatten(policy.trained.learner)[0]


@pytest.mark.parametrize("settings", [SEA, POLE], ids=["device", "host"])
@pytest.mark.parametrize("kind", ["policy", "file", "run"])
def test_a_run_starts_from_what_was_learned(settings, kind, tmp_path):
    """Without learning rates nothing but the statistics changes: the start is the end."""
    first = ersac.train(**settings, out=tmp_path / "first")
    first.save(tmp_path / "policy.npz")
    start = {
        "policy": first.policy,
        "file": str(tmp_path / "policy.npz"),
        "run": tmp_path / "first",
    }
    still = {"policy_rate": 0, "value_rate": 0, "reward_rate": 0, "tau_learning_rate": 0}
    second = ersac.train(**settings | still | {"seeds": 2, "seed": 2}, start=start[kind])
    before = learner(first.policy)
    for seed in (2, 3):
        after = learner(second.policy_of(seed))
        same = [name for name in after if name.startswith(("params/dense", "log_tau"))]
        assert same
        for name in same:
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)


def test_a_start_is_kept_for_a_run_that_is_resumed_before_its_first_checkpoint(tmp_path):
    first = ersac.train(**SEA)
    changed = SEA | {"seed": 3, "policy_rate": 0.01}
    whole = ersac.train(**changed, start=first.policy, out=tmp_path / "whole")

    class Killed(BaseException):
        pass

    def kill(progress: ersac.Progress) -> None:
        raise Killed

    with pytest.raises(Killed):
        ersac.train(**changed, start=first.policy, out=tmp_path / "run", on_chunk=kill)
    resumed = ersac.train(**changed, out=tmp_path / "run", resume=True)
    assert arrays(resumed) == arrays(whole)
    assert arrays(resumed) != arrays(ersac.train(**changed))
    with pytest.raises(ersac.SettingsError, match="started from something else"):
        ersac.train(
            **changed | {"episodes": 70},
            start=ersac.train(**SEA | {"episodes": 10}).policy,
            out=tmp_path / "run",
            resume=True,
        )


def test_a_start_that_does_not_fit_is_refused_in_one_line_and_leaves_nothing(tmp_path):
    first = ersac.train(**POLE)
    with pytest.raises(ersac.SettingsError, match=r"params/dense/policy.* is float32\[") as error:
        ersac.train(**POLE | {"hidden": (16,)}, start=first.policy, out=tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ersac.SettingsError, match="start must be"):
        ersac.train(**POLE, start=3)


def test_an_estimator_that_does_not_fit_starts_anew(capsys):
    first = ersac.train(**POLE)
    second = ersac.train(**POLE | {"members": 3, "policy_rate": 0}, start=first.policy)
    assert "the estimator starts anew" in capsys.readouterr().err
    name = "params/dense/policy/first"
    found = [key for key in learner(first.policy) if key.startswith(name)]
    assert found
    for key in found:
        np.testing.assert_array_equal(learner(first.policy)[key], learner(second.policy)[key])


def test_a_start_may_have_another_number_of_environments():
    first = ersac.train(**POLE)
    assert ersac.train(**POLE | {"envs": 4}, start=first.policy).steps >= 400


def test_start_from_the_shell(tmp_path):
    ersac.train(**SEA | {"seed": 0}, out=tmp_path / "first")
    argv = "train deep-sea --depth 5 --episodes 20 --seeds 1 --hidden 8 --rollout 10 --chunk 5"
    argv += f" --quiet --start {tmp_path / 'first'} --out {tmp_path / 'second'}"
    assert cli.dispatch(argv.split()) == 0
    assert (tmp_path / "second" / run_dir.START).exists()


# Schedules


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_ends_with_no_learning_at_all(schedule):
    """Twice the steps of the schedule: in the second half policy and critic stay as they are."""
    kept = []
    steps = {"schedule": schedule, "schedule_steps": 150}
    ersac.train(**SEA, **steps, on_chunk=lambda progress: kept.append(learner(progress.policy())))
    changed = lambda a, b: {
        name.split("/")[2]
        for name in a
        if name.startswith("params/dense/") and not np.array_equal(a[name], b[name])
    }
    assert {"policy", "value"} <= changed(kept[0], kept[1])
    assert not {"policy", "value"} & changed(kept[3], kept[5])


def test_a_run_with_a_schedule_resumes_exactly(tmp_path):
    settings = SEA | {"schedule": "cosine"}
    whole = ersac.train(**settings)
    assert whole.settings.agent.schedule_steps == 60 * 5
    assert arrays(whole) != arrays(ersac.train(**SEA))
    ersac.train(**settings, out=tmp_path / "run", on_chunk=lambda progress: progress.steps >= 150)
    assert arrays(ersac.train(**settings, out=tmp_path / "run", resume=True)) == arrays(whole)


def test_the_factor_of_a_schedule():
    from ersac.agents.build import schedule_factor

    settings = api.make_settings(**POLE_SETTINGS, schedule="linear").agent
    factors = [float(schedule_factor(settings, 2, updates)) for updates in (0, 20, 40, 80)]
    assert factors == pytest.approx([1.0, 0.5, 0.0, 0.0])


POLE_SETTINGS = {name: value for name, value in POLE.items() if name != "show"} | {"passes": 2}
