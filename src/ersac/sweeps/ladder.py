"""Run a ladder: every agent in every task with every seed, as ordinary runs. No jax here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ersac import config, display
from ersac.config import Experiment, SettingsError, check, default_run, override
from ersac.config.atari import parse_game
from ersac.config.presets import preset
from ersac.envs.make import require_env_package
from ersac.packages import require_package
from ersac.runs import run_dir
from ersac.sweeps import engines, runner
from ersac.sweeps.cells import CellUnit
from ersac.sweeps.ladder_tasks import ALPHA, LADDERS, Ladder, LadderAgent, Task


class Cell(NamedTuple):
    """One run of a ladder: one agent in one task with one seed."""

    task: str
    agent: str
    settings: Experiment

    @property
    def name(self) -> str:
        """A directory name that no run with other settings has."""
        digest = run_dir.settings_hash(self.settings)[:8]
        return f"{self.task}-{self.agent}-seed-{self.settings.run.seed}-{digest}"

    @property
    def line(self) -> str:
        """Its name in a pack: that of its agent, of which a ladder may have two of one preset."""
        return self.agent

    @property
    def env_name(self) -> str:
        """The environment as on the command line."""
        return config.env_name(self.settings.env)


class LadderPlan(NamedTuple):
    """The cells of a ladder at one scale, and which of them were selected."""

    ladder: str
    scale: str
    tasks: tuple[str, ...]  # selected
    agents: tuple[str, ...]  # selected
    cells: tuple[Cell, ...]  # of all tasks and agents
    unavailable: dict[str, str]  # selected cells that cannot be run: 'task-agent' to the reason

    @property
    def title(self) -> str:
        """The name of the ladder's directory."""
        return f"{self.ladder}-{self.scale}"

    @property
    def command(self) -> str:
        """The command that runs it."""
        return f"ersac sweep {self.ladder} --scale {self.scale}"

    @property
    def selected(self) -> list[Cell]:
        """The cells of the selected tasks and agents."""
        return [
            cell for cell in self.cells if cell.task in self.tasks and cell.agent in self.agents
        ]

    @property
    def spec(self) -> Ladder:
        """The ladder at all its scales."""
        return LADDERS[self.ladder]

    @property
    def seeds(self) -> range:
        """The seeds of the scale."""
        first = self.spec.first_seed
        return range(first, first + self.spec.sizes[self.scale].seeds)

    def steps(self, task: str) -> int:
        """The step budget of a task at this scale."""
        limit, steps = self.spec.sizes[self.scale].max_steps, self.spec.tasks[task].steps
        return steps if limit is None else min(limit, steps)


def plan_ladder(
    name: str, scale: str, tasks: str | None = None, agents: str | None = None
) -> LadderPlan:
    """A ladder at a scale; `tasks` and `agents` are comma-separated names, None selects all."""
    ladder = config.pick("ladder", name, LADDERS)
    size = config.pick("scale", scale, ladder.sizes)
    # A task or an agent that is named is run at any scale.
    spelled = spell_games(tasks) if ladder.is_atari else tasks
    selected_tasks = split_names("task", spelled, ladder.tasks) or size.tasks
    known_agents = ladder.agents | ladder.other_agents
    selected_agents = split_names("agent", agents, known_agents) or tuple(ladder.agents)
    plan = LadderPlan(name, scale, selected_tasks, selected_agents, (), {})
    cells: list[Cell] = []
    unavailable: dict[str, str] = {}
    for seed in plan.seeds:  # outermost, so that an unfinished sweep already fills the table
        for task in dict.fromkeys((*size.tasks, *selected_tasks)):
            for agent in dict.fromkeys((*ladder.agents, *selected_agents)):
                try:
                    task_spec, agent_spec = ladder.tasks[task], known_agents[agent]
                    settings = cell_settings(task, task_spec, agent_spec, seed, plan.steps(task))
                    cells.append(Cell(task, agent, settings))
                except SettingsError as error:
                    if task in plan.tasks and agent in plan.agents:
                        unavailable[f"{task}-{agent}"] = str(error)
    return plan._replace(cells=tuple(cells), unavailable=unavailable)


def spell_games(text: str | None) -> str | None:
    """A comma-separated list of games, each spelled as its task."""
    names = (name for name in (text or "").split(",") if name.strip())
    return None if text is None else ",".join(map(parse_game, names))


def split_names(noun: str, text: str | None, known: dict[str, Any]) -> tuple[str, ...]:
    """The names in a comma-separated list; SettingsError where one is unknown."""
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    for name in names:
        config.pick(noun, name, known)
    return names


def cell_settings(name: str, task: Task, agent: LadderAgent, seed: int, steps: int) -> Experiment:
    """The settings of a cell; SettingsError where a package or an estimator is missing."""
    env = task.env_settings(seed)
    require_env_package(env)
    if task.package is not None:
        require_package(name, task.package)
    learner = preset(agent.preset, agent.uncertainty, None, env)
    settings = Experiment(env, agent.preset, learner, default_run(env))
    alpha = ALPHA.get(agent.preset, {}).get(name) if agent.alpha is None else agent.alpha
    changes = {} if alpha is None else {"alpha": alpha}
    return check(override(settings, seed=seed, steps=steps, **changes))


class LadderReport(NamedTuple):
    """How a ladder ended."""

    report: runner.Report
    refused: dict[str, str]  # cells whose settings were refused, with the reason


def run_ladder(
    plan: LadderPlan,
    home: Path,
    train: Callable[..., Any],
    screen: display.Display,
    poll: Callable[[], int] = lambda: 0,
    engine: runner.Engine = engines.run_local,
) -> LadderReport:
    """Run the selected cells that have not ended.

    train: `ersac.api.run_experiment`, which this module may not import.
    poll: returns the number of a signal, or 0; after a signal the current cell writes a checkpoint
    and Stopped is raised.
    """
    home = home.absolute()  # an environment may change the directory
    units = [CellUnit(home, cell, train) for cell in plan.selected]
    sweep = runner.Plan(plan.title, home, plan.cells, units)
    report = runner.run_plan(sweep, engine, screen, poll)
    return LadderReport(report._replace(refused={}), report.refused)
