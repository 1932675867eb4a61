"""What travels between a device and the server, as one flat array of bytes.

    7 bytes magic | 1 byte schema | 4 bytes header length | header (JSON) | the arrays' bytes, one after another

The header names every array with its type and shape, so a reader knows the exact length before it looks at a single
number. Rows of zeros do not travel (`sparse_rows`). Nothing is ever unpickled. Numbers are little-endian, the header's
length is big-endian.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedctta.fleet.transport.sparse_rows import Inconsistent, leave_out_zeros, put_zeros_back

SCHEMA = 2
KINDS = ("hello", "step", "upload", "download", "nothing", "refused")
DTYPES = ("float32", "float16", "int64", "bool", "uint8")
MAGIC = b"fedctta"
PREFIX = len(MAGIC) + 1 + 4
HEADER_LIMIT = 1 << 20
MOST_DIMENSIONS = 8

Note = dict[str, str | int | float]


class Malformed(ValueError):
    """Bytes that are not a parcel; the message says why."""


@dataclass(frozen=True)
class Parcel:
    """A message's kind, the server round it belongs to, small facts, and arrays.

    These are "own.<tensor>", what the client has of its own, "signal.<name>", and "known.<name>", what the server has.
    """

    kind: str
    round: int = 0
    note: Note = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)


def pack(parcel: Parcel) -> NDArray[np.uint8]:
    """Return the parcel as one flat array of bytes."""
    for name, array in parcel.arrays.items():
        if array.dtype.name not in DTYPES:
            raise Malformed(f"array {name!r} is {array.dtype.name}: only {', '.join(DTYPES)} travel")
    arrays = {
        name: np.asarray(a, _little(a.dtype.name), order="C") for name, a in leave_out_zeros(parcel.arrays).items()
    }
    header = {
        "kind": parcel.kind,
        "round": parcel.round,
        "note": parcel.note,
        "arrays": [[name, a.dtype.name, list(a.shape)] for name, a in arrays.items()],
    }
    _check(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    if len(text) > HEADER_LIMIT:
        raise Malformed(f"the header has {len(text)} bytes, more than {HEADER_LIMIT}")
    start = MAGIC + bytes([SCHEMA]) + len(text).to_bytes(4, "big") + text
    parts = [np.frombuffer(start, np.uint8), *(a.reshape(-1).view(np.uint8) for a in arrays.values())]
    return np.concatenate(parts)


def unpack(flat: NDArray[Any] | bytes, limit: int) -> Parcel:
    """Read a parcel of at most `limit` bytes, or raise `Malformed`. The arrays are copies."""
    if isinstance(flat, np.ndarray) and (flat.dtype != np.uint8 or flat.ndim != 1):
        raise Malformed(f"a flat uint8 array was expected, not {flat.dtype} with {flat.ndim} dimensions")
    size = len(flat)
    if size > limit:
        raise Malformed(f"{size} bytes are more than the {limit} allowed")
    raw = memoryview(np.ascontiguousarray(flat).data if isinstance(flat, np.ndarray) else flat)
    if size < PREFIX or raw[: len(MAGIC)] != MAGIC:
        raise Malformed("this is not a parcel (wrong first bytes)")
    if raw[len(MAGIC)] != SCHEMA:
        raise Malformed(f"schema {raw[len(MAGIC)]} is spoken, but {SCHEMA} is understood: use the same fedctta version")
    body = PREFIX + int.from_bytes(raw[PREFIX - 4 : PREFIX], "big")
    if body > min(size, PREFIX + HEADER_LIMIT):
        raise Malformed("the header is longer than the parcel or than allowed")
    header = _header(bytes(raw[PREFIX:body]))
    arrays = {}
    for name, dtype, shape in header["arrays"]:
        kind, count = _little(dtype), math.prod(shape)
        if body + count * kind.itemsize > size:
            raise Malformed(f"the bytes end within array {name!r}")
        values = np.frombuffer(raw, kind, count, body).reshape(shape).copy()
        if dtype == "bool" and (values.view(np.uint8) > 1).any():
            raise Malformed(f"array {name!r} holds bytes that are neither true nor false")
        arrays[name] = values
        body += count * kind.itemsize
    if body != size:
        raise Malformed(f"{size - body} bytes follow the last array")
    try:
        arrays = put_zeros_back(arrays, limit)
    except Inconsistent as error:
        raise Malformed(str(error)) from error
    return Parcel(header["kind"], header["round"], header["note"], arrays)


def _little(dtype: str) -> np.dtype[Any]:
    return np.dtype(dtype).newbyteorder("<")


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed("the header is not JSON") from error
    _check(header)
    return dict(header)


def _check(header: Any) -> None:
    """Refuse a header that is not of the one form `pack` writes."""
    if not isinstance(header, Mapping) or header.keys() != {"kind", "round", "note", "arrays"}:
        raise Malformed("the header must have kind, round, note and arrays")
    if header["kind"] not in KINDS:
        raise Malformed(f"kind {header['kind']!r:.40} is none of {', '.join(KINDS)}")
    if type(header["round"]) is not int or not 0 <= header["round"] < 1 << 63:
        raise Malformed("round must be a whole number from 0")
    if not isinstance(header["note"], Mapping) or not all(_fact(*item) for item in header["note"].items()):
        raise Malformed("note must map names to text and finite numbers")
    if not isinstance(header["arrays"], list) or not all(_described(entry) for entry in header["arrays"]):
        raise Malformed(f"each array needs a name, a type of {', '.join(DTYPES)} and a shape")
    if len({entry[0] for entry in header["arrays"]}) != len(header["arrays"]):
        raise Malformed("two arrays have one name")


def _fact(name: Any, value: Any) -> bool:
    number = (type(value) is int and abs(value) < 1 << 63) or (type(value) is float and math.isfinite(value))
    return _text(name) and (number or _text(value))


def _described(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == 3
        and _text(entry[0])
        and entry[1] in DTYPES
        and isinstance(entry[2], list)
        and len(entry[2]) <= MOST_DIMENSIONS
        and _sizes(entry[2])
    )


def _sizes(shape: Iterable[Any]) -> bool:
    # Without its zeros: the product of a shape with a zero in it is zero, however large the others are.
    sizes = list(shape)
    return all(type(n) is int and n >= 0 for n in sizes) and math.prod(n or 1 for n in sizes) < 1 << 40


def _text(value: Any) -> bool:
    """Whether it is text that can be written anywhere (a lone surrogate cannot)."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)
