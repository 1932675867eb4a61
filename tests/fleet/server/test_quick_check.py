"""What the quick look passes, the close one passes too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedctta.fleet.server.examine import Examiner, UploadRefused
from fedctta.fleet.server.quick_check import QuickCheck
from fedctta.fleet.transport import wire

SOURCE = {"a.weight": torch.full((5,), 2.0), "a.running_var": torch.ones(3), "count": torch.zeros(2, dtype=torch.int64)}
LIMIT = 10 * (20**0.5 + 5**0.5)


def check():
    return QuickCheck({f"own.{n}": t for n, t in SOURCE.items()} | {"signal.s": torch.ones(2)}, 10.0)


def arrays(**changes):
    fine = {f"own.{name}": tensor.numpy().copy() for name, tensor in SOURCE.items()} | {"signal.s": np.ones(2, "f4")}
    return fine | changes


def test_what_is_far_from_all_limits_passes():
    assert check().passes(arrays())
    assert check().passes(arrays(**{"signal.s": np.full(2, 1e14, np.float32)}))
    assert check().passes({})


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        *(("own.a.weight", [0, 0, 0, 0, bad]) for bad in (np.nan, np.inf, -np.inf, LIMIT, 3e38)),
        *(("own.a.running_var", [1, 1, bad]) for bad in (-1e-30, np.nan)),
        *(("signal.s", [1, bad]) for bad in (np.nan, np.inf, 1e15, 3e38)),
        ("own.unknown", [1.0]),
    ],
)
def test_what_is_near_a_limit_or_beyond_does_not(name, numbers):
    assert not check().passes(arrays(**{name: np.array(numbers, np.float32)}))


@pytest.mark.parametrize("seed", range(20))
def test_it_never_passes_what_the_close_look_refuses(seed):
    random = np.random.default_rng(seed)
    examiner = Examiner(SOURCE, {"s": torch.ones(2)}, frozenset({"a.running_var"}), "bn")
    for _ in range(50):
        sent = arrays()
        name = random.choice([key for key in sent if key != "own.count"])
        numbers = random.standard_normal(sent[name].shape) * 10 ** random.uniform(-3, 39)
        with np.errstate(over="ignore"):
            sent[name] = numbers.astype(np.float32)
        wanted = {f"own.{n}": t for n, t in SOURCE.items()} | {"signal.s": torch.ones(2)}
        try:
            for key, array in sent.items():
                examiner._numbers(key, torch.from_numpy(array), wanted[key])
            fine = True
        except UploadRefused:
            fine = False
        assert fine or not check().passes(sent)
        if fine:  # and what it does not pass is used all the same
            examiner.upload(wire.Parcel("upload", 0, {"nonce": "n"}, sent), 0, "n")
        else:
            with pytest.raises(UploadRefused):
                examiner.upload(wire.Parcel("upload", 0, {"nonce": "n"}, sent), 0, "n")
