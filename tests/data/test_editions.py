from __future__ import annotations

import base64

import pytest

from fedctta.data.cache import SPLITS
from fedctta.data.editions import BATCHES, CIFAR10, CIFAR100, EDITIONS, Edition


def test_editions_go_by_their_names():
    assert EDITIONS == {"cifar10": CIFAR10, "cifar100": CIFAR100}


def test_the_archive_is_the_last_part_of_the_address():
    assert CIFAR10.archive == "cifar-10-python.tar.gz"
    assert CIFAR100.archive == "cifar-100-python.tar.gz"


@pytest.mark.parametrize(("edition", "count"), [(CIFAR10, 10), (CIFAR100, 100)])
def test_class_names_are_in_the_order_of_the_labels_which_is_the_alphabets(edition: Edition, count: int):
    assert len(edition.classes) == count
    assert list(edition.classes) == sorted(set(edition.classes))


def test_files():
    assert BATCHES["train"] == ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5")
    assert BATCHES["test"] == ("test_batch",)
    assert CIFAR10.files == BATCHES
    assert CIFAR100.files == {"train": ("train",), "test": ("test",)}


@pytest.mark.parametrize("edition", EDITIONS.values(), ids=EDITIONS)
def test_digests_have_the_right_length(edition: Edition):
    assert len(bytes.fromhex(edition.md5)) == 16
    assert tuple(edition.checksums) == SPLITS
    for pair in edition.checksums.values():
        assert [len(bytes.fromhex(digest)) for digest in pair] == [32, 32]
    assert tuple(edition.contents) == SPLITS
    assert [count for count, _ in edition.contents.values()] == [50_000, 10_000]
    assert [len(bytes.fromhex(digest)) for _, digest in edition.contents.values()] == [32, 32]
    if edition.npm is not None:
        algorithm, _, digest = edition.npm[2].partition("-")
        assert algorithm == "sha512"
        assert len(base64.b64decode(digest, validate=True)) == 64


def test_no_digest_was_copied_twice():
    digests = [digest for edition in EDITIONS.values() for pair in edition.checksums.values() for digest in pair]
    digests += [digest for edition in EDITIONS.values() for _, digest in edition.contents.values()]
    assert len(set(digests)) == 12


@pytest.mark.parametrize("edition", EDITIONS.values(), ids=EDITIONS)
def test_other_names_are_of_classes_and_are_no_classes(edition: Edition):
    assert set(edition.also_called.values()) <= set(edition.classes)
    assert not set(edition.also_called) & set(edition.classes)
