"""Digests of many runs as one Parquet file, one row per run, sorted by fingerprint.

The file is all that pages are made of: it needs no images and no weights. A run is found in it by the fingerprint of
the experiment it is of. Its columns are plain, so that other tools can ask it, too: the words of the experiment,
`accuracy` and the other numbers of the whole run, and lists such as `accuracy_by_domain`, in the order of
`domain_names`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from fedctta.errors import UserError
from fedctta.files import whole
from fedctta.results.digests import BESIDES, COSTS, METRICS, Digest, Weights
from fedctta.results.records import to_json

NAME = "records.parquet"
_SHOWN = ("dataset", "model", "weights", "adapter", "aggregator", "stream", "samples", "precision", "hardware", "torch")
_COUNTED = ("seed", "clients", "batch", "slots")
_WHOLE = (*METRICS, "forgetting")
_PARTS = {"domain": METRICS, "client": METRICS, "position": ("accuracy",)}
_TEXTS, _FLOATS = pa.list_(pa.string()), pa.list_(pa.float32())
_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("fingerprint", "version", "made", *_SHOWN)),
        *((name, pa.int64()) for name in (*_COUNTED, "rounds")),
        *((name, pa.float32()) for name in (*_WHOLE, *BESIDES)),
        *((name, pa.float64()) for name in ("seconds_per_client", *COSTS)),
        *((f"{by}_names", _TEXTS) for by in _PARTS),
        *((f"{metric}_by_{by}", _FLOATS) for by, metrics in _PARTS.items() for metric in metrics),
        ("class_accuracy", _FLOATS),
        ("moments", _TEXTS),
        *((name, _FLOATS) for name in ("moment_weights", "first_weights")),
        *((name, pa.list_(pa.int64())) for name in ("first_rounds", "shifts")),
        *((name, pa.string()) for name in ("words", "settings")),
    ]
)


def read_packed(path: Path) -> dict[str, Digest]:
    """Return the digests of a file by fingerprint; nothing if there is no file."""
    if not path.is_file():
        return {}
    try:
        rows = pa.parquet.read_table(path, schema=_SCHEMA).to_pylist()
        return {row["fingerprint"]: _read(row) for row in rows}
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise UserError(f"{path} is damaged or holds no records: move it elsewhere, and pack again") from error


def write_packed(path: Path, digests: Mapping[str, Digest]) -> None:
    """Write digests by fingerprint; the same ones always give the same file."""
    rows = [_row(key, digests[key]) for key in sorted(digests)]
    floats = [f"{field.name}.list.element" for field in _SCHEMA if field.type == _FLOATS]
    texts = [field.name for field in _SCHEMA if field.type == pa.string()]
    with whole(path) as part:
        pa.parquet.write_table(
            pa.Table.from_pylist(rows, _SCHEMA),
            part,
            compression="zstd",
            compression_level=19,
            use_dictionary=[*texts, *(f"{by}_names.list.element" for by in _PARTS)],
            use_byte_stream_split=floats,
        )


def merge(old: Mapping[str, Digest], new: Mapping[str, Digest]) -> dict[str, Digest]:
    """Return both; of two runs of one experiment the later one."""
    later = {key: run for key, run in new.items() if key not in old or run.origin["made"] > old[key].origin["made"]}
    return {**old, **later}


def _row(key: str, run: Digest) -> dict[str, Any]:
    row: dict[str, Any] = {"fingerprint": key, "rounds": run.rounds}
    row |= {name: run.origin[name] for name in ("version", "made")}
    row |= {name: str(run.settings[name]) for name in _SHOWN if name in run.settings}
    row |= {name: run.settings[name] for name in _COUNTED}
    row |= {name: run.whole[name] for name in _WHOLE} | {"seconds_per_client": run.whole["seconds"]}
    row |= {name: run.besides[name] for name in (*BESIDES, *COSTS)}
    for by, metrics in _PARTS.items():
        row[f"{by}_names"] = list(run.parts[by]["accuracy"])
        row |= {f"{metric}_by_{by}": list(run.parts[by][metric].values()) for metric in metrics}
    row["class_accuracy"] = list(run.classes)
    if (seen := run.weights) is not None:
        row |= {"moments": list(seen.titles), "moment_weights": seen.moments.ravel().tolist()}
        row |= {"first_weights": seen.first.ravel().tolist()}
        row |= {"first_rounds": seen.rounds.tolist(), "shifts": list(seen.shifts)}
    row |= {name: json.dumps(to_json(dict(held)), sort_keys=True) for name, held in _texts(run)}
    return row


def _texts(run: Digest) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return ("words", run.origin["words"]), ("settings", run.settings)


def _read(row: Mapping[str, Any]) -> Digest:
    names = {by: row[f"{by}_names"] for by in _PARTS}
    return Digest(
        settings=json.loads(row["settings"]),
        origin={name: row[name] for name in ("fingerprint", "version", "made")} | {"words": json.loads(row["words"])},
        rounds=row["rounds"],
        whole={name: row[name] for name in _WHOLE} | {"seconds": row["seconds_per_client"]},
        parts={
            by: {metric: dict(zip(names[by], row[f"{metric}_by_{by}"], strict=True)) for metric in metrics}
            for by, metrics in _PARTS.items()
        },
        besides={name: row[name] for name in (*BESIDES, *COSTS)},
        classes=tuple(row["class_accuracy"]),
        weights=_read_weights(row),
    )


def _read_weights(row: Mapping[str, Any]) -> Weights | None:
    if row["moments"] is None:
        return None
    first = np.array(row["first_weights"], np.float32).reshape(len(row["first_rounds"]), -1)
    clients = first.shape[1]
    shape = (len(row["moments"]), clients, clients)
    moments = np.array(row["moment_weights"], np.float32)
    if moments.size != prod(shape):
        raise ValueError(f"{moments.size} weights for {shape}")
    rounds = np.array(row["first_rounds"], np.int64)
    return Weights(tuple(row["moments"]), moments.reshape(shape), first, rounds, tuple(row["shifts"]))
