"""What is saved is what is loaded, to the bit; what is not is found, named and moved aside."""

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
    ("spoil", "words"),
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
def test_a_checkpoint_of_another_shape_is_refused_in_one_line(tmp_path, spoil, words):
    checkpoint.save_checkpoint(tmp_path, 7, {"loop": tree()}, NOTES)
    with pytest.raises(disk.DiskError) as error:
        checkpoint.restore(
            checkpoint.load_checkpoint(tmp_path, "abc", pytest.fail), "loop", spoil(tree())
        )
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """Two generations."""
    made = tmp_path_factory.mktemp("two")
    for number in (10, 20):
        checkpoint.save_checkpoint(made, number, {"loop": tree(number)}, NOTES)
    return made


def copy(two: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(two, to)
    return to


OLDER = {name: raw(array) for name, array in checkpoint.flatten({"loop": tree(10)})[0].items()}


def falls_back(directory: Path, what: str = "") -> None:
    """The damage is named in one line and moved aside, and the older generation is used."""
    told: list[str] = []
    found = checkpoint.load_checkpoint(directory, "abc", told.append)
    assert found is not None, what
    assert found.number == 10, what
    assert {name: raw(array) for name, array in found.arrays.items()} == OLDER
    assert len(told) == 1, what
    assert "000000000020.json is damaged (" in told[0], what
    assert "\n" not in told[0], what
    assert checkpoint.checkpoint_numbers(directory) == [10]
    assert (directory / "000000000020.json.bad").exists()


def damaged(two: Path, tmp_path: Path, change, times: int) -> None:
    rng = np.random.default_rng(0)
    names = ["000000000020.npz", "000000000020.json"]
    sizes = np.array([os.path.getsize(two / name) for name in names])
    directory = copy(two, tmp_path / "damaged")
    whole = {name: (two / name).read_bytes() for name in names}
    for number in range(times):
        for name, data in whole.items():
            (directory / name).write_bytes(data)
        path = (
            directory
            / names[rng.choice(2, p=sizes / sizes.sum()) if number % 2 else number // 2 % 2]
        )
        path.write_bytes(change(rng, bytearray(whole[path.name])))
        falls_back(directory, f"{number} {path.name}")


@pytest.fixture
def hasty(monkeypatch) -> None:
    """A disk that is not waited for: these tests are not about crashes."""
    monkeypatch.setattr(disk, "OPS", disk.OPS._replace(sync_directory=lambda _: None))


@pytest.mark.usefixtures("hasty")
def test_1000_bit_flips(two, tmp_path):
    def flip(rng, data):
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        return data

    damaged(two, tmp_path, flip, 1000)


@pytest.mark.usefixtures("hasty")
def test_200_truncations(two, tmp_path):
    damaged(two, tmp_path, lambda rng, data: data[: rng.integers(len(data))], 200)


@pytest.mark.parametrize("suffixes", [(".npz",), (".json",), (".npz", ".json")])
def test_swapped_files(two, tmp_path, suffixes):
    directory = copy(two, tmp_path / "swapped")
    for suffix in suffixes:
        a, b = directory / f"000000000010{suffix}", directory / f"000000000020{suffix}"
        a.rename(directory / "aside")
        b.rename(a)
        (directory / "aside").rename(b)
    told: list[str] = []
    with pytest.raises(disk.DiskError, match=r"no good checkpoint in .*: 2 damaged") as error:
        checkpoint.load_checkpoint(directory, "abc", told.append)
    assert len(told) == 2
    assert "\n" not in str(error.value)
    with pytest.raises(
        disk.DiskError, match="no good checkpoint"
    ):  # it does not start afresh behind anybody's back
        checkpoint.load_checkpoint(directory, "abc", pytest.fail)


@pytest.mark.parametrize("name", ["000000000020.npz", "000000000020.json"])
def test_a_missing_half(two, tmp_path, name):
    directory = copy(two, tmp_path / "missing")
    (directory / name).unlink()
    if name.endswith("npz"):
        falls_back(directory)
        assert checkpoint.load_checkpoint(directory, "abc", pytest.fail).number == 10  # said once
    else:  # arrays without a manifest never were a checkpoint
        assert checkpoint.load_checkpoint(directory, "abc", pytest.fail).number == 10


def test_another_runs_checkpoint_is_not_taken(two, tmp_path):
    told: list[str] = []
    with pytest.raises(disk.DiskError):
        checkpoint.load_checkpoint(copy(two, tmp_path / "other"), "xyz", told.append)
    assert ["a run with other settings" in line for line in told] == [True, True]


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def malicious(number: int, canary: Path) -> bytes:
    """Files that run code when they are unpickled, in 20 disguises."""
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
        told: list[str] = []
        assert checkpoint.load_checkpoint(directory, "abc", told.append).number == 10
        assert len(told) == 1
        assert "not readable" in told[0]
        assert not canary.exists()
