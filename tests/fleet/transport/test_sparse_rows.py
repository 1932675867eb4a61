from __future__ import annotations

import numpy as np
import pytest

from fedctta.fleet.transport.sparse_rows import Inconsistent, leave_out_zeros, put_zeros_back
from fedctta.fleet.transport.wire import Malformed, Parcel, pack, unpack

LIMIT = 1 << 20


def thin_array():
    array = np.zeros((8, 5), np.float32)
    array[2], array[6, 1] = 1, -3
    return array


def test_only_rows_that_are_not_zeros_travel():
    sent = leave_out_zeros({"a": thin_array(), "full": np.ones((4, 2), np.float32), "one": np.zeros(9, np.int64)})
    assert {name: array.shape for name, array in sent.items()} == {
        "rows.a": (8,),
        "a": (2, 5),
        "full": (4, 2),
        "one": (9,),
    }
    whole = put_zeros_back(sent, LIMIT)
    assert list(whole) == ["a", "full", "one"]
    np.testing.assert_array_equal(whole["a"], thin_array())


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (4, 3), (1, 1)])
def test_arrays_of_any_shape_come_back(shape):
    array = np.zeros(shape, np.float32)
    np.testing.assert_array_equal(put_zeros_back(leave_out_zeros({"a": array}), LIMIT)["a"], array)


def test_bits_stay():
    array = np.array([[-0.0], [0.0], [0.0]], np.float32)
    assert put_zeros_back(leave_out_zeros({"a": array}), LIMIT)["a"].tobytes() == array.tobytes()


def test_a_parcel_is_as_small_as_what_it_says():
    array = np.zeros((1000, 100), np.float32)
    array[7] = 1
    flat = pack(Parcel("upload", arrays={"a": array}))
    assert flat.nbytes < 1000 + 400 + 200
    np.testing.assert_array_equal(unpack(flat, 1 << 20).arrays["a"], array)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda a: {**a, "rows.a": np.ones(8, np.bool_)}, "has other rows than it says"),
        (lambda a: {**a, "rows.a": a["rows.a"].astype(np.uint8)}, "does not say which rows"),
        (lambda a: {**a, "rows.b": a["rows.a"]}, "does not say which rows"),
        (lambda a: {**a, "a": a["a"][:, 0]}, "has other rows than it says"),
        (lambda a: {"rows.a": np.zeros(LIMIT, np.bool_), "a": np.zeros((0, 1 << 39), np.float32)}, "larger than"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_anything_is_made(spoil, said):
    with pytest.raises(Inconsistent, match=said):
        put_zeros_back(spoil(leave_out_zeros({"a": thin_array()})), LIMIT)


def test_a_parcel_that_would_be_too_large_is_malformed():
    flat = pack(Parcel("upload", arrays={"a": np.zeros((1000, 100), np.float32)}))
    with pytest.raises(Malformed, match="larger than the 2000 bytes"):
        unpack(flat, 2000)
