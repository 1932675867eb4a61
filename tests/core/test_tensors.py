"""Dictionaries of tensors."""

from __future__ import annotations

import torch

from fedctta.core.tensors import (
    PIECES,
    SHORTEST,
    choose,
    constant,
    cut,
    each_element,
    lay_out,
    masked_mean,
    may_hold,
    mirror,
    named,
    only,
    read_bytes,
    take_apart,
    towards,
    under,
    write_all,
)

A, B = {"x": torch.tensor([1.0, 2.0]), "y": torch.tensor(3.0)}, {"x": torch.tensor([5.0, 6.0]), "y": torch.tensor(7.0)}


def test_names_come_and_go():
    assert list(named("old", A)) == ["old.x", "old.y"]
    assert under("old", {**named("old", A), "older.x": A["x"], "x": A["x"]}) == A
    assert list(only(["y"], A)) == ["y"]


def test_choosing_is_a_branch_for_each_client():
    def one(condition, x):
        return choose(condition, {"x": x}, {"x": -x, "left": x})["x"]

    found = torch.func.vmap(one)(torch.tensor([True, False]), torch.tensor([1.0, 2.0]))
    assert found.tolist() == [1, -2]


def test_tensors_as_one_vector():
    both = {"y": torch.tensor([[3.0, 4.0]]), "x": torch.tensor([1.0, 2.0])}
    assert lay_out(both).tolist() == [1, 2, 3, 4]
    again = take_apart(lay_out(both), both)
    assert again.keys() == both.keys()
    assert all(torch.equal(again[name], both[name]) for name in both)


def test_an_elementwise_function_meets_every_tensor_once_and_vectors_together():
    parts = [{"a": torch.rand(3), "kernel": torch.rand(2, 2), "b": torch.rand(4), "step": torch.rand(())} for _ in "xy"]
    seen = []

    def function(x, y):
        seen.append(tuple(x.shape))
        return x * y, x - y

    products, differences = each_element(function, parts[0], {**parts[1], "unused": torch.rand(1)})
    assert sorted(seen) == [(), (2, 2), (7,)]
    assert list(products) == list(differences) == list(parts[0])
    for name, x in parts[0].items():
        assert torch.equal(products[name], x * parts[1][name])
        assert torch.equal(differences[name], x - parts[1][name])


def test_a_moving_average():
    assert towards(A, B, 0.25)["x"].tolist() == [2, 3]


def test_the_mean_of_a_part():
    values = torch.tensor([1.0, 2.0, 6.0])
    assert masked_mean(values, torch.tensor([1.0, 0, 1])) == 3.5
    assert masked_mean(values, torch.zeros(3)) == 0


def test_a_condition_of_one_client_can_be_asked_and_of_several_not():
    assert may_hold(torch.tensor(True))
    assert not may_hold(torch.tensor(False))
    asked = []
    torch.func.vmap(lambda x: asked.append(may_hold(x)) or x)(torch.tensor([False, False]))
    assert asked == [True]


def test_images_are_mirrored_and_other_data_are_not():
    x = torch.arange(6.0).view(1, 1, 2, 3)
    assert mirror(x).tolist() == [[[[2, 1, 0], [5, 4, 3]]]]
    assert torch.equal(mirror(x[0]), x[0])


def test_bytes_are_those_of_numpy_however_a_tensor_lies_and_exist_for_types_that_numpy_lacks():
    pixels = torch.rand(2, 3, 4, 5)
    layouts = (pixels, pixels.to(memory_format=torch.channels_last), pixels[0, 0].T, pixels[0, 0, :, 1], pixels.sum())
    for tensor in (*layouts, torch.arange(3), torch.zeros(0)):
        assert bytes(read_bytes(tensor)) == tensor.contiguous().numpy().tobytes()
    assert bytes(read_bytes(torch.tensor([1.0, -2.0], dtype=torch.bfloat16))) == b"\x80\x3f\x00\xc0"


def test_constants_are_made_once_per_type_and_device():
    like = torch.zeros(1, dtype=torch.float64)
    made = constant(((1.0, 2.0), (3.0, 4.0)), like)
    assert made.dtype == torch.float64
    assert made.tolist() == [[1, 2], [3, 4]]
    assert constant(((1.0, 2.0), (3.0, 4.0)), like) is made
    assert constant(((1.0, 2.0), (3.0, 4.0)), like.float()) is not made


def test_tensors_are_written_over_others_in_pieces():
    sizes = [(3,), (2, SHORTEST), (50, 1000), ()]
    values = [torch.rand(size) for size in sizes]
    values[1] = torch.rand(SHORTEST, 2).T  # does not lie as what it is written over
    for pieces in (True, False):
        into = [torch.zeros(size) for size in sizes]
        if pieces:
            cuts = cut(into, values)
            assert len(sizes) < len(cuts[0]) == len(cuts[1]) <= len(sizes) + PIECES
            assert max(piece.numel() for piece in cuts[0]) == 2 * SHORTEST
            write_all(*cuts)
        else:
            write_all(into, values)
        assert all(map(torch.equal, into, values))
