from __future__ import annotations

import contextlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedctta.fleet.transport.wire import DTYPES, HEADER_LIMIT, KINDS, PREFIX, Malformed, Parcel, pack, unpack

LIMIT = 1 << 20
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
facts = st.one_of(text, st.integers(-(2**62), 2**62), st.floats(allow_nan=False, allow_infinity=False))
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)
parcels = st.builds(
    Parcel,
    st.sampled_from(KINDS),
    st.integers(0, 2**62),
    st.dictionaries(text, facts, max_size=4),
    st.dictionaries(text, arrays, max_size=3),
)


def same(a: Parcel, b: Parcel) -> None:
    assert (a.kind, a.round, a.note, list(a.arrays)) == (b.kind, b.round, b.note, list(b.arrays))
    for name, array in a.arrays.items():
        assert array.dtype == b.arrays[name].dtype
        np.testing.assert_array_equal(array, b.arrays[name])


@given(parcels)
def test_what_is_packed_comes_out_again(parcel: Parcel) -> None:
    flat = pack(parcel)
    assert flat.dtype == np.uint8
    assert flat.ndim == 1
    same(unpack(flat, LIMIT), parcel)
    same(unpack(flat.tobytes(), LIMIT), parcel)


@given(parcels, st.data())
def test_a_cut_or_lengthened_parcel_is_refused(parcel: Parcel, data: st.DataObject) -> None:
    flat = pack(parcel).tobytes()
    with pytest.raises(Malformed):
        unpack(flat[: data.draw(st.integers(0, len(flat) - 1))], LIMIT)
    with pytest.raises(Malformed):
        unpack(flat + data.draw(st.binary(min_size=1, max_size=9)), LIMIT)


@given(parcels, st.data())
def test_changed_bytes_give_a_parcel_or_malformed_and_nothing_else(parcel: Parcel, data: st.DataObject) -> None:
    flat = pack(parcel).copy()
    end = PREFIX + int.from_bytes(flat[PREFIX - 4 : PREFIX].tobytes(), "big")
    for _ in range(data.draw(st.integers(1, 3))):
        flat[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Malformed):
        unpack(flat, LIMIT)


@given(st.binary(max_size=64))
def test_any_bytes_after_a_right_start_are_refused_politely(noise: bytes) -> None:
    with pytest.raises(Malformed):
        unpack(b"fedctta\x02" + len(noise).to_bytes(4, "big") + noise, LIMIT)


def forged(**changes: object) -> bytes:
    header = {"kind": "upload", "round": 0, "note": {}, "arrays": []} | changes
    text = json.dumps(header).encode()
    return b"fedctta\x02" + len(text).to_bytes(4, "big") + text


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "pickle"},
        {"kind": ["upload"]},
        {"round": -1},
        {"round": True},
        {"round": 1.0},
        {"note": {"a": None}},
        {"note": {"a": float("nan")}},
        {"note": {"a": [1]}},
        {"note": {"a": "\ud800"}},
        {"note": []},
        {"arrays": {}},
        {"arrays": [["a", "float64", [0]]]},
        {"arrays": [["a", "object", [0]]]},
        {"arrays": [["a", [], [0]]]},
        {"arrays": [["a", "uint8", [-1]]]},
        {"arrays": [["a", "uint8", [0, 10**30]]]},
        {"arrays": [["a", "uint8", [10**11, 10**11]]]},
        {"arrays": [["a", "uint8", [0] * 40]]},
        {"arrays": [["a", "uint8", [0]], ["a", "uint8", [0]]]},
        {"arrays": [["a", "uint8"]]},
        {"more": 1},
    ],
)
def test_a_forged_header_is_refused(changes: dict[str, object]) -> None:
    assert unpack(forged(), LIMIT).kind == "upload"
    with pytest.raises(Malformed):
        unpack(forged(**changes), LIMIT)


def test_deep_nesting_is_refused() -> None:
    noise = b"[" * 100_000
    with pytest.raises(Malformed):
        unpack(b"fedctta\x02" + len(noise).to_bytes(4, "big") + noise, LIMIT)


def test_bytes_that_are_no_truth_are_refused() -> None:
    assert unpack(forged(arrays=[["a", "bool", [2]]]) + b"\x00\x01", LIMIT).arrays["a"].tolist() == [False, True]
    with pytest.raises(Malformed, match="neither true nor false"):
        unpack(forged(arrays=[["a", "bool", [2]]]) + b"\x00\x02", LIMIT)


def test_limits_hold() -> None:
    flat = pack(Parcel("upload", arrays={"own.w": np.zeros(100, np.float32)}))
    assert unpack(flat, len(flat)).arrays["own.w"].shape == (100,)
    with pytest.raises(Malformed, match="allowed"):
        unpack(flat, len(flat) - 1)
    with pytest.raises(Malformed, match="header"):
        pack(Parcel("upload", note={"x": "a" * HEADER_LIMIT}))


def test_another_schema_and_other_arrays_are_named() -> None:
    flat = pack(Parcel("hello"))
    flat[7] = 9
    with pytest.raises(Malformed, match="schema 9"):
        unpack(flat, LIMIT)
    with pytest.raises(Malformed, match="float32"):
        unpack(np.zeros(4, np.float32), LIMIT)


@pytest.mark.parametrize("array", [np.zeros(2, "float64"), np.zeros(2, "O"), np.zeros(2, "U3")])
def test_other_types_do_not_travel(array: np.ndarray) -> None:
    with pytest.raises(Malformed, match="only"):
        pack(Parcel("upload", arrays={"a": array}))


def test_strides_and_byte_order_do_not_matter() -> None:
    array = np.arange(12, dtype=">f4").reshape(3, 4).T
    flat = pack(Parcel("upload", arrays={"a": array}))
    got = unpack(flat, LIMIT).arrays["a"]
    np.testing.assert_array_equal(got, array)
    got[:] = 0  # it is the reader's own: the bytes stay
    np.testing.assert_array_equal(unpack(flat, LIMIT).arrays["a"], array)


def test_the_bytes_of_schema_2_by_hand() -> None:
    """Whoever changes these bytes must change the number too: older readers would take them for something else."""
    header = b'{"kind":"upload","round":3,"note":{"images":2},"arrays":[["a","float32",[3,2]],["b","bool",[2]]]}'
    numbers = struct.pack("<6f", 0, 3, 1, 4, 2, 5) + b"\x00\x01"
    wanted = b"fedctta" + b"\x02" + struct.pack(">I", len(header)) + header + numbers
    turned = np.arange(6, dtype=">f4").reshape(2, 3).T
    parcel = Parcel("upload", 3, {"images": 2}, {"a": turned, "b": np.array([False, True])})
    assert pack(parcel).tobytes() == wanted
    same(unpack(wanted, LIMIT), Parcel("upload", 3, {"images": 2}, {**parcel.arrays, "a": turned.astype("<f4")}))
