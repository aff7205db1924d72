"""Evaluation during training: the policy after every N steps, and the best one kept."""

from pathlib import Path
from typing import Any

from ersac import config
from ersac.loops.base import run_seeds
from ersac.policy.evaluate import evaluate_policy
from ersac.policy.policy import Policy, policy_bytes
from ersac.runs import disk, seal
from ersac.runs.progress import BEST, EVALUATIONS, Progress, read_evaluations

COLUMNS = ("step", "seed", "mean_return", "stderr_return", "mean_length", "goal_share")


class PeriodicEvaluation:
    """An `on_chunk` that evaluates every seed's policy after every `eval_every` steps.

    rows: the evaluations so far. best: the row with the largest mean return.
    With a directory, both are in `evaluations.json` and the policy of `best` in `best-policy.npz`.
    """

    def __init__(self, options: config.EvalDuring, directory: Path | None) -> None:
        assert options.eval_every is not None
        self.every, self.episodes = options.eval_every, options.eval_episodes
        self.directory = directory
        self.rows, self.best = read_evaluations(directory)
        self.best_policy: Policy | None = None  # kept here only without a directory

    def __call__(self, progress: Progress) -> bool:
        """Evaluate if it is time; never stops the run."""
        # After a resume, what was evaluated beyond the checkpoint is evaluated again.
        self.rows = [row for row in self.rows if row["step"] < progress.steps]
        last = self.rows[-1]["step"] if self.rows else 0
        if progress.steps // self.every > last // self.every:
            new = [self.evaluate(progress, seed) for seed in run_seeds(progress.settings)]
            self.rows += new
            self.write()
        if self.rows:
            latest = [row for row in self.rows if row["step"] == self.rows[-1]["step"]]
            mean = sum(row["mean_return"] for row in latest) / len(latest)
            progress.metrics["eval_return"] = mean
        return False

    def evaluate(self, progress: Progress, seed: int) -> dict[str, Any]:
        """Return the evaluation of one seed; its policy is kept if it is the best so far."""
        trained = progress.policy(seed).trained
        options = config.Evaluate(self.episodes)
        result = evaluate_policy(trained, options, lambda line: None)._asdict()
        row = {"step": progress.steps, "seed": seed} | result
        row = {name: row[name] for name in COLUMNS}
        if self.best is None or row["mean_return"] > self.best["mean_return"]:
            self.best = row
            if self.directory is None:
                self.best_policy = Policy(trained)
            else:
                disk.write(self.directory / BEST, policy_bytes(trained))
        return row

    def write(self) -> None:
        """Write the evaluations, if there is a directory."""
        if self.directory is not None:
            data = {"best": self.best, "evaluations": self.rows}
            seal.write_json(self.directory / EVALUATIONS, data)
