"""Checkpoints load bit for bit; a damaged one is detected, named and moved aside."""

import io
import os
import shutil
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest

from ersac.runs import checkpoint, disk

NOTES = {"settings": "abc", "fingerprint": {}, "departures": [], "spent": {"wall": 0.1}}


def tree(seed: int = 0):
    rng = np.random.default_rng(seed)
    odd = np.array([np.nan, -np.nan, np.inf, -0.0, 1e-45], np.float32)
    return {
        "floats": {
            "w": rng.normal(size=(3, 4)).astype(np.float32),
            "odd": odd,
            "double": rng.normal(size=3),
        },
        "ints": (
            rng.integers(0, 9, 5),
            np.int8(-3),
            np.arange(4, dtype=np.uint32),
            rng.random(7) < 0.5,
        ),
        "half": rng.normal(size=6).astype(ml_dtypes.bfloat16),
        "empty": np.zeros((0, 3), np.int16),
        "keys": jax.random.split(jax.random.key(seed), 3),
        "other": jax.random.key(seed, impl="rbg"),
    }


def raw(leaf) -> tuple:
    data = np.asarray(jax.random.key_data(leaf)) if checkpoint.is_key(leaf) else np.asarray(leaf)
    return str(getattr(leaf, "dtype", data.dtype)), data.shape, data.tobytes()


def test_every_bit_and_type_comes_back(tmp_path):
    saved = tree()
    checkpoint.save_checkpoint(tmp_path, 7, {"loop": saved}, NOTES)
    found = checkpoint.load_checkpoint(tmp_path, "abc", pytest.fail)
    assert (found.number, found.notes) == (7, NOTES)
    back = checkpoint.restore(found, "loop", tree(1))
    assert jax.tree.structure(back) == jax.tree.structure(saved)
    assert [raw(leaf) for leaf in jax.tree.leaves(back)] == [
        raw(leaf) for leaf in jax.tree.leaves(saved)
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda t: {**t, "half": np.zeros(6, np.float16)},
            "loop/half is bfloat16[6] instead of float16[6]",
        ),
        (lambda t: {**t, "half": np.zeros(5, ml_dtypes.bfloat16)}, "instead of bfloat16[5]"),
        (lambda t: {**t, "more": np.zeros(1)}, "loop/more is absent instead of float64[1]"),
        (
            lambda t: {name: t[name] for name in t if name != "empty"},
            "loop/empty is int16[0, 3] instead of absent",
        ),
        (lambda t: {**t, "keys": jax.random.key_data(t["keys"])}, "loop/keys"),
    ],
)
def test_a_checkpoint_of_another_shape_is_refused_in_one_line(tmp_path, change, words):
    checkpoint.save_checkpoint(tmp_path, 7, {"loop": tree()}, NOTES)
    with pytest.raises(disk.DiskError) as error:
        checkpoint.restore(
            checkpoint.load_checkpoint(tmp_path, "abc", pytest.fail), "loop", change(tree())
        )
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """A directory with two checkpoints."""
    directory = tmp_path_factory.mktemp("two")
    for number in (10, 20):
        checkpoint.save_checkpoint(directory, number, {"loop": tree(number)}, NOTES)
    return directory


def copy(two: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(two, to)
    return to


OLDER = {name: raw(array) for name, array in checkpoint.flatten({"loop": tree(10)})[0].items()}


def assert_falls_back(directory: Path, label: str = "") -> None:
    """Assert that the damage is reported in one line and the older checkpoint is used."""
    notes: list[str] = []
    found = checkpoint.load_checkpoint(directory, "abc", notes.append)
    assert found is not None, label
    assert found.number == 10, label
    assert {name: raw(array) for name, array in found.arrays.items()} == OLDER
    assert len(notes) == 1, label
    assert "000000000020.json is damaged (" in notes[0], label
    assert "\n" not in notes[0], label
    assert checkpoint.checkpoint_numbers(directory) == [10]
    assert (directory / "000000000020.json.bad").exists()


def assert_damage_is_found(two: Path, tmp_path: Path, change, times: int) -> None:
    rng = np.random.default_rng(0)
    names = ["000000000020.npz", "000000000020.json"]
    sizes = np.array([os.path.getsize(two / name) for name in names])
    directory = copy(two, tmp_path / "damaged")
    intact = {name: (two / name).read_bytes() for name in names}
    for number in range(times):
        for name, data in intact.items():
            (directory / name).write_bytes(data)
        path = (
            directory
            / names[rng.choice(2, p=sizes / sizes.sum()) if number % 2 else number // 2 % 2]
        )
        path.write_bytes(change(rng, bytearray(intact[path.name])))
        assert_falls_back(directory, f"{number} {path.name}")


@pytest.fixture
def hasty(monkeypatch) -> None:
    """A disk that does not sync directories: these tests are not about crashes."""
    monkeypatch.setattr(disk, "OPS", disk.OPS._replace(sync_directory=lambda _: None))


@pytest.mark.usefixtures("hasty")
def test_1000_bit_flips(two, tmp_path):
    def flip(rng, data):
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        return data

    assert_damage_is_found(two, tmp_path, flip, 1000)


@pytest.mark.usefixtures("hasty")
def test_200_truncations(two, tmp_path):
    assert_damage_is_found(two, tmp_path, lambda rng, data: data[: rng.integers(len(data))], 200)


@pytest.mark.parametrize("suffixes", [(".npz",), (".json",), (".npz", ".json")])
def test_swapped_files(two, tmp_path, suffixes):
    directory = copy(two, tmp_path / "swapped")
    for suffix in suffixes:
        a, b = directory / f"000000000010{suffix}", directory / f"000000000020{suffix}"
        a.rename(directory / "aside")
        b.rename(a)
        (directory / "aside").rename(b)
    notes: list[str] = []
    with pytest.raises(disk.DiskError, match=r"no good checkpoint in .*: 2 damaged") as error:
        checkpoint.load_checkpoint(directory, "abc", notes.append)
    assert len(notes) == 2
    assert "\n" not in str(error.value)
    with pytest.raises(disk.DiskError, match="no good checkpoint"):  # it does not start again
        checkpoint.load_checkpoint(directory, "abc", pytest.fail)


@pytest.mark.parametrize("name", ["000000000020.npz", "000000000020.json"])
def test_a_missing_half(two, tmp_path, name):
    directory = copy(two, tmp_path / "missing")
    (directory / name).unlink()
    if name.endswith("npz"):
        assert_falls_back(directory)
        assert (
            checkpoint.load_checkpoint(directory, "abc", pytest.fail).number == 10
        )  # reported once
    else:  # arrays without a manifest are not a checkpoint
        assert checkpoint.load_checkpoint(directory, "abc", pytest.fail).number == 10


def test_another_runs_checkpoint_is_not_taken(two, tmp_path):
    with pytest.raises(disk.DiskError, match="a run with other settings"):
        checkpoint.load_checkpoint(copy(two, tmp_path / "other"), "xyz", pytest.fail)
    assert checkpoint.checkpoint_numbers(tmp_path / "other") == [10, 20]  # nor moved aside


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def malicious(number: int, canary: Path) -> bytes:
    """Return a file that runs code when it is unpickled, in one of 20 forms."""
    evil, fine, buffer = (
        np.array([Canary(canary)] * (1 + number // 4), dtype=object),
        np.zeros(3),
        io.BytesIO(),
    )
    match number % 4:
        case 0:
            np.savez(buffer, **{"loop/w": evil})
        case 1:
            np.savez_compressed(buffer, **{"loop/a": fine, "loop/w": evil})
        case 2:
            np.save(buffer, evil, allow_pickle=True)  # no zip at all
        case 3:
            buffer.write(evil.dumps())  # a bare pickle
    return buffer.getvalue()


def test_20_malicious_files_are_refused_and_run_nothing(tmp_path):
    for number in range(20):
        directory, canary = tmp_path / str(number), tmp_path / "canary"
        checkpoint.save_checkpoint(directory, 10, {"loop": {"w": np.zeros(3)}}, NOTES)
        checkpoint.save_checkpoint(directory, 20, {"loop": {"w": np.ones(3)}}, NOTES)
        data = malicious(number, canary)
        (directory / "000000000020.npz").write_bytes(data)
        manifest = checkpoint.unseal_manifest((directory / "000000000020.json").read_bytes())
        manifest |= {
            "bytes": len(data),
            "sha256": disk.digest(data),
        }  # the attacker can compute digests too
        (directory / "000000000020.json").write_bytes(checkpoint.seal_manifest(manifest))
        notes: list[str] = []
        assert checkpoint.load_checkpoint(directory, "abc", notes.append).number == 10
        assert len(notes) == 1
        assert "not readable" in notes[0]
        assert not canary.exists()
