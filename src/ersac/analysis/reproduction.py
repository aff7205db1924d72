"""`ersac reproduce`: the paper's figures and claims from records, as one page of HTML.

The page has the six headings of the ML Reproducibility Challenge. No jax here.
"""

import base64
import contextlib
import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ersac import __version__, config
from ersac.analysis import atari_figures, atari_table, claims, figures, pack
from ersac.analysis.claims import Evidence, Judgement
from ersac.analysis.equations import Citations
from ersac.analysis.figures import SolveRun
from ersac.analysis.pack import Pack, RunRecord
from ersac.analysis.paper import FIGURES_OF_PAPER, RESULTS
from ersac.runs import disk, exits, run_dir, seal
from ersac.sweeps import campaign, catalogue, ladder
from ersac.sweeps.catalogue import SCALES, Instance
from ersac.sweeps.ladder import Cell, LadderPlan

NETWORKS = {"mlp": "", "table": "-table"}  # the agents' function approximation, by name of sweep


class Source(NamedTuple):
    """The records of a sweep: which of its runs have ended, and where they are."""

    sweep: str
    network: str
    scale: str
    where: Path | Pack
    wanted: Sequence[Instance | Cell]
    runs: list[RunRecord | None]  # in the order of wanted
    failed: int  # with numbers that are not finite, which count as not solved
    plan: LadderPlan | None = None  # of Atari

    @property
    def title(self) -> str:
        """The name of the sweep's directory or pack."""
        return f"{self.sweep}{NETWORKS[self.network]}-{self.scale}"

    @property
    def ended(self) -> int:
        """How many of its runs have ended."""
        return sum(run is not None for run in self.runs) + self.failed

    @property
    def tasks(self) -> str:
        """The depths or the games of its runs."""
        if self.plan is not None:
            return ", ".join(game.replace("_", " ") for game in self.plan.tasks)
        depths = {config.deep_sea_env(run.settings).depth for run in self.wanted}
        return "depth " + ", ".join(map(str, sorted(depths)))

    def describe(self) -> str:
        """Return its name with the number of runs."""
        failed = f", {self.failed} of them not finite" if self.failed else ""
        agents = "networks" if self.network == "mlp" else "tables"
        return f"{self.title} ({self.ended} of {len(self.wanted)} runs{failed}; {agents})"


class Reader:
    """Reads sweeps below one directory, each pack once."""

    def __init__(self, root: Path) -> None:
        """root: a directory of sweeps and packs, or one pack."""
        self.root = root
        self.packs: dict[str, Pack | None] = {}

    def find(self, sweep: str, networks: Sequence[str], scales: Sequence[str]) -> Source | None:
        """The most complete records of a sweep; the first network and scale win a tie."""
        found = [
            source
            for network in networks
            for scale in scales
            if (source := self.read(sweep, network, scale)) is not None and source.ended
        ]
        return max(found, key=lambda s: s.ended / len(s.wanted), default=None)

    def read(self, sweep: str, network: str, scale: str) -> Source | None:
        """The records of a sweep at one scale; None where there are none."""
        if sweep == claims.ATARI:
            return self.read_atari(scale) if network == "mlp" else None
        name = sweep + NETWORKS[network]
        if name not in catalogue.SWEEPS:
            return None
        where = self.locate(f"{name}-{scale}")
        if where is None:
            return None
        size = catalogue.SWEEPS[name].sizes[scale]
        wanted = catalogue.instances(catalogue.SWEEPS[name], size)
        runs = [figures.read_instance(where, instance) for instance in wanted]
        failed = sum(
            run is None and has_failed(where, instance)
            for run, instance in zip(runs, wanted, strict=True)
        )
        return Source(sweep, network, scale, where, wanted, runs, failed)

    def read_atari(self, scale: str) -> Source | None:
        """The records of the Atari sweep at one scale; None where there are none."""
        where = self.locate(f"{claims.ATARI}-{scale}")
        if where is None:
            return None
        plan = ladder.plan_ladder(claims.ATARI, scale)
        if not plan.selected:  # its package is not installed
            return None
        cells = plan.selected
        runs = [atari_table.read_cell(cell, where, lambda text: None) for cell in cells]
        return Source(claims.ATARI, "mlp", scale, where, cells, runs, 0, plan)

    def locate(self, title: str) -> Path | Pack | None:
        """The directory or the pack of a sweep."""
        if self.root.is_file():
            packed = self.packs.setdefault("", pack.read_pack(self.root))
            return packed if packed is not None and packed.title == title else None
        if (self.root / title).is_dir():
            return self.root / title
        if title not in self.packs:
            self.packs[title] = pack.find_pack(self.root, title)
        return self.packs[title]


def has_failed(where: Path | Pack, instance: Instance) -> bool:
    """Whether a run ended with numbers that are not finite."""
    if isinstance(where, Pack):
        return instance.name in where.failed
    with contextlib.suppress(OSError):
        return run_dir.read_failure(where / instance.name, instance.settings) is not None
    return False


def solve_runs(source: Source) -> list[SolveRun]:
    """The runs that claims are measured on; a run that failed has reached no goal."""
    found = []
    for instance, run in zip(source.wanted, source.runs, strict=True):
        assert isinstance(instance, Instance)
        depth, budget = figures.instance_depth(instance), instance.settings.run.episodes
        if run is not None:
            found.append(SolveRun(run.line, depth, run.episodes, run.seeds[0].goals))
        elif has_failed(source.where, instance):
            found.append(SolveRun(instance.line, depth, budget, np.zeros(0, bool)))
    return found


class FigureResult(NamedTuple):
    """A figure of the paper: its picture, or why there is none."""

    label: str
    title: str
    about: str
    file: str | None
    sources: list[str]
    missing: str | None
    numbers: dict[str, Any]
    scale: str | None

    @property
    def picture(self) -> str | None:
        """The picture as a data URL."""
        if self.file is None:
            return None
        data = base64.b64encode(disk.read(Path(self.file))).decode()
        return f"data:image/png;base64,{data}"


def draw_all(sources: dict[str, Source], scale: str, command: str, out: Path) -> list[FigureResult]:
    """Draw every figure of the paper for which there are records."""
    return [draw(label, sources, scale, command, out) for label in FIGURES_OF_PAPER]


def draw(
    label: str, sources: dict[str, Source], scale: str, command: str, out: Path
) -> FigureResult:
    """Draw a figure, or say what is missing for it."""
    is_atari = label in atari_figures.ATARI_FIGURES
    spec = atari_figures.ATARI_FIGURES[label] if is_atari else figures.FIGURES[label]
    needed = (claims.ATARI,) if is_atari else figures.FIGURES[label].sweeps
    skipped = FigureResult(label, spec.title, FIGURES_OF_PAPER[label], None, [], None, {}, None)
    absent = [name for name in needed if name not in sources]
    if absent:
        reasons = [f"{name} ({campaign.why_not(name) or 'no records'})" for name in absent]
        return skipped._replace(missing="records of " + ", ".join(reasons))
    found = [sources[name] for name in needed]
    smallest = min([source.scale for source in found] or [scale], key=SCALES.index)
    try:
        if is_atari:
            (source,) = found
            assert source.plan is not None
            result = atari_figures.make_atari_figure(label, source.plan, source.where, command, out)
        else:
            runs: list[Any] = [(source.where, run) for source in found for run in source.wanted]
            result = figures.make_figure(label, runs, smallest, command, out)
    except exits.Resumable as error:  # no run of it has ended
        return skipped._replace(missing=str(error))
    wanted = sum(len(source.wanted) for source in found)
    return skipped._replace(
        file=result["picture"],
        sources=[source.describe() for source in found],
        missing=f"{len(result['missing'])} of {wanted} runs" if result["missing"] else None,
        numbers=result["numbers"],
        scale=smallest,
    )


def read_theory(root: Path, scale: str) -> dict[str, dict[str, Any]]:
    """The records of the exact experiments below a directory, by name."""
    found: dict[str, dict[str, Any]] = {}
    for candidate in SCALES[SCALES.index(scale) :]:
        path = theory_path(root, candidate)
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found.setdefault(claims.THEORY, seal.read_sealed(path) | {"path": str(path)})
    path = root / "theory" / "games.json"
    with contextlib.suppress(OSError, ValueError, RecursionError):
        games = json.loads(disk.read(path, disk.MAX_TEXT))
        found[claims.THEORY_GAMES] = games | {"path": str(path)}
    return found


def theory_path(root: Path, scale: str) -> Path:
    """Where the exact experiments of a scale are stored."""
    return root / "theory" / f"checks-{scale}.json"


def judge_all(
    sources: dict[str, Source], theory: dict[str, dict[str, Any]], drawn: list[FigureResult]
) -> dict[str, list[Judgement]]:
    """Every claim with its verdict, by group."""
    atari = {
        figure.label: figure
        for figure in drawn
        if figure.label in atari_figures.ATARI_FIGURES and figure.file
    }
    evidence = Evidence(
        runs={name: solve_runs(source) for name, source in sources.items() if source.plan is None},
        numbers=theory | {label: figure.numbers for label, figure in atari.items()},
        names={name: source.describe() for name, source in sources.items()}
        | {name: record["path"] for name, record in theory.items()}
        | {label: ", ".join(figure.sources) for label, figure in atari.items()},
    )
    return {
        group: [claims.judge(claim, evidence) for claim in members]
        for group, members in claims.CLAIMS.items()
    }


class Reproduction(NamedTuple):
    """All that the page shows."""

    scale: str
    command: str
    figures: list[FigureResult]
    judgements: dict[str, list[Judgement]]
    sources: list[Source]
    skipped: dict[str, str]  # sweeps without records, with the reason
    citations: Citations

    def counts(self) -> dict[str, int]:
        """How many claims have each verdict."""
        every = [row.verdict for group in self.judgements.values() for row in group]
        return {verdict: Counter(every)[verdict] for verdict in claims.VERDICTS}

    def with_verdict(self, verdict: str) -> list[Judgement]:
        """The claims that have a verdict."""
        return [
            row for group in self.judgements.values() for row in group if row.verdict == verdict
        ]

    def steps(self) -> int:
        """Environment steps of all runs that were read."""
        runs = [run for source in self.sources for run in source.runs if run is not None]
        return sum(run.summary["steps"] for run in runs)

    def hours(self) -> float:
        """Hours of computation of all runs that were read."""
        runs = [run for source in self.sources for run in source.runs if run is not None]
        return sum(run.summary["wall_seconds"] for run in runs) / 3600

    def as_json(self) -> dict[str, Any]:
        """Return what a program reads."""
        return {
            "scale": self.scale,
            "command": self.command,
            "figures": [
                {name: value for name, value in figure._asdict().items() if name != "about"}
                for figure in self.figures
            ],
            "claims": [
                {"group": group, **row.as_json()}
                for group, rows in self.judgements.items()
                for row in rows
            ],
            "verdicts": self.counts(),
        }


def make_reproduction(
    reader: Reader,
    scale: str,
    networks: Sequence[str],
    scales: Sequence[str],
    command: str,
    out: Path,
    citations: Citations,
) -> Reproduction:
    """Read the records, draw the figures and judge the claims.

    networks, scales: those whose records may be used, in the order of preference.
    """
    names = claims.needed_sweeps()
    sources = {
        name: source
        for name in names
        if (source := reader.find(name, networks, scales)) is not None
    }
    drawn = draw_all(sources, scale, command, out / "figures")
    theory = read_theory(reader.root, scale)
    skipped = {
        name: campaign.why_not(name) or f"no records in {reader.root}"
        for name in names
        if name not in sources
    }
    judged = judge_all(sources, theory, drawn)
    return Reproduction(scale, command, drawn, judged, list(sources.values()), skipped, citations)


def write_page(reproduction: Reproduction, out: Path) -> Path:
    """Write the page and its numbers; returns the path of the page."""
    disk.make_directory(out)
    page = out / "reproduction.html"
    disk.write(page, render_page(reproduction).encode())
    seal.write_json(out / "reproduction.json", reproduction.as_json() | {"html": str(page)})
    return page


def render_page(reproduction: Reproduction) -> str:
    """Return the page, with every text from records escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ersac.analysis"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("reproduction.html").render(
        page=reproduction,
        results=RESULTS,
        outcomes=claims.VERDICTS,
        version=__version__,
        date=datetime.now(UTC).date().isoformat(),
        drawn=sum(figure.file is not None for figure in reproduction.figures),
    )
