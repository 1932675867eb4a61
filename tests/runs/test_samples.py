"""A model and a few of an experiment's images."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from fedctta.errors import UserError
from fedctta.runs import samples
from fedctta.runs.samples import load_sample, read_data_word


def test_the_example_in_the_docstring():
    assert doctest.testmod(samples) == (0, 1)


def test_images_come_from_every_domain():
    network, x, labels, _ = load_sample(["data=shapes-c", "domains=fog+snow", "device=cpu"], 10)
    assert x.shape == (10, 3, 32, 32)
    assert labels.shape == (10,)
    assert network({}, x).logits.shape == (10, 10)
    assert abs(float(x[:5].mean() - x[5:].mean())) > 1e-3


def test_a_path_to_arrays_is_one_to_arrays(tmp_path):
    assert read_data_word([f"data={tmp_path}"])[0] == "dataset=folders"
    np.save(tmp_path / "a.npy", np.zeros((2, 4, 4, 3), np.uint8))
    assert read_data_word([f"data={tmp_path}"]) == ["dataset=arrays", f"folder={tmp_path}"]


def test_several_values_are_refused():
    with pytest.raises(UserError, match="seed has 2 values and doctor takes one"):
        load_sample(["data=shapes-c", "seed=0,1"], 4)


def test_masks_are_refused():
    with pytest.raises(UserError, match="a class for every pixel"):
        load_sample(["data=scenes"], 4)


@pytest.mark.parametrize("word", ["adapter=tent", "tent.lr=0.1", "clients=5", "seed=1", "guard=reset"])
def test_what_doctor_does_not_use_is_refused(word):
    with pytest.raises(UserError, match=r"^[a-z.]+ has no effect on doctor, .*: drop it$"):
        load_sample(["data=shapes-c", word], 4)
