"""Data sets of other libraries as domains."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from fedctta.data.converters import from_datasets, is_dataset
from fedctta.data.domains import Domains
from fedctta.errors import UserError


class Rows:
    """A data set with columns, as Hugging Face's are: items are dictionaries, and features know class names."""

    def __init__(self, rows, names=()):
        self.rows = rows
        self.features = {"label": type("ClassLabel", (), {"names": list(names)})()} if names else {}

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, k):
        return self.rows[k]


class Pictures(Dataset):
    classes = ("cat", "dog")

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, k):
        if k >= self.count:
            raise IndexError(k)
        return Image.fromarray(np.full((4, 5), k, np.uint8)), k % 2


def test_a_torch_data_set_per_domain():
    data = from_datasets({"day": Pictures(3), "night": Pictures(5)}, progress=False)
    assert (data.names, data.sizes, data.classes) == (("day", "night"), (3, 5), ("cat", "dog"))
    assert data.images["day"].shape == (3, 4, 5, 3)
    assert data.labels_of("night").tolist() == [0, 1, 0, 1, 0]


def test_tensors_stay_as_they_are():
    x = torch.randn(6, 2, 9)
    data = from_datasets({"a": TensorDataset(x, torch.arange(6) % 3), "b": TensorDataset(x[:2], torch.ones(2).long())})
    np.testing.assert_array_equal(data.images["a"], x.numpy())
    assert data.labels_of("b").tolist() == [1, 1]
    assert len(data.classes) == 3
    bare = from_datasets({"a": TensorDataset(x)})
    assert bare.labels is None


def test_columns_with_names_of_classes():
    rows = [{"image": Image.new("RGB", (4, 4)), "label": k % 2, "site": "ab"[k > 2]} for k in range(5)]
    data = from_datasets({"one": Rows(rows, ("no", "yes")), "two": Rows(rows[:2])})
    assert (data.sizes, data.classes) == ((5, 2), ("no", "yes"))
    by_site = from_datasets(Rows(rows, ("no", "yes")), domain="site")
    assert (by_site.names, by_site.sizes) == (("a", "b"), (3, 2))
    assert from_datasets(Rows(rows)).names == ("data",)


@pytest.mark.parametrize(
    ("given", "more", "said"),
    [
        ({"a": Rows([])}, {}, "domain 'a' is empty"),
        ({"a": Rows([{"x": 1}])}, {}, "items have columns x: name that of the image image or img"),
        (Rows([{"image": 1}]), {"domain": "site"}, "items have image, and not the domain column 'site'"),
        ({"a": Rows([])}, {"domain": "site"}, "either a mapping of domains or a domain column"),
        ({"a": Rows([np.zeros((4, 4)), np.zeros((5, 4))])}, {}, r"image 1 of domain 'a' has shape \(5, 4\), others"),
        ({"a": Rows([(np.zeros(2), 1), (np.zeros(2), None)])}, {}, "domain 'a' has 1 items without a label"),
        ({"a": Rows([(np.zeros(2), 0.5)])}, {}, "are float64"),
        ({"a": Rows([()])}, {}, "an item of the data set is empty: give .image, label., or an image"),
    ],
)
def test_wrong_items_get_one_line(given, more, said):
    with pytest.raises(UserError, match=said):
        from_datasets(given, **more)


def test_words_and_domains_are_no_data_sets():
    assert is_dataset(Pictures(1))
    assert is_dataset({"a": Pictures(1)})
    assert not any(map(is_dataset, ("shapes-c", ["shapes-c"], {}, None, 3, {"a": "b"}, Domains(("a",), {}))))
