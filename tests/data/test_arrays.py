"""Arrays of one's own as domains."""

from __future__ import annotations

import numpy as np
import pytest

from fedctta.data.arrays import load_arrays
from fedctta.errors import UserError


def pictures(count):
    return np.zeros((count, 4, 4, 3), np.uint8)


def test_every_file_is_a_domain_with_or_without_labels(tmp_path):
    np.savez(tmp_path / "a.npz", images=pictures(3), labels=np.array([0, 1, 2], np.uint8))
    np.save(tmp_path / "b.npy", pictures(4))
    np.save(tmp_path / "c.npy", pictures(2))
    np.save(tmp_path / "c.labels.npy", np.array([1, 1]))
    data = load_arrays(tmp_path)
    assert (data.names, data.sizes) == (("a", "b", "c"), (3, 4, 2))
    assert [data.labelled(name) for name in data.names] == [True, False, True]
    assert data.labels_of("c").tolist() == [1, 1]
    assert data.classes == ("class 0", "class 1", "class 2")
    assert isinstance(data.images["b"].base, np.memmap) or isinstance(data.images["b"], np.memmap)


def test_labels_may_be_shared_and_classes_named(tmp_path):
    np.save(tmp_path / "labels.npy", np.array([0, 1, 1]))
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.zeros((3, 5), np.float32))
    (tmp_path / "classes.txt").write_text("no\nyes\n")
    data = load_arrays(tmp_path)
    assert data.shared
    assert data.classes == ("no", "yes")
    np.savez(tmp_path / "c.npz", images=np.zeros((3, 5), np.float32), labels=np.zeros(3, int))
    with pytest.raises(UserError, match=r"has labels.npy and labels by domain: keep one"):
        load_arrays(tmp_path)


def test_without_labels_that_is_noted(tmp_path):
    np.save(tmp_path / "a.npy", pictures(3))
    data = load_arrays(tmp_path)
    assert data.labels is None
    assert data.notes == (f"arrays of {tmp_path}: a 3", "no labels: accuracy is not known")


def test_what_cannot_be_read_is_told(tmp_path):
    with pytest.raises(UserError, match="there is no folder"):
        load_arrays(tmp_path / "gone")
    with pytest.raises(UserError, match=r"holds no DOMAIN.npy"):
        load_arrays(tmp_path)
    np.savez(tmp_path / "a.npz", x=pictures(1))
    with pytest.raises(UserError, match=r"a.npz holds x: it needs images"):
        load_arrays(tmp_path)
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(UserError, match=r"a.npz cannot be read"):
        load_arrays(tmp_path)
    (tmp_path / "a.npz").unlink()
    np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(UserError, match=r"a.npy cannot be read"):
        load_arrays(tmp_path)
    np.save(tmp_path / "a.npy", pictures(2))
    np.savez(tmp_path / "a.npz", images=pictures(2))
    with pytest.raises(UserError, match="names a twice"):
        load_arrays(tmp_path)
