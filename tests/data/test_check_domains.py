"""Wrong data get one line each; what can be converted is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedctta.data.check_domains import as_array, check_domains
from fedctta.data.domains import Domains
from fedctta.errors import UserError


def pictures(count=4, side=6, channels=3):
    return np.zeros((count, side, side, channels), np.uint8)


def given(**change):
    parts = {
        "names": ("a", "b"),
        "images": {"a": pictures(), "b": pictures(5)},
        "labels": {"a": np.arange(4) % 2, "b": np.arange(5) % 2},
        "classes": ("x", "y"),
    }
    return Domains(**{**parts, **change})


def images(b):
    return {"images": {"a": pictures(), "b": b}}


def labels(b):
    return {"labels": {"a": np.arange(4) % 2, "b": b}}


def test_good_data_pass():
    data = check_domains(given())
    assert data.sizes == (4, 5)
    assert data.labels_of("b").tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"names": ("a", "a")}, "Domains.names names a twice"),
        ({"names": ()}, "Domains.names is empty: name at least one"),
        ({"names": "a"}, "Domains.names is 'a': give a tuple"),
        ({"names": ("a", 1)}, "give a tuple of texts"),
        ({"names": ("a", "c")}, "domain 'c' has no images"),
        ({"images": [pictures()]}, "Domains.images is no dictionary"),
        (images(pictures(0)), "domain 'b' is empty: give it images"),
        (images(pictures(side=7)), r"different sizes, 'a' \(6, 6, 3\) and 'b' \(7, 7, 3\)"),
        (
            images(pictures().astype(np.int64)),
            "int64: give uint8 pictures, or floats; a run takes no token ids",
        ),
        (images(pictures().transpose(0, 3, 1, 2)), "move the channels to the end"),
        (images(np.zeros(5, np.uint8)), r"have shape \(5,\): give uint8 \[n, H, W, C\]"),
        (images(np.zeros(5, np.float32)), r"have shape \(5,\): give \[n, ...\]"),
        (images([[1, 2], [3]]), "'b' are no array"),
        (images([pictures(1)[0], pictures(1, 7)[0]]), r"'b' have different sizes, \(6, 6, 3\) and \(7, 7, 3\)"),
        ({"names": None}, "Domains.names is None: give a tuple"),
        (images(np.full((5, 2), np.inf)), "hold NaN or infinity"),
        (images(np.full((5, 2), 1e300)), r"'b' hold NaN or infinity: give finite values that float32"),
        ({"classes": 2}, "Domains.classes is 2: give a tuple of texts"),
        ({"labels": np.full(5, -1), "classes": (), "names": ("b",)}, "hold -1 alone: number the classes from 0"),
        (images(np.zeros((5, 2))), "'b' are float32, those of 'a' uint8: give one type"),
        (labels(np.array([0, 1, 2, 0, 0])), "hold 2: give 0 to 1, for there are 2 classes"),
        (labels(np.array([0, 1, -1, 0, 0])), "hold -1: give 0 to 1"),
        (labels(np.zeros(5)), r"Domains.labels of 'b' are float64 \(5,\): give whole numbers"),
        (labels(np.zeros((5, 2), np.int64)), "give whole numbers"),
        (labels(np.zeros(4, np.int64)), "domain 'b' has 5 images and 4 labels: give one each"),
        (
            {"labels": {"a": np.zeros(4, int), "B": np.zeros(5, int)}},
            "unknown domain in Domains.labels 'B': use one of a, b",
        ),
        ({"labels": np.zeros(4, int)}, r"'b' have shape \(5, 6, 6, 3\) and there are 4 labels: .* by domain"),
        ({"labels": ["x", "y"]}, "Domains.labels are <U1"),
        ({"classes": "xy"}, "Domains.classes is 'xy': give a tuple of texts"),
    ],
)
def test_wrong_data_get_one_line(change, said):
    with pytest.raises(UserError, match=said) as refused:
        check_domains(given(**change))
    assert "\n" not in str(refused.value)


def test_tensors_become_arrays():
    data = check_domains(
        given(
            images={"a": torch.zeros(4, 6, 6, 3, dtype=torch.uint8), "b": torch.zeros(5, 6, 6, 3, dtype=torch.uint8)},
            labels={"a": torch.tensor([0, 1, 1, 0], dtype=torch.int32), "b": [0, 1, 0, 1, 1]},
        )
    )
    assert isinstance(data.images["a"], np.ndarray)
    assert data.labels_of("a").dtype == data.labels_of("b").dtype == np.int64
    assert as_array(torch.ones(2, requires_grad=True)).tolist() == [1, 1]


def test_grey_pictures_get_a_channel_and_floats_32_bits():
    grey = check_domains(Domains(("a",), {"a": np.zeros((4, 6, 7), np.uint8)}))
    assert grey.images["a"].shape == (4, 6, 7, 1)
    table = np.random.default_rng(0).random((4, 9))
    data = check_domains(Domains(("a",), {"a": table}))
    assert data.images["a"].dtype == np.float32
    assert not data.pictures
    series = np.zeros((4, 2, 9), np.float32)
    assert check_domains(Domains(("a",), {"a": series})).images["a"] is series


def test_names_and_classes_may_be_given_in_other_ways_than_a_tuple():
    for ways in (np.array, list, iter):
        found = check_domains(given(names=ways(["a", "b"]), classes=ways(["x", "y"])))
        assert (found.names, found.classes) == (("a", "b"), ("x", "y"))
    assert check_domains(given(classes=range(2))).classes == ("0", "1")


def test_classes_without_names_are_counted():
    assert check_domains(given(classes=())).classes == ("class 0", "class 1")
    assert check_domains(given(classes=(), labels=None)).classes == ()
    assert check_domains(given(classes=None)).classes == ("class 0", "class 1")
