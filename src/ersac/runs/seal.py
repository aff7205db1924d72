"""Data that carries its own sha256, so that a reader notices every change. No jax here."""

import functools
import io
import json
import math
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ersac.runs import disk

SEAL = "sha256"  # the field, or the npz member, that holds the digest of everything beside it
# What the members of a compressed file may have in bytes: a share of the file's own, or the least.
MAX_RATIO, LEAST_UNPACKED = 200, 1 << 28


def json_digest(data: Any) -> str:
    """Return the sha256 of JSON data, whatever the order of its keys."""
    return disk.digest(json.dumps(data, sort_keys=True, default=str).encode())


def seal_json(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data with its digest added."""
    return {**data, SEAL: json_digest(data)}


def unseal_json(text: bytes) -> dict[str, Any]:
    """Parse sealed JSON, digest included; ValueError if it is not what was written."""
    data = json.loads(text)
    if (
        not isinstance(data, dict)
        or seal_json({name: value for name, value in data.items() if name != SEAL}) != data
    ):
        raise ValueError("its sha256 does not match")
    return data


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write JSON as indented text."""
    disk.write(path, (json.dumps(data, indent=2, default=str) + "\n").encode())


def write_sealed(path: Path, data: dict[str, Any]) -> None:
    """Write JSON with its digest."""
    write_json(path, seal_json(data))


def read_sealed(path: Path) -> dict[str, Any]:
    """Return what `write_sealed` wrote; ValueError or RecursionError if the file is another."""
    return unseal_json(disk.read(path, disk.MAX_TEXT))


def npz_bytes(arrays: dict[str, np.ndarray], compress: bool = False) -> memoryview:
    """Return arrays as the bytes of an npz file.

    Types that numpy has no name for (bfloat16) are stored as integers of the same width.
    """
    stored = {
        name: array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")
        for name, array in arrays.items()
    }
    buffer = io.BytesIO()
    if compress:
        np.savez_compressed(buffer, allow_pickle=False, **stored)
    else:
        np.savez(buffer, allow_pickle=False, **stored)
    return buffer.getbuffer()


def npz_arrays(
    data: disk.Bytes, compressed: bool = False, only: str | None = None
) -> dict[str, np.ndarray]:
    """Return the arrays of an npz file by name; ValueError if it is not a sound one.

    The sizes that the file claims are checked before anything is unpacked: together its members
    are at most as large as the file or, with `compressed`, as plausible records of that size.

    only: the one array to return.
    """
    most = max(MAX_RATIO * len(data), LEAST_UNPACKED) if compressed else len(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            members = file.infolist()
            if sum(member.file_size for member in members) > most:
                raise ValueError("its members are larger than its size allows")
            return {
                name: _npy_array(file.read(member))
                for member in members
                if (name := member.filename.removesuffix(".npy")) == only or only is None
            }
    except (ValueError, MemoryError):
        raise
    except Exception as error:  # the file may contain any bytes at all
        raise ValueError(f"it is not readable: {type(error).__name__}") from None


def _npy_array(data: bytes) -> np.ndarray:
    """Return the array in an npy file, whose length must be the one that its header says."""
    width = 2 if data[6:7] == b"\x01" else 4  # bytes of the header's length, by format version
    start = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    shape, fortran, dtype = _npy_header(data[:start])
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or min(shape, default=0) < 0 or size != len(data) - start:
        raise ValueError("a header does not match its data")
    order: Literal["F", "C"] = "F" if fortran else "C"
    return np.ndarray(shape, dtype, bytearray(data), start, order=order)


@functools.lru_cache(maxsize=4096)
def _npy_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return (shape, whether in Fortran order, dtype); the runs of a sweep share their headers."""
    file = io.BytesIO(header)
    version = np.lib.format.read_magic(file)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    return read_header(file)


def arrays_below(arrays: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Return the arrays whose names start with `name/`, by the rest of their names."""
    prefix = name + "/"
    return {
        path.removeprefix(prefix): array
        for path, array in arrays.items()
        if path.startswith(prefix)
    }


def seal_arrays(arrays: dict[str, np.ndarray], compress: bool = False) -> memoryview:
    """Return arrays as the bytes of an npz file that holds their digest too."""
    digest = np.frombuffer(arrays_digest(arrays).encode(), np.uint8)
    return npz_bytes({**arrays, SEAL: digest}, compress)


def unseal_arrays(data: disk.Bytes, compressed: bool = False) -> dict[str, np.ndarray]:
    """Return the arrays of a sealed npz file; ValueError if they are not what was written."""
    try:
        arrays = npz_arrays(data, compressed)
        intact = arrays.pop(SEAL).tobytes().decode() == arrays_digest(arrays)
    except (ValueError, KeyError) as error:
        raise ValueError(f"it is not readable: {type(error).__name__}") from None
    if not intact:
        raise ValueError("its sha256 does not match")
    return arrays


def arrays_digest(arrays: dict[str, np.ndarray]) -> str:
    """Return the sha256 of arrays and of their names, types and shapes."""
    return json_digest(
        {
            name: [array_form(array), disk.digest(np.ascontiguousarray(array).tobytes())]
            for name, array in arrays.items()
        }
    )


def array_form(array: np.ndarray) -> str:
    """Return an array's type and shape, as 'float32[3, 8]'."""
    return f"{array.dtype.name}{list(array.shape)}"
