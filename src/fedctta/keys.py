"""The keys of an experiment: the type, default, limits and one line of each.

They are said here once, for the settings that check them, for `fedctta run --help` and for `fedctta keys`, and without
loading a method: this module needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, Literal, get_type_hints

from fedctta.ranges import Range

Guarded = Literal["off", "reset", "freeze"]
Lie = Literal["sign", "scale", "random", "statistics"]
Lift = Literal["auto", "graph", "vmap", "loop"]
Order = Literal["shuffled", "bursts"]
Precision = Literal["float32", "tf32", "bf16"]
Stored = Literal["float32", "bf16"]
Way = Literal["none", "check", "cap", "clip", "median", "trimmed"]

LEAST_EPSILON, LEAST_DELTA = 1e-6, 1e-300  # below, the difference in `privacy.delta_of` is not exact
LARGEST_SEED = 2**32 - 1

UNWAITING, PLAIN = "recall", "none"  # adapter (and aggregator) of devices that do not wait; where it does not fit


def _about(line: str, *, least: float | None = None, most: float = inf, allowed: str = "") -> dict[str, Any]:
    """Describe one key: `least` and `most` are checked for every experiment, `allowed` is for the reader only."""
    return {"about": line, "limits": None if least is None else Range(least, most), "allowed": allowed}


@dataclass(frozen=True)
class Keys:
    """Everything of an experiment that is one word: all but the methods' own parameters."""

    dataset: str = field(default="cifar10-c", metadata=_about("Data set (fedctta data lists them)."))
    severity: int = field(
        default=5, metadata=_about("Strength of the corruptions.", allowed="a whole number from 1 to 5")
    )
    domains: str = field(
        default="benchmark",
        metadata=_about(
            "Domains that clients meet.",
            allowed="benchmark, extra (not for masks), all, or names joined by +: fog+snow",
        ),
    )
    folder: str | None = field(
        default=None,
        metadata=_about(
            "Folder of your own files, or a table of them; or where a named set lies.", allowed="a path, or none"
        ),
    )
    layout: str = field(default="auto", metadata=_about("Layout of that folder (dataset=masked)."))
    size: int | None = field(
        default=None, metadata=_about("Side to resize images to (folders, masked, public sets).", least=1, most=4096)
    )
    model: str = field(default="auto", metadata=_about("Network; auto is the data set's usual one."))
    weights: str = field(
        default="auto",
        metadata=_about(
            "Trained weights of the network.",
            allowed="auto, random, a recipe (paper, fedavg), domains (photo), or a .safetensors, .pt or .pth file",
        ),
    )
    source_images: str | None = field(
        default=None,
        metadata=_about(
            "Clean images of the source, for methods that study it.",
            allowed="the path of a folder or .npy file, a number of images of the first domain, or none",
        ),
    )
    adapter: str = field(default="bn", metadata=_about("What a client does with a batch."))
    aggregator: str = field(default="fedctta", metadata=_about("What the server does with all uploads."))
    stream: str = field(default="niid", metadata=_about("Which client meets which domain when."))
    samples: str = field(default="disjoint", metadata=_about("Which images a client sees."))
    order: Order = field(default="shuffled", metadata=_about("Order of a client's images; bursts: class after class."))
    clients: int | None = field(default=None, metadata=_about("Number of clients; none: the stream's own.", least=1))
    batch: int = field(default=10, metadata=_about("Images per client and round.", least=1))
    slots: int | None = field(
        default=None,
        metadata=_about("Batches per domain; none: all images (named data sets: at most 50).", least=1),
    )
    interval: int = field(default=1, metadata=_about("Rounds from one aggregation to the next.", least=1))
    predict: Literal["after", "before"] = field(
        default="after", metadata=_about("Predict a batch after or before adapting to it.")
    )
    stragglers: float = field(default=0.0, metadata=_about("Share of uploads that come late.", least=0, most=1))
    delay: int = field(default=3, metadata=_about("Most rounds by which an upload is late.", least=1))
    stale: Literal["discount", "refuse"] = field(
        default="discount", metadata=_about("What the server does with a late upload.")
    )
    decay: float = field(default=0.5, metadata=_about("A late upload counts decay^age.", least=0, most=1))
    robust: Way = field(default="none", metadata=_about("How the server guards its mixing."))
    cap: float = field(
        default=0.2, metadata=_about("Most that one peer may weigh (robust=cap).", allowed="a number above 0, up to 1")
    )
    clip: float = field(
        default=2.0,
        metadata=_about("Median distances after which uploads are clipped (robust=clip).", allowed="a number above 0"),
    )
    trim: float = field(
        default=0.2,
        metadata=_about("Share left out at either end (robust=trimmed).", allowed="a number from 0 to below 0.5"),
    )
    liars: int = field(default=0, metadata=_about("Clients that lie to the server.", least=0))
    lie: Lie = field(default="sign", metadata=_about("What liars upload."))
    lie_until: int | None = field(
        default=None, metadata=_about("First round in which liars tell the truth; none: never.", least=1)
    )
    noise: float | None = field(
        default=None, metadata=_about("Deviation of the noise on uploads, in sensitivities of an upload.", least=0)
    )
    epsilon: float | None = field(
        default=None,
        metadata=_about(
            "Privacy budget that sets this noise instead.", allowed=f"a number from {LEAST_EPSILON} on, or none"
        ),
    )
    delta: float = field(
        default=1e-5,
        metadata=_about(
            "The delta of that budget, or of the one that a record tells of noise.",
            allowed=f"a number from {LEAST_DELTA} to below 1",
        ),
    )
    min_batch: int = field(default=1, metadata=_about("Smallest batch of which anything is uploaded.", least=1))
    retention: int = field(
        default=0, metadata=_about("Images per domain to measure forgetting with; 0: not measured.", least=0)
    )
    check: int = field(
        default=0, metadata=_about("Batches from one check of a client's health to the next; 0: none.", least=0)
    )
    guard: Guarded = field(
        default="off", metadata=_about("What follows when adapting does harm to a client (with check).")
    )
    seed: int = field(
        default=0, metadata=_about("Seed of everything random.", allowed=f"a whole number from 0 to {LARGEST_SEED}")
    )
    device: Literal["auto", "cpu", "cuda"] = field(
        default="auto", metadata=_about("What computes; auto: a GPU if there is one.")
    )
    lift: Lift = field(default="auto", metadata=_about("How the method of one client is run for all of them."))
    precision: Precision = field(default="float32", metadata=_about("Arithmetic of the clients on a GPU."))
    storage: Stored = field(
        default="float32", metadata=_about("Type in which clients' own kernels and matrices are kept between rounds.")
    )
    engine: Literal["fedctta", "flower"] = field(
        default="fedctta", metadata=_about("What plays the rounds; Flower's simulation is slower.")
    )


KEYS: Mapping[str, Any] = get_type_hints(Keys)
"""The type of every key."""

DEFAULTS: Mapping[str, Any] = {key.name: key.default for key in fields(Keys)}
ABOUT: Mapping[str, str] = {key.name: key.metadata["about"] for key in fields(Keys)}
LIMITS: Mapping[str, Range] = {key.name: key.metadata["limits"] for key in fields(Keys) if key.metadata["limits"]}
ALLOWED: Mapping[str, str] = {key.name: key.metadata["allowed"] for key in fields(Keys) if key.metadata["allowed"]}
