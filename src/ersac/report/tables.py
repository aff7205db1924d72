"""The tables of a report: agents with intervals over seeds, runs, settings that differ."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ersac.analysis import scores
from ersac.analysis.compare import differing_settings, env_label, flat_settings, label_variants
from ersac.analysis.pack import RunRecord
from ersac.display import format_duration, format_number
from ersac.report.collect import ReportRun, command_line
from ersac.runs.run_dir import EpisodeStats

NOT_COMPARED = {"seed", "checkpoint_seconds"}  # settings: every run has its own, or none matters
PREFERRED = ("network", "uncertainty", "critic")  # in the names of an agent's variants
MAX_COMBINATIONS = 100  # rows of the table of settings


class TableCell(NamedTuple):
    """A cell of a table: its text, and the number it is sorted by, if it is one."""

    text: str
    number: float | None = None


class Scores(NamedTuple):
    """What the seeds of a run, or of all runs of an agent, have reached."""

    finals: list[float]  # by seed: share of goals (DeepSea) or mean return, last 100 episodes
    solved: list[int | None]  # by seed: the episode; empty if the environment has no goal


class AgentGroup(NamedTuple):
    """The runs of one agent in one environment."""

    env: str
    label: str  # the agent, and the settings in which its runs differ
    members: list[int]  # indices of its runs


def group_runs(runs: Sequence[ReportRun]) -> list[AgentGroup]:
    """Return the groups of the runs that could be read, in the order of their first runs."""
    numbers = [number for number, run in enumerate(runs) if run.record is not None]
    records = [run.record for run in runs if run.record is not None]
    variants: dict[tuple[str, str], AgentGroup] = {}
    for number, (record, label) in zip(numbers, label_variants(records), strict=True):
        key = env_label(record), label
        variants.setdefault(key, AgentGroup(*key, [])).members.append(number)
    groups = list(variants.values())
    first = [runs[group.members[0]].record for group in groups]
    labels = short_labels([record for record in first if record is not None])
    return [group._replace(label=label) for group, label in zip(groups, labels, strict=True)]


def short_labels(records: Sequence[RunRecord]) -> list[str]:
    """Return the agent of each variant, with as few settings as tell those of one agent apart.

    Agents whose settings differ in much, as networks and tables do, have names that can be read.
    """
    flat = [
        {name: setting_text(value) for name, value in flat_settings(record.settings.get("agent"))}
        for record in records
    ]
    siblings: dict[tuple[str, str], list[int]] = {}
    for index, record in enumerate(records):
        siblings.setdefault((env_label(record), record.agent), []).append(index)
    labels = [record.agent for record in records]
    for indices in siblings.values():
        names = distinguishing_settings([flat[index] for index in indices])
        for index in indices:
            settings = [f"{name} {flat[index].get(name, '-')}" for name in names]
            labels[index] = ", ".join([records[index].agent, *settings])
    return labels


def distinguishing_settings(flat: Sequence[dict[str, str]]) -> list[str]:
    """Return settings that together differ in any two of the variants, those first that tell most.

    Of settings that tell as much, the first of PREFERRED, then the first by position.
    """
    chosen: list[str] = []
    classes = lambda names: len({tuple(s.get(name) for name in names) for s in flat})
    left = differing_settings(flat)
    left.sort(key=lambda name: PREFERRED.index(name) if name in PREFERRED else len(PREFERRED))
    wanted = classes(left)
    while classes(chosen) < wanted:
        chosen.append(max(left, key=lambda name: classes([*chosen, name])))
    return chosen


def score_runs(runs: Sequence[ReportRun]) -> list[Scores | None]:
    """Return the scores of every run that could be read.

    An environment in which nothing counts as solved has no numbers of solved seeds.
    """
    records = [run.record for run in runs]
    goals = {env_label(record) for record in records if record is not None and has_goal(record)}
    scores_of_all = [None if record is None else score_seeds(record) for record in records]
    return [
        found
        if record is None or found is None or env_label(record) in goals
        else found._replace(solved=[])
        for record, found in zip(records, scores_of_all, strict=True)
    ]


def has_goal(record: RunRecord) -> bool:
    """Return whether something counts as solved in the environment of a run.

    It is a return that was set or registered, or what the environment itself reported.
    """
    if record.depth is not None or any(stats.goals.any() for stats in record.seeds):
        return True
    env = record.settings.get("env", {})
    return env.get("target") is not None or registered_threshold(env.get("id", "")) is not None


def registered_threshold(name: str) -> float | None:
    """Return the mean return at which Gymnasium says that an environment is solved, if it does."""
    try:
        from ersac.envs.gym.make import reward_threshold  # an extra
    except ImportError:
        return None
    return reward_threshold(name)


def score_seeds(record: RunRecord) -> Scores:
    """Return the last scores of every seed that has ended an episode, and when it was solved."""
    finals, solved = [], []
    for stats in record.seeds:
        if not len(stats.goals):
            continue
        solved.append(scores.solved_reliable(stats.goals))
        values = last_scores(record, stats)
        finals.append(float(values[-scores.RELIABLE_WINDOW :].mean()))
    return Scores(finals, solved)


def last_scores(record: RunRecord, stats: EpisodeStats) -> np.ndarray:
    """Return what an episode is judged by: its goal on DeepSea, else its return."""
    return stats.goals if record.depth is not None else stats.returns


def run_row_cells(run: ReportRun, label: str, reached: Scores | None) -> list[TableCell]:
    """Return the cells of a run after its name and state."""
    record = run.record
    if record is None or reached is None:
        agent, env = ("", "") if run.row is None else (run.row.agent or "", run.row.env or "")
        seeds = None if run.row is None else run.row.seeds
        return [TableCell(agent), TableCell(env), number_cell(seeds), *[TableCell("-")] * 5]
    episodes = max((len(stats.goals) for stats in record.seeds), default=0)
    seconds = record.summary["run_seconds"]
    return [
        TableCell(label),
        TableCell(env_label(record)),
        number_cell(len(record.seeds)),
        number_cell(episodes),
        number_cell(run.steps),
        score_cell(reached, record.depth is not None),
        *solved_cells(reached, with_interval=False),
        TableCell(format_duration(seconds), seconds),
    ]


RUN_COLUMNS = (
    "agent",
    "environment",
    "seeds",
    "episodes",
    "steps, all seeds",
    "last 100 episodes",
    "solved",
    "solved at episode",
    "run time",
)
AGENT_COLUMNS = (
    "agent",
    "environment",
    "runs",
    "seeds",
    "last 100 episodes",
    "solved",
    "solved at episode",
)


def agent_row_cells(
    group: AgentGroup, runs: Sequence[ReportRun], reached: Sequence[Scores | None]
) -> list[TableCell]:
    """Return the cells of the runs of one agent, with intervals over all their seeds.

    reached: the scores of all runs.
    """
    parts = [part for index in group.members if (part := reached[index]) is not None]
    pooled = Scores(
        [value for part in parts for value in part.finals],
        [episode for part in parts for episode in part.solved],
    )
    record = runs[group.members[0]].record
    return [
        TableCell(group.label),
        TableCell(group.env),
        number_cell(len(group.members)),
        number_cell(len(pooled.finals)),
        score_cell(pooled, record is not None and record.depth is not None),
        *solved_cells(pooled, with_interval=True),
    ]


def number_cell(value: float | None) -> TableCell:
    """Return a number, or a dash."""
    return TableCell(format_number(value), value)


def score_cell(reached: Scores, is_share: bool) -> TableCell:
    """Return the median over seeds with its 95 % interval, which takes two seeds or more."""
    if not reached.finals:
        return TableCell("-")
    form = (lambda value: f"{value:.0%}") if is_share else (lambda value: f"{value:.4g}")
    median = float(np.median(reached.finals))
    if len(reached.finals) < 2:
        return TableCell(form(median), median)
    low, high = scores.median_interval(reached.finals)
    return TableCell(f"{form(median)} ({form(low)} to {form(high)})", median)


def solved_cells(reached: Scores, with_interval: bool) -> list[TableCell]:
    """Return how many seeds were solved, and the median over all seeds of the episode."""
    count, found = len(reached.solved), [at for at in reached.solved if at is not None]
    if not count:
        return [TableCell("-"), TableCell("-")]
    share = f"{len(found)} of {count}"
    if with_interval:
        low, high = scores.wilson_interval(len(found), count)
        share += f" ({low:.0%} to {high:.0%})"
    median = float(np.median([np.inf if at is None else at for at in reached.solved]))
    at_cell = number_cell(round(median)) if np.isfinite(median) else TableCell("not solved", np.inf)
    return [TableCell(share, len(found) / count), at_cell]


def settings_table(runs: Sequence[ReportRun]) -> dict[str, Any]:
    """Return the settings in which runs differ: the names, and a row for each combination."""
    flat = [
        {
            name: value
            for name, value in flat_settings(run.record.settings)
            if name not in NOT_COMPARED
        }
        for run in runs
        if run.record is not None
    ]
    names = differing_settings(flat)
    counts: dict[tuple[str, ...], int] = {}
    for settings in flat:
        key = tuple(setting_text(settings[name]) if name in settings else "-" for name in names)
        counts[key] = counts.get(key, 0) + 1
    rows = [(*key, str(count)) for key, count in counts.items()]
    return {
        "names": [name.replace("_", " ") for name in names],
        "rows": rows[:MAX_COMBINATIONS] if names else [],
        "hidden": max(0, len(rows) - MAX_COMBINATIONS),
    }


def setting_text(value: Any) -> str:
    """Return the value of a setting as text."""
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


def run_details(run: ReportRun) -> list[tuple[str, str]]:
    """Return what else is known about a run: how it was made, and on which machine."""
    record = run.record
    if record is None:
        return []
    data = record.fingerprint
    packages = data.get("packages")
    versions = packages.items() if isinstance(packages, dict) else ()
    rows = [
        ("started", str(record.when)),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions)),
        ("machine", ", ".join(str(data[name]) for name in ("machine", "system") if name in data)),
        ("cores", str(data.get("visible_cores", ""))),
        ("not bit-exact", "; ".join(map(str, record.summary["departures"]))),
        ("seeds", seeds_text(record)),
    ]
    return [(name, text) for name, text in rows if text]


def seeds_text(record: RunRecord) -> str:
    """Return the first and the last seed of a run."""
    seeds = [stats.seed for stats in record.seeds]
    return f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else ", ".join(map(str, seeds))


def table_rows(
    runs: Sequence[ReportRun], groups: Sequence[AgentGroup], reached: Sequence[Scores | None]
) -> list[dict[str, Any]]:
    """Return a row for every run: its name, state, cells, and details that are shown on demand."""
    labels = {index: group.label for group in groups for index in group.members}
    return [
        {
            "name": run.name,
            "state": run.state,
            "why": run.why,
            "hint": run.hint,
            "cells": run_row_cells(run, labels.get(index, ""), reached[index]),
            "command": command_line(run.record),
            "details": run_details(run),
        }
        for index, run in enumerate(runs)
    ]
