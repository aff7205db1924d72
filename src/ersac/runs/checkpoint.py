"""Checkpoints: a tree of arrays as files with digests.

A checkpoint is two files: the arrays of the tree (npz, no pickle) and a manifest that names every
one of them, with the sha256 of the arrays' file and of itself. The manifest is written last: files
without one are not a checkpoint. Two checkpoints are kept; an older one is removed only after the
newest has been read back from disk. Of large arrays, blocks of zeros are not stored: most of a
replay that is not full yet.
"""

import errno
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ersac.runs import disk, exits, seal
from ersac.runs.seal import array_form
from ersac.types import Array, Tree

MAX_TO_KEEP = 2
DIRECTORY, BAD = "checkpoints", ".bad"
FORMAT = 2  # 1 stored every array whole
OWN_NAME = re.compile(rf"\d{{12}}\.(json|npz)({re.escape(disk.PARTIAL)})?")
ZERO_BLOCK = 1 << 16  # bytes: blocks of zeros of this size are left out
BLOCKS = "blocks"  # before the name of an array: which of its blocks are stored


class CorruptCheckpoint(ValueError):
    """A checkpoint that is not what was written; the text says why."""


class ForeignCheckpoint(disk.DiskError):
    """A sound checkpoint that this run cannot use: a newer format, or another run's."""


class Checkpoint(NamedTuple):
    """A saved state."""

    number: int  # rollouts done
    arrays: dict[str, np.ndarray]  # by path
    keys: dict[str, str]  # implementation of those that are random keys
    notes: dict[str, Any]


def flatten(tree: Tree) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return a tree's leaves as numpy arrays by path, and the implementation of its random keys."""
    leaves = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    keys = {name: str(jax.random.key_impl(leaf)) for name, leaf in leaves.items() if is_key(leaf)}
    return {
        name: np.asarray(jax.random.key_data(leaf) if name in keys else leaf)
        for name, leaf in leaves.items()
    }, keys


def is_key(leaf: Any) -> bool:
    """Return whether an array holds typed random keys."""
    return isinstance(leaf, Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def restore(saved: Checkpoint, name: str, like: Tree) -> Tree:
    """Return the arrays below a name as a tree with the structure, shapes and types of `like`."""
    wanted, key_impls = flatten({name: like})
    below = {path for path in saved.arrays if path.startswith(name + "/")}
    for path in sorted(wanted.keys() | below):
        want, have = wanted.get(path), saved.arrays.get(path)
        if (
            want is None
            or have is None
            or (want.shape, want.dtype, key_impls.get(path))
            != (have.shape, have.dtype, saved.keys.get(path))
        ):
            raise disk.DiskError(
                f"checkpoint {saved.number} does not fit this version of ersac: "
                f"{path} is {_form(have)} instead of {_form(want)}"
            )
    key = lambda path: jax.random.wrap_key_data(
        jax.numpy.asarray(saved.arrays[path]), impl=key_impls[path]
    )
    leaves = [key(path) if path in key_impls else saved.arrays[path] for path in wanted]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def save_checkpoint(directory: Path, number: int, tree: Tree, notes: dict[str, Any]) -> None:
    """Write a checkpoint, read it back, and only then remove those that are no longer kept."""
    arrays, keys = flatten(tree)
    data = seal.npz_bytes(without_zero_blocks(arrays))
    forms = {name: array_form(array) for name, array in arrays.items()}
    manifest = {
        "format": FORMAT,
        "number": number,
        "bytes": len(data),
        "sha256": disk.digest(data),
        "arrays": forms,
        "keys": keys,
    }
    disk.make_own_directory(directory)
    disk.write(_arrays_path(directory, number), data)
    disk.write(_manifest_path(directory, number), seal_manifest(manifest | {"notes": notes}))
    del data
    try:
        verify(directory, number)
    except CorruptCheckpoint as why:
        raise disk.DiskError(
            f"{_manifest_path(directory, number)} does not read back as it was written: {why}",
            errno.EIO,
        ) from None
    prune(directory)


def load_checkpoint(directory: Path, run_id: str, note: Callable[[str], None]) -> Checkpoint | None:
    """Return the newest intact checkpoint of a run; None if none was ever written.

    A damaged one is reported by `note` and moved aside, and the next older one is tried. Raises
    DiskError if all are damaged, and Resumable if one cannot be read here and now: only a wrong
    digest is damage.
    """
    for number in reversed(checkpoint_numbers(directory)):
        path = _manifest_path(directory, number)
        try:
            return read_checkpoint(directory, number, run_id)
        except ForeignCheckpoint:
            raise
        except (OSError, MemoryError) as error:
            raise exits.Resumable(_unreadable(path, error)) from error
        except CorruptCheckpoint as why:
            note(f"checkpoint {path} is damaged ({why}); moved aside as *{BAD}")
            move_aside(directory, number)
    if bad := [name for name in disk.names(directory) if name.endswith(".json" + BAD)]:
        raise disk.DiskError(
            f"no good checkpoint in {directory}: {len(bad)} damaged, moved aside as *{BAD}; "
            "remove the directory to start again"
        )
    return None


def _unreadable(path: Path, error: Exception) -> str:
    """Return one line about a checkpoint that could not be read, and is as good as before."""
    reason = str(error) if isinstance(error, OSError) else f"not enough memory to read {path}"
    return f"{reason}; the checkpoints are unchanged, resume again once that is mended"


def read_checkpoint(directory: Path, number: int, run_id: str) -> Checkpoint:
    """Return one checkpoint of a run.

    Raises CorruptCheckpoint if it is damaged, ForeignCheckpoint if it is another run's.
    """
    manifest, data = verify(directory, number)
    if manifest["notes"].get("settings") != run_id:
        path = _manifest_path(directory, number)
        raise ForeignCheckpoint(
            f"{path} belongs to a run with other settings; move it elsewhere (nothing was changed)"
        )
    try:
        stored = seal.npz_arrays(data)
        arrays = {
            name: _stored_array(stored, name, manifest["arrays"][name])
            for name in manifest["arrays"]
        }
    except MemoryError:
        raise
    except Exception as error:  # a forged digest is correct, whatever the file holds
        raise CorruptCheckpoint(f"its arrays are not readable: {type(error).__name__}") from None
    if {name: array_form(array) for name, array in arrays.items()} != manifest["arrays"]:
        raise CorruptCheckpoint("its arrays do not match its manifest")
    return Checkpoint(number, arrays, manifest["keys"], manifest["notes"])


def verify(directory: Path, number: int) -> tuple[dict[str, Any], bytes]:
    """Return a checkpoint's manifest and arrays file; CorruptCheckpoint if a digest is wrong."""
    path = _manifest_path(directory, number)
    manifest = unseal_manifest(_bytes(path, disk.MAX_TEXT))
    if manifest["format"] > FORMAT:
        raise ForeignCheckpoint(
            f"{path} was written by a newer ersac: its format is {manifest['format']}, and this "
            f"version reads up to {FORMAT} (nothing was changed)"
        )
    if manifest["number"] != number:
        raise CorruptCheckpoint(f"it is checkpoint {manifest['number']} under another name")
    data = _bytes(_arrays_path(directory, number))
    if len(data) != manifest["bytes"]:
        raise CorruptCheckpoint(
            f"its arrays have {len(data):,} bytes instead of {manifest['bytes']:,}"
        )
    if disk.digest(data) != manifest["sha256"]:
        raise CorruptCheckpoint("the sha256 of its arrays does not match")
    return manifest, data


def seal_manifest(manifest: dict[str, Any]) -> bytes:
    """Return a manifest as bytes that carry their own digest."""
    sealed = {"manifest": manifest, "sha256": seal.json_digest(manifest)}
    return (json.dumps(sealed, sort_keys=True, indent=1) + "\n").encode()


def unseal_manifest(data: bytes) -> dict[str, Any]:
    """Return a manifest from its bytes; CorruptCheckpoint if a single one of them has changed."""
    try:
        manifest = json.loads(data)["manifest"]
        sealed = seal_manifest(manifest)
    except MemoryError:
        raise
    except Exception as error:  # the file may contain any bytes at all
        raise CorruptCheckpoint(f"its manifest is not readable: {type(error).__name__}") from None
    if sealed != data:
        raise CorruptCheckpoint("the sha256 of its manifest does not match")
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise CorruptCheckpoint("its manifest is not that of a checkpoint")
    return manifest


def checkpoint_numbers(directory: Path) -> list[int]:
    """Return the numbers of all complete checkpoints, oldest first."""
    return [
        int(found[1])
        for name in disk.names(directory)
        if (found := re.fullmatch(r"(\d{12})\.json", name))
    ]


def prune(directory: Path) -> None:
    """Remove checkpoints that are no longer kept, and incomplete files; nothing else."""
    current = {
        path.name
        for number in checkpoint_numbers(directory)[-MAX_TO_KEEP:]
        for path in (_manifest_path(directory, number), _arrays_path(directory, number))
    }
    old = [
        directory / name
        for name in disk.names(directory)
        if name not in current and OWN_NAME.fullmatch(name)
    ]
    # Manifests first: arrays without a manifest are ignored, a manifest without arrays is damage.
    disk.remove([path for path in old if path.suffix == ".json"])
    disk.remove([path for path in old if path.suffix != ".json"])


def move_aside(directory: Path, number: int) -> None:
    """Rename the files of a damaged checkpoint, so that they can be inspected."""
    for path in (_arrays_path(directory, number), _manifest_path(directory, number)):
        if path.exists():
            disk.move(path, path.with_name(path.name + BAD))


def fingerprint_changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the differences between two fingerprints, as 'visible cores 2 -> 1'.

    A field that one of them lacks, because another version recorded it, is not known to differ.
    """
    both = ((name, before[name], now[name]) for name in sorted(before.keys() & now.keys()))
    return [f"{name} {old or 'none'} -> {new or 'none'}" for name, old, new in both if old != new]


def _manifest_path(directory: Path, number: int) -> Path:
    return directory / f"{number:012d}.json"


def _arrays_path(directory: Path, number: int) -> Path:
    return directory / f"{number:012d}.npz"


def _bytes(path: Path, most: int | None = None) -> bytes:
    try:
        return disk.read(path, most)
    except disk.DiskError as error:
        if error.errno != errno.ENOENT:
            raise  # not damage: the user can correct it
        raise CorruptCheckpoint(f"{path.name} is missing") from None


def without_zero_blocks(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays as a file stores them: of large ones, only blocks that are not zero.

    Such an array becomes the bytes of its other blocks, and a bit for each block.
    """
    stored = {}
    for name, array in arrays.items():
        stored[name] = array
        if array.nbytes < 2 * ZERO_BLOCK:
            continue
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        end = len(data) - len(data) % ZERO_BLOCK
        blocks = data[:end].reshape(-1, ZERO_BLOCK)
        filled = np.asarray(blocks.view(np.uint64).any(axis=1))
        if not filled.all():
            stored[name] = np.concatenate([blocks[filled].reshape(-1), data[end:]])
            stored[f"{BLOCKS}/{name}"] = filled
    return stored


def _stored_array(stored: dict[str, np.ndarray], name: str, form: str) -> np.ndarray:
    """Return an array of that type and shape from what a file stores of it."""
    array, filled = stored[name], stored.get(f"{BLOCKS}/{name}")
    dtype, _, shape = form.partition("[")
    want = jax.numpy.dtype(dtype)
    if filled is None:
        return array if array.dtype == want else array.view(want)
    whole = np.zeros(json.loads(f"[{shape}"), want)
    data = whole.reshape(-1).view(np.uint8)
    end = len(filled) * ZERO_BLOCK
    used = len(array) - (len(data) - end)
    data[:end].reshape(-1, ZERO_BLOCK)[filled] = array[:used].reshape(-1, ZERO_BLOCK)
    data[end:] = array[used:]
    return whole


def _form(array: np.ndarray | None) -> str:
    return "absent" if array is None else array_form(array)
