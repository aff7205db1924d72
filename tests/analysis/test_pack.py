"""A pack holds what the directories of its runs hold, and says so when it does not."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ersac import api, cli, config
from ersac.analysis import figures, pack, scores
from ersac.runs import disk, results, run_dir
from ersac.runs.results import Result
from ersac.runs.run_dir import EpisodeStats, Metrics
from ersac.sweeps import catalogue

LABEL, NAME = "f-replay_noise_v_no_noise", "replay-noise-table"
TITLE = f"{NAME}-smoke"
COMMITTED = Path(__file__).parents[2] / "results"
WANTED = catalogue.instances(catalogue.SWEEPS[NAME], catalogue.SWEEPS[NAME].sizes["smoke"])


def write_run(directory: Path, settings: config.Experiment, seeds: list[EpisodeStats]) -> None:
    """Leave what a run leaves that has ended."""
    disk.make_directory(directory)
    run_dir.write_fingerprint(directory)
    run_dir.write_settings(directory, settings)
    metrics = Metrics(np.arange(2), {"tau": np.ones((len(seeds), 2))})
    result = Result(settings, seeds, metrics, [], 100, 1.0, 2.0, 3.0, ["another core"], directory)
    run_dir.write_results(directory, seeds, metrics, [], None, result.summary())


def draw_seed(rng: np.random.Generator, seed: int, episodes: int) -> EpisodeStats:
    """Episodes of DeepSea: few different returns, two of them zeros."""
    goals = rng.random(episodes) < np.linspace(0, 1.4, episodes)
    returns = rng.choice(np.float32([-0.01, 0.99, 0.0, -0.0]), episodes)
    return EpisodeStats(seed, goals, returns)


@pytest.fixture
def home(tmp_path) -> Path:
    """The directory of a sweep with random records."""
    rng = np.random.default_rng(0)
    for instance in WANTED:
        seed = draw_seed(rng, instance.settings.run.seed, int(rng.integers(150, 999)))
        write_run(tmp_path / "sweep" / instance.name, instance.settings, [seed])
    return tmp_path / "sweep"


def run_ersac(capsys, *argv) -> tuple[int, list[str], list[str]]:
    """The exit code and the lines of both outputs of a command."""
    with pytest.raises(SystemExit) as stop:
        cli.main([str(word) for word in argv])
    out, err = capsys.readouterr()
    return stop.value.code, out.splitlines(), err.splitlines()


@pytest.fixture
def packed(home, capsys) -> Path:
    """The pack of that sweep, written by the command."""
    path = home.parent / "packs" / f"{TITLE}.json"
    code, out, _ = run_ersac(capsys, "sweep", NAME, "--out", home, "--pack", path, "--json")
    result = {"sweep": TITLE, "pack": str(path), "runs": len(WANTED), "failed": 0}
    assert (code, json.loads(out[-1])) == (0, result)
    return path


def assert_same(found: EpisodeStats, wanted: EpisodeStats) -> None:
    assert found.seed == wanted.seed
    for mine, other in zip(found[1:], wanted[1:], strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            assert (mine.dtype, mine.tobytes()) == (other.dtype, other.tobytes())


def test_a_pack_has_every_run_to_the_last_bit(home, packed):
    found = pack.read_pack(packed)
    assert (found.title, found.command) == (TITLE, f"ersac sweep {NAME} --scale smoke")
    assert [run.name for run in found.runs] == [instance.name for instance in WANTED]
    for run, instance in zip(found.runs, WANTED, strict=True):
        (seed,) = run.seeds
        assert_same(seed, results.read_result(home / instance.name).seeds[0])
        summary = json.loads((home / instance.name / run_dir.SUMMARY).read_text())
        assert run.summary == {name: summary[name] for name in pack.SUMMARY_FIELDS}
        fingerprint = json.loads((home / instance.name / run_dir.FINGERPRINT).read_text())
        assert {"when": run.when, **run.fingerprint} == fingerprint
        assert config.check(run_dir.settings_from_json(run.settings)) == instance.settings
    assert pack.read_pack(packed.with_suffix(".npz")).runs[0].name == WANTED[0].name
    about = json.loads(packed.read_text())
    assert (len(about["settings"]), len(about["fingerprints"])) == (len(WANTED) / 2, 1)
    assert not list(packed.parent.glob("*" + disk.PARTIAL))


def test_steps_several_seeds_and_many_returns_survive(tmp_path):
    """Runs of other environments; one has ended no episode, one has 300 different returns."""
    rng = np.random.default_rng(0)
    settings = api.make_settings("gym:CartPole-v1", steps=1000, seeds=2, seed=5)
    steps = np.cumsum(rng.integers(0, 70_000, 300))
    many = EpisodeStats(5, np.zeros(300, bool), rng.normal(size=300).astype(np.float32), steps)
    none = EpisodeStats(6, np.zeros(0, bool), np.zeros(0, np.float32), np.zeros(0, np.int64))
    write_run(tmp_path / "run", settings, [many, none])
    run = pack.add_fingerprint(pack.read_run(tmp_path / "run"), tmp_path / "run")
    pack.write_pack(pack.Pack(tmp_path / "one.json", "one", "by hand", False, {}, [run]))
    (found,) = pack.read_pack(tmp_path / "one.json").runs
    assert found._replace(seeds=[]) == run._replace(seeds=[])
    for seed, wanted in zip(found.seeds, (many, none), strict=True):
        assert_same(seed, wanted)


@pytest.mark.parametrize("numbers", [[0], [], [255, 256], [2**40, 1], [-1, 3]])
def test_bytes_that_were_split_are_joined(numbers):
    rows = pack.split_bytes(np.array(numbers, np.int64))
    np.testing.assert_array_equal(pack.join_bytes(rows), numbers)
    assert len(rows) == {0: 1, 255: 2, 2**40: 6, -1: 8}.get(next(iter(numbers), 0))


def test_the_same_runs_make_the_same_pack(packed):
    found = pack.read_pack(packed)
    again = packed.parent / "again.json"
    pack.write_pack(found._replace(path=again))
    for suffix in (".json", ".npz"):
        assert again.with_suffix(suffix).read_bytes() == packed.with_suffix(suffix).read_bytes()


def test_a_pack_of_goals_only_is_small_and_draws_the_same(home, packed, capsys):
    path = packed.parent / "goals" / packed.name
    run_ersac(capsys, "sweep", NAME, "--out", home, "--pack", path, "--goals-only", "--quiet")
    full, goals = pack.read_pack(packed), pack.read_pack(path)
    for one, another in zip(full.runs, goals.runs, strict=True):
        np.testing.assert_array_equal(one.seeds[0].goals, another.seeds[0].goals)
        assert len(another.seeds[0].returns) == 0
    assert path.with_suffix(".npz").stat().st_size < 0.8 * packed.with_suffix(".npz").stat().st_size
    code, _, err = run_ersac(capsys, "compare", path)
    left_out = f"ersac: left out: {path} was packed with --goals-only and has no returns"
    assert (code, err[0], len(err)) == (2, left_out, 2)


def draw(capsys, records: Path, out: Path, label: str = LABEL) -> tuple[int, list[str]]:
    argv = ("figure", label, "--network", "table", "--records", records, "--out", out, "--quiet")
    code, _, err = run_ersac(capsys, *argv)
    return code, err


def test_a_pack_and_its_directory_give_the_same_figure(home, packed, tmp_path, capsys):
    """Of a directory without the command, which would run what is missing."""
    figures.make_figure(
        LABEL, [(home, instance) for instance in WANTED], "smoke", "", tmp_path / "directory"
    )
    assert draw(capsys, packed.parent, tmp_path / "packs") == (0, [])
    assert draw(capsys, packed, tmp_path / "pack") == (0, [])
    paths = (tmp_path / name / f"{LABEL}-smoke.json" for name in ("directory", "packs", "pack"))
    of_directory, *of_packs = (json.loads(path.read_text()) | {"command": ""} for path in paths)
    assert of_packs == [of_directory] * 2
    assert (of_directory["runs"], of_directory["missing"]) == (len(WANTED), [])
    assert any(line["solved"] for line in of_directory["numbers"].values())


def test_a_pack_finds_runs_by_line_depth_and_seed_and_names_those_it_lacks(packed, capsys):
    """Whatever hash their settings have by now."""
    found = pack.read_pack(packed)
    renamed = [run._replace(name=f"run-{number}") for number, run in enumerate(found.runs)]
    pack.write_pack(found._replace(runs=renamed[1:]))
    out = packed.parent / "figures"
    assert draw(capsys, packed.parent, out) == (0, [])
    result = json.loads((out / f"{LABEL}-smoke.json").read_text())
    assert (result["runs"], result["missing"]) == (len(WANTED) - 1, [WANTED[0].name])
    pack.write_pack(found._replace(runs=[]))
    line = f"ersac: no run in {packed} has ended: there is nothing to draw"
    assert draw(capsys, packed.parent, out) == (75, [line])


def test_a_figure_refuses_the_pack_of_another_sweep(packed, tmp_path, capsys):
    line = f"ersac: {packed} is the pack of {TITLE}, not of robustness-tau-table-smoke"
    assert draw(capsys, packed, tmp_path, "f-robustness_tau") == (2, [line])


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


NOT_A_PACK = "{json} is damaged: it is not a complete pack"
OTHER_COLUMNS = "{npz} is damaged: its sha256 is not the one in {name}"
DAMAGES: list[tuple[str, str, Callable[[bytes], bytes]]] = [
    (".json", NOT_A_PACK, flip),
    (".json", NOT_A_PACK, lambda data: data[:-100]),
    (".json", NOT_A_PACK, lambda data: b""),
    (".json", NOT_A_PACK, lambda data: b"[]"),
    (".json", NOT_A_PACK, lambda data: b"[" * 100_000),
    (".json", NOT_A_PACK, lambda data: b"\xff" + data),
    (".json", NOT_A_PACK, lambda data: data.replace(b'"depth": 10', b'"depth": 11', 1)),
    (".json", NOT_A_PACK, lambda data: data.replace(b'"format": 1', b'"format": "1"')),
    (".json", NOT_A_PACK, lambda data: data.replace(b'"format": 1', b'"format": 0')),
    (".npz", OTHER_COLUMNS, flip),
    (".npz", OTHER_COLUMNS, lambda data: data[:-1]),
    (".npz", OTHER_COLUMNS, lambda data: b""),
    (
        ".json",
        "{json} has format 2; this version of ersac reads formats up to 1",
        lambda data: data.replace(b'"format": 1', b'"format": 2'),
    ),
]


@pytest.mark.parametrize("number", range(len(DAMAGES)))
def test_a_damaged_pack_is_a_disk_error_in_one_line(packed, tmp_path, capsys, number):
    suffix, line, change = DAMAGES[number]
    columns = packed.with_suffix(".npz")
    rewrite(packed.with_suffix(suffix), change)
    wanted = "ersac: " + line.format(json=packed, npz=columns, name=packed.name)
    assert draw(capsys, packed.parent, tmp_path) == (74, [wanted])
    code, _, err = run_ersac(capsys, "compare", packed)
    assert (code, err) == (74, [wanted])


def test_a_pack_without_its_columns_is_a_disk_error(packed, tmp_path, capsys):
    packed.with_suffix(".npz").unlink()
    line = f"ersac: cannot read {packed.with_suffix('.npz')}: No such file or directory"
    assert draw(capsys, packed.parent, tmp_path) == (74, [line])
    assert run_ersac(capsys, "compare", packed.parent / "none.json")[0] == 74


def test_pack_errors_are_one_line_and_write_nothing(home, tmp_path, capsys):
    path, again = tmp_path / "p.json", f"ersac sweep {NAME} --scale smoke --out {home}"
    rewrite(home / WANTED[0].name / run_dir.RESULTS, flip)
    (home / WANTED[1].name / run_dir.SUMMARY).unlink()
    (home / WANTED[2].name / run_dir.FINGERPRINT).write_text("{")
    missing = f"3 of {len(WANTED)} runs are missing or damaged in {home}; run them first: {again}"
    (tmp_path / "there.json").touch()
    exists = f"{tmp_path / 'there.json'} already exists; choose another name or remove it"
    refused = {
        (NAME, "--pack", path): (75, missing),
        (NAME, "--pack", tmp_path / "p.zip"): (2, f"--pack {tmp_path / 'p.zip'} must end in .json"),
        (NAME, "--pack", tmp_path / "there.json"): (2, exists),
        (NAME, "--goals-only"): (2, "--goals-only needs --pack FILE"),
    }
    before = sorted(tmp_path.iterdir())
    for argv, (wanted, line) in refused.items():
        code, _, err = run_ersac(capsys, "sweep", *argv, "--out", home)
        assert (code, len(err)) == (wanted, 1)
        assert err[0].startswith(f"ersac: {line}")
    assert sorted(tmp_path.iterdir()) == before


def test_a_run_that_failed_for_good_is_named_in_the_pack(home, tmp_path, capsys):
    name = WANTED[0].name
    (home / name / run_dir.SUMMARY).unlink()
    run_dir.write_failure(home / name, WANTED[0].settings, "tau is not a number")
    path = tmp_path / "p.json"
    assert run_ersac(capsys, "sweep", NAME, "--out", home, "--pack", path)[0] == 0
    found = pack.read_pack(path)
    assert (found.failed, len(found.runs)) == ({name: "tau is not a number"}, len(WANTED) - 1)


def test_packs_and_directories_compare_alike(tmp_path, capsys):
    rng, runs = np.random.default_rng(0), []
    for agent, bonus in (("ersac", 1), ("vanilla", 0)):
        for seed in range(3):
            settings = api.make_settings("gym:CartPole-v1", agent=agent, steps=2000, seed=seed)
            returns = (rng.normal(size=200) + bonus).astype(np.float32)
            stats = EpisodeStats(seed, returns > 1, returns, np.arange(10, 2010, 10))
            write_run(tmp_path / f"{agent}-{seed}", settings, [stats])
            runs.append(tmp_path / f"{agent}-{seed}")
    read = lambda directory: pack.add_fingerprint(pack.read_run(directory), directory)
    paths = {"all": runs, "ersac": runs[:3], "vanilla": runs[3:]}
    for name, directories in paths.items():
        path = tmp_path / f"{name}.json"
        pack.write_pack(pack.Pack(path, name, "by hand", False, {}, [*map(read, directories)]))
    named = [
        runs,
        [tmp_path / "all.json"],
        [tmp_path / "all.npz"],
        [tmp_path / "ersac.json", *runs[3:]],
    ]
    outputs = [run_ersac(capsys, "compare", *argv, "--json") for argv in named]
    assert outputs[0][0] == 0
    assert json.loads(outputs[0][1][-1])["comparisons"][0]["improvement"] > 0.9
    assert outputs[1:] == outputs[:1] * 3


def test_packs_are_read_without_jax(packed):
    code = "import sys; sys.modules['jax'] = None; from ersac import cli; cli.main(sys.argv[1:])"
    argv = [sys.executable, "-c", code, "figure", LABEL, "--network", "table", "--records", packed]
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert (packed.parent / "figures" / f"{LABEL}-smoke.png").exists()


@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*.json")), ids=lambda path: path.stem)
def test_committed_summaries_follow_from_their_goals(path):
    found = pack.read_pack(path)
    assert found.title == path.stem
    for run in found.runs:
        stochastic = run.settings["env"].get("stochastic", False)
        for seed, row in zip(run.seeds, run.summary["per_seed"], strict=True):
            row_start = {"seed": seed.seed, "episodes": len(seed.goals)}
            assert (row_start | scores.goal_metrics(seed.goals, stochastic)).items() <= row.items()


def test_committed_results_stay_small():
    files = [path for path in COMMITTED.rglob("*") if path.is_file()]
    assert len(files) <= 80
    assert sum(path.stat().st_size for path in files) <= 6_000_000
