"""Files that are odd, foreign, hostile or gone: one line, nothing lost, nothing written elsewhere.

The table in docs/reliability.md names the finding behind each test.
"""

import errno
import io
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ersac import cli, config, display
from ersac.analysis import compare, export, picture
from ersac.config import SettingsError
from ersac.runs import checkpoint, disk, exits, run_dir, seal, trackers
from ersac.runs.run_dir import EpisodeStats
from ersac.sweeps import listing

NOTES = {"settings": "abc", "fingerprint": {}, "departures": [], "spent": {"wall": 0.1}}


def save(directory: Path, number: int) -> None:
    checkpoint.save_checkpoint(directory, number, {"loop": {"w": np.full(9, number)}}, NOTES)


@pytest.fixture
def two(tmp_path) -> Path:
    """A directory with two checkpoints."""
    for number in (10, 20):
        save(tmp_path / "checkpoints", number)
    return tmp_path / "checkpoints"


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> Path:
    """A directory with a run that has ended."""
    parent = tmp_path_factory.mktemp("runs")
    options = ["--depth", "4", "--episodes", "20", "--seeds", "1", "--hidden", "4", "4"]
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "deep-sea", *options, "--quiet", "--out", str(parent / "run")])
    assert end.value.code == 0
    return parent / "run"


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


# Checkpoints that cannot be read, or are not for this run


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.EIO, "x"), OSError(errno.EACCES, "x")], ids=repr
)
def test_what_cannot_be_read_now_is_not_damage(two, monkeypatch, error):
    before = contents(two)

    def read(path: Path, most: int | None) -> bytes:
        raise error

    monkeypatch.setattr(disk, "OPS", disk.Ops()._replace(read=read))
    with pytest.raises(exits.Resumable) as refusal:
        checkpoint.load_checkpoint(two, "abc", pytest.fail)
    assert exits.exit_code(refusal.value) == 75
    assert "\n" not in str(refusal.value)
    assert str(two / "000000000020.json") in str(refusal.value)
    assert contents(two) == before


LITTLE_MEMORY = """
import pathlib, resource, sys
from ersac.runs import checkpoint, exits
pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + 20_000_000
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    checkpoint.load_checkpoint(pathlib.Path(sys.argv[1]), "abc", print)
except exits.Resumable as error:
    print("refused:", error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_AS")
def test_a_real_lack_of_memory_is_not_damage(two):
    big = np.random.default_rng(0).integers(256, size=40_000_000, dtype=np.uint8)
    checkpoint.save_checkpoint(two, 30, {"loop": {"w": big}}, NOTES)
    before = sorted(os.listdir(two))
    process = subprocess.run(
        [sys.executable, "-c", LITTLE_MEMORY, str(two)], capture_output=True, text=True, check=True
    )
    assert process.stdout.startswith("refused: not enough memory to read"), process.stdout
    assert sorted(os.listdir(two)) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": checkpoint.FORMAT + 1}, "was written by a newer ersac"),
        ({"notes": {**NOTES, "settings": "xyz"}}, "belongs to a run with other settings"),
    ],
)
def test_a_newer_or_another_runs_checkpoint_is_refused_and_stays(two, change, words):
    for path in two.glob("*.json"):
        manifest = checkpoint.unseal_manifest(path.read_bytes())
        path.write_bytes(checkpoint.seal_manifest(manifest | change))
    before = contents(two)
    with pytest.raises(disk.DiskError, match=words) as refusal:
        checkpoint.load_checkpoint(two, "abc", pytest.fail)
    assert "\n" not in str(refusal.value)
    assert contents(two) == before


def test_a_checkpoint_of_the_first_format_is_read(two):
    path = two / "000000000020.json"
    manifest = checkpoint.unseal_manifest(path.read_bytes())
    path.write_bytes(checkpoint.seal_manifest(manifest | {"format": 1}))
    assert checkpoint.load_checkpoint(two, "abc", pytest.fail).number == 20


def test_settings_of_a_newer_ersac_are_named(tmp_path):
    run_dir.write_settings(tmp_path, config.Experiment())
    data = json.loads((tmp_path / run_dir.SETTINGS).read_text())
    data |= {"format": run_dir.SETTINGS_FORMAT + 1, "future": True}
    (tmp_path / run_dir.SETTINGS).write_text(json.dumps(data))
    with pytest.raises(disk.DiskError, match="was written by a newer ersac"):
        run_dir.read_settings(tmp_path)


def test_zeros_of_large_arrays_take_no_space_and_come_back(tmp_path):
    ring = np.zeros((3, 1 << 20), np.float32)
    ring[1, :1000] = np.random.default_rng(0).normal(size=1000)
    ring[2, -1] = -0.0  # whose bits are not all zero
    odd = np.zeros(ring.size + 5, np.uint8)  # no whole number of blocks
    odd[-1] = 7
    tree = {"loop": {"ring": ring, "odd": odd, "full": np.ones_like(ring), "none": odd * 0}}
    checkpoint.save_checkpoint(tmp_path, 1, tree, NOTES)
    assert (tmp_path / "000000000001.npz").stat().st_size < 1.1 * ring.nbytes  # `full`
    found = checkpoint.load_checkpoint(tmp_path, "abc", pytest.fail)
    for name, array in tree["loop"].items():
        loaded = found.arrays[f"loop/{name}"]
        assert (loaded.dtype, loaded.shape) == (array.dtype, array.shape)
        assert loaded.tobytes() == array.tobytes()


def test_a_save_takes_less_memory_than_a_ring_that_is_partly_full(tmp_path):
    ring = np.zeros((96, 1 << 20), np.uint8)
    ring[:28] = np.random.default_rng(0).integers(256, size=ring[:28].shape, dtype=np.uint8)
    tracemalloc.start()
    checkpoint.save_checkpoint(tmp_path, 1, {"loop": {"ring": ring}}, NOTES)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.9 * ring.nbytes


# What else is in the directory


def test_a_save_removes_only_what_a_checkpoint_has(two):
    for name in ("best-model.npz", "notes.txt", "12.json", "000000000010.json.bak"):
        (two / name).write_text("precious")
    (two / "mine").mkdir()
    (two / "000000000001.json").mkdir()  # the name of a checkpoint, and a directory
    (two / "000000000005.npz.partial").write_text("left by a crash")
    for number in (30, 40):
        save(two, number)
    assert (two / "000000000001.json").is_dir()
    assert (two / "mine").is_dir()
    names = {"best-model.npz", "notes.txt", "12.json", "000000000010.json.bak"}
    kept = {f"0000000000{number}.{end}" for number in (30, 40) for end in ("json", "npz")}
    assert contents(two).keys() == names | kept


def test_checkpoints_are_not_written_through_a_link(two, tmp_path):
    before = contents(two)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "checkpoints").symlink_to(two)
    with pytest.raises(disk.DiskError, match="is a symbolic link"):
        save(tmp_path / "other" / "checkpoints", 30)
    assert contents(two) == before


def test_links_are_not_followed_where_files_are_made(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    run = tmp_path / "run"
    run.mkdir()
    for name in ("lock", "facts.npz.partial", "events"):
        (run / name).symlink_to(precious)
    with pytest.raises(disk.DiskError, match="it is a symbolic link"), disk.lock(run / "lock"):
        pass
    with pytest.raises(disk.DiskError, match="it is a symbolic link"):
        disk.append(run / "events", b"forged")
    disk.write(run / "facts.npz", b"data")
    assert (run / "facts.npz").read_bytes() == b"data"
    (tmp_path / "elsewhere").mkdir()
    (run / "tensorboard").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(disk.DiskError, match="it is a symbolic link"):
        trackers.TensorBoard(run, SimpleNamespace(seeds=[0], chunks=0))
    assert precious.read_text() == "precious"
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_a_run_whose_directory_is_gone_stops(train, tmp_path, replaced):
    """A second run there keeps what it has."""
    run, calls = tmp_path / "run", 0

    def poll() -> int:
        nonlocal calls
        calls += 1
        if calls == 3:
            shutil.rmtree(run)
            if replaced:
                run.mkdir()
                (run / run_dir.LOCK).touch()
                save(run / "checkpoints", 10)
        return 0

    with pytest.raises(disk.DiskError, match="was removed, moved or replaced") as refusal:
        train(run, poll=poll)
    assert exits.exit_code(refusal.value) == 74
    assert run.exists() == replaced
    if replaced:
        assert sorted(os.listdir(run)) == ["checkpoints", "lock"]
        assert checkpoint.checkpoint_numbers(run / "checkpoints") == [10]


def test_a_change_of_the_working_directory_moves_nothing(train, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)

    def poll() -> int:
        os.chdir(tmp_path / "elsewhere")  # as an environment may
        return 0

    result = train(Path("run"), poll=poll)
    assert result.directory == tmp_path / "run"
    assert {"summary.json", "checkpoints"} <= set(os.listdir(tmp_path / "run"))
    assert not os.listdir(tmp_path / "elsewhere")


# Files that never end, or are larger than they say


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["settings.json", "lock", "summary.json", "facts.npz"])
@pytest.mark.parametrize("kind", ["fifo", "zero", "directory", "sparse"])
def test_an_odd_file_is_a_row_and_not_a_hang(ended, tmp_path, name, kind):
    shutil.copytree(ended, tmp_path / "a")
    shutil.copytree(ended, tmp_path / "b")
    path = tmp_path / "a" / name
    path.unlink()
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "zero":
            path.symlink_to("/dev/zero")
        case "directory":
            path.mkdir()
        case "sparse":
            with open(path, "wb") as file:
                file.truncate(1 << 28)
    tracemalloc.start()
    first, second = listing.find_runs(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert second.state == listing.ENDED
    is_harmless = (name, kind) == ("lock", "sparse")
    assert first.state == (listing.ENDED if is_harmless else listing.DAMAGED)
    assert "\n" not in first.describe_state()
    assert name == "facts.npz" or peak < 50e6


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path):
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("about.npy", bytes(1 << 26))
    path = tmp_path / "policy.npz"
    path.write_bytes(bomb.getvalue())
    from ersac.policy.policy import load_policy

    tracemalloc.start()
    with pytest.raises(disk.DiskError, match="is damaged"):
        load_policy(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    with pytest.raises(ValueError, match="larger than its size allows"):
        seal.npz_arrays(bomb.getvalue() + bytes(100), compressed=False)
    tracemalloc.stop()


@pytest.mark.parametrize("shape", [(10**12,), (3,), (0,), (-1,)])
def test_a_header_that_lies_is_refused(shape):
    member, bomb = io.BytesIO(), io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(member, header)
    with zipfile.ZipFile(bomb, "w") as file:
        file.writestr("w.npy", member.getvalue() + bytes(16))
    with pytest.raises(ValueError, match="a header does not match its data"):
        seal.npz_arrays(bomb.getvalue())


# Records with correct digests and odd contents


def reseal(run: Path, facts: dict[str, np.ndarray] | None = None, **changes: object) -> None:
    """Write other facts and another summary, with correct digests, as any hand could."""
    summary = seal.read_sealed(run / run_dir.SUMMARY)
    del summary[seal.SEAL]
    if facts is not None:
        data = seal.npz_bytes(facts, compress=True)
        disk.write(run / run_dir.RESULTS, data)
        summary["facts_sha256"] = disk.digest(data)
    summary = {name: value for name, value in (summary | changes).items() if value is not None}
    seal.write_sealed(run / run_dir.SUMMARY, summary)


def test_one_odd_summary_does_not_hide_other_runs(ended, tmp_path):
    for name, odd in {"a": None, "b": 7, "c": [0]}.items():
        shutil.copytree(ended, tmp_path / name)
        reseal(tmp_path / name, solved_reliable=odd)
    rows = {Path(row.run).name: row for row in listing.find_runs(tmp_path)}
    assert [rows[name].state for name in "abc"] == [listing.DAMAGED] * 2 + [listing.ENDED]
    assert "summary.json" in rows["a"].why


def test_foreign_facts_are_left_out_in_one_line(ended, tmp_path):
    with np.load(ended / run_dir.RESULTS) as file:
        good = dict(file)
    name = "seed/0/return_codes"
    odd: list[dict[str, np.ndarray]] = [
        {},
        {"x": np.zeros(3)},
        {key: array for key, array in good.items() if key != name},
        good | {name: good[name][:3]},
        good | {name: good[name] + 200},
        good | {"seed/0/episodes": np.asarray(10**15)},
        good | {"seed/x/episodes": np.asarray(3)},
        good | {"seed/0/goal_bits": good["seed/0/goal_bits"].astype(float)},
        good | {"metric/step": np.asarray(1)},
        good | {"metric/tau": np.zeros((7, 7))},
        good | {"metric/tau": good["metric/tau"].astype(complex)},
        good | {"maps/visits": np.zeros(3)},
    ]
    for number, facts in enumerate(odd):
        run = tmp_path / str(number)
        shutil.copytree(ended, run)
        reseal(run, facts)
        notes: list[str] = []
        with pytest.raises(SettingsError, match="nothing to export"):
            export.export_runs([run], tmp_path / "t.csv", "episodes", notes.append, print)
        with pytest.raises(SettingsError, match="nothing to compare"):
            compare.compare_runs([run], notes.append)
        assert len(notes) == 2, number
        assert all("is damaged" in line and "\n" not in line for line in notes), number


def test_a_record_of_before_the_new_names_is_read(ended, tmp_path):
    """Returns were stored as codes under the name `returns`."""
    with np.load(ended / run_dir.RESULTS) as file:
        new = dict(file)
    names = {"goal_bits": "goals", "return_codes": "returns", "return_values": "values"}
    old = {}
    for path, array in new.items():
        start, _, last = path.rpartition("/")
        old[f"{start}/{names.get(last, last) if start.startswith('seed') else last}"] = array
    assert old.keys() != new.keys()
    shutil.copytree(ended, tmp_path / "old")
    reseal(tmp_path / "old", old)
    (before,), (after,) = (
        run_dir.read_finished_run(run).seeds for run in (ended, tmp_path / "old")
    )
    np.testing.assert_array_equal(before.returns, after.returns)
    np.testing.assert_array_equal(before.goals, after.goals)


@pytest.mark.parametrize("about", [b"[" * 10**5, b"9" * 10**5, b"{}", b"[]", b"\xff", b"null"])
def test_a_policy_file_with_odd_json_is_one_line(tmp_path, about):
    from ersac.policy.policy import load_policy

    arrays = {"about": np.frombuffer(about, np.uint8)}
    (tmp_path / "file.npz").write_bytes(seal.seal_arrays(arrays))
    with pytest.raises(disk.DiskError, match="was written by a version of ersac that"):
        load_policy(tmp_path / "file.npz")


# What reaches the terminal


def test_names_cannot_forge_rows_or_move_the_cursor(ended, tmp_path, capsys):
    names = ["a\nrun  ended", "b\x1b[2J", "c[/b][red]", os.fsdecode(b"d\xff"), "e\u202e"]
    for name in names:
        shutil.copytree(ended, tmp_path / name)
    with pytest.raises(SystemExit) as end:
        cli.main(["runs", str(tmp_path)])
    assert end.value.code == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == len(names)
    assert all(char.isprintable() or char == "\n" for char in out)
    for name in (r"a\nrun  ended", r"b\x1b[2J", "c[/b][red]", r"d\udcff", r"e\u202e"):
        assert f"{tmp_path}/{name}" in out
    assert "\x1b[2J" not in err


def test_messages_are_one_printable_line(capsys):
    display.note("first\nsecond \x1b[31mred\x07")
    assert capsys.readouterr().err == "ersac: first second \\x1b[31mred\\x07\n"
    with pytest.raises(SystemExit):
        cli.main(["runs", "nowhere\x1b[2J\nersac: all is well"])
    assert capsys.readouterr().err.count("\n") == 1


def test_markup_in_a_name_is_text(capsys):
    from rich.console import Console

    screen = display.LineDisplay(Console(), str)
    screen.show("playing m[/b] [red]")
    assert capsys.readouterr().out == "playing m[/b] [red]\n"


def test_the_command_to_resume_is_quoted(tmp_path):
    assert run_dir.how_to_resume(Path("runs/a b;reboot")) == "ersac resume 'runs/a b;reboot'"
    run_dir.write_settings(tmp_path, config.Experiment())
    odd = tmp_path / "$(touch x)"
    odd.mkdir()
    run_dir.write_settings(odd, config.Experiment())
    with pytest.raises(SettingsError, match=r"ersac resume '.*\$\(touch x\)'"):
        run_dir.read_finished_summary(odd)


@pytest.mark.parametrize("name", ["gym:$x_{$", "a\nb", os.fsdecode(b"\xff"), r"\frac{"])
def test_a_name_is_no_formula_in_a_picture(name):
    stats = EpisodeStats(0, np.zeros(3, bool), np.ones(3, np.float32), np.arange(3))
    assert picture.picture_png(picture.draw_returns(name, name, [stats]))[:4] == b"\x89PNG"


def test_a_picture_that_fails_does_not_keep_results_from_being_written(
    train, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(picture, "draw_picture", lambda *_: 1 / 0)
    train(tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").exists()
    assert capsys.readouterr().err.startswith("ersac: no picture was drawn: ZeroDivisionError")
