"""What a domain holds, with shared labels and with labels of its own."""

from __future__ import annotations

import numpy as np

from fedctta.data.domains import UNLABELLED, Domains, numbered

IMAGES = {"a": np.zeros((3, 2, 2, 3), np.uint8), "b": np.zeros((5, 2, 2, 3), np.uint8)}


def test_labels_may_be_shared():
    labels = np.array([0, 1, 1])
    data = Domains(("a",), IMAGES, labels, ("x", "y"), ())
    assert data.shared
    assert data.labels_of("a") is labels
    assert (data.count, data.sizes) == (3, (3,))


def test_labels_may_belong_to_domains_or_be_missing():
    data = Domains(("a", "b"), IMAGES, {"a": np.array([0, 1, 1]), "b": None})
    assert not data.shared
    assert (data.count, data.sizes) == (3, (3, 5))
    assert data.labels_of("a").tolist() == [0, 1, 1]
    assert data.labels_of("b").tolist() == [UNLABELLED] * 5
    assert [data.labelled(name) for name in data.names] == [True, False]
    nothing = Domains(("a", "b"), IMAGES)
    assert not nothing.shared
    assert not nothing.labelled("a")


def test_pictures_are_bytes():
    assert Domains(("a",), IMAGES).pictures
    assert not Domains(("a",), {"a": np.zeros((3, 7), np.float32)}).pictures


def test_classes_without_names_are_numbered():
    assert numbered(2) == ("class 0", "class 1")
