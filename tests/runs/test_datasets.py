"""The data of a run."""

from __future__ import annotations

import pytest
import torch

from fedctta.data.corruptions import EXTRA
from fedctta.data.shapes import load
from fedctta.errors import UserError
from fedctta.runs.datasets import data_keys, load_data, public_images
from fedctta.runs.settings import Experiment, single


def test_public_images_are_clean_ones():
    images = public_images(Experiment(dataset="shapes-c"), None, 5, torch.device("cpu"))
    assert images.shape == (5, 3, 32, 32)
    assert (images[0].movedim(0, -1).mul(255).round().numpy() == load("test").images[0]).all()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"adapter": "eata"}, "which adapter eata asks for"),
        ({"adapter": "bn", "aggregator": "fedctta"}, "which aggregator fedctta asks for"),
    ],
)
def test_the_method_that_asks_for_images_that_are_not_there_is_named(values, said):
    with pytest.raises(UserError, match=said):
        public_images(Experiment(dataset="masked", **values), None, 5, torch.device("cpu"))


@pytest.mark.parametrize("dataset", ["shapes-c", "scenes"])
@pytest.mark.parametrize("keys", [{"size": 64}, {"layout": "folders"}])
def test_keys_for_folders_of_masks_are_refused_elsewhere(dataset, keys):
    with pytest.raises(UserError, match=f"no effect on {dataset}"):
        load_data(*data_keys(Experiment(dataset=dataset, **keys)))


def test_an_unknown_data_set_is_told_with_its_neighbours():
    with pytest.raises(UserError, match=r"unknown data set to run on 'shapes-d': did you mean .*shapes-c"):
        load_data(*data_keys(Experiment(dataset="shapes-d")))


def test_data_that_are_given_are_taken_as_they_are(domains):
    taken = load_data(*data_keys(Experiment(dataset="domains")), given=domains)
    assert taken.names == domains.names
    assert all(taken.images[name] is domains.images[name] for name in domains.names)


def test_a_stream_with_clean_images_adds_their_domain():
    keys = data_keys(single({"stream": "roam", "roam.clean": "true", "dataset": "shapes-c", "domains": "fog+snow"}))
    assert load_data(*keys).names == ("fog", "snow", "clean")
    keys = data_keys(single({"stream": "roam", "dataset": "shapes-c", "domains": "clean+extra"}))
    assert load_data(*keys).names == ("clean", *EXTRA)


def test_clean_images_are_those_of_a_corrupted_set():
    with pytest.raises(UserError, match=r"roam\.clean=true adds the images of a corrupted test set"):
        data_keys(single({"stream": "roam", "roam.clean": "true", "dataset": "folders"}))


def test_a_public_set_lends_images_its_model_was_trained_on(pets):
    keys = data_keys(Experiment(dataset="pets", folder=str(pets), size=8))
    data = load_data(*keys, ("photo", "sketch"))
    images = public_images(Experiment(dataset="pets", adapter="eata"), data, 5, torch.device("cpu"))
    assert images.shape == (5, 3, 8, 8)
    assert (images[0].movedim(0, -1).mul(255).round().numpy() == data.training["photo"][0]).all()
    assert (images[3].movedim(0, -1).mul(255).round().numpy() == data.training["sketch"][0]).all()
    with pytest.raises(UserError, match="which adapter eata asks for"):
        public_images(Experiment(dataset="pets", adapter="eata"), load_data(*keys), 5, torch.device("cpu"))
