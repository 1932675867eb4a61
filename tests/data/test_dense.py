"""Data with a class for every pixel, by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fedctta.data.dense import check_masked, load_dense
from fedctta.data.masked import MaskedDomains, evened
from fedctta.errors import UserError


def masked(sizes=(5, 3), side=4):
    """Make domains a, b, ... of so many random images, each pixel of an image holding its number."""
    random = np.random.default_rng(0)
    names = tuple("abcdef"[: len(sizes)])
    labels = {n: random.integers(0, 3, (k, side, side)).astype(np.uint8) for n, k in zip(names, sizes, strict=True)}
    images = {
        n: np.broadcast_to(np.arange(len(labels[n]), dtype=np.uint8)[:, None, None, None], (*labels[n].shape, 3))
        for n in names
    }
    return MaskedDomains(names, images, labels, ("x", "y", "z"), ("a note",))


def test_domains_of_different_size_give_as_many_as_the_smallest():
    data = masked((9, 4))
    assert data.count == 4
    even, other = evened(data, seed=0), evened(data, seed=1)
    assert {name: len(even.images[name]) for name in even.names} == {"a": 4, "b": 4}
    kept = even.images["a"][:, 0, 0, 0]
    assert len(set(kept.tolist())) == 4
    np.testing.assert_array_equal(even.labels["a"], data.labels["a"][kept])
    assert kept.tolist() != other.images["a"][:, 0, 0, 0].tolist()
    assert "4 images of every domain" in even.notes[-1]
    assert evened(masked((3, 3)), 0).notes == ("a note",)


def test_scenes_by_name():
    assert load_dense("scenes").names == ("night", "fog", "snow", "scanner")
    assert load_dense("scenes", "all").names[0] == "clean"
    assert load_dense("scenes", "fog+night").names == ("fog", "night")


def test_a_folder_by_name(tmp_path):
    for site in ("one", "two"):
        for kind, mode in (("images", "RGB"), ("masks", "L")):
            (tmp_path / site / kind).mkdir(parents=True)
            Image.new(mode, (6, 6), 1).save(tmp_path / site / kind / "0.png")
    assert load_dense("masked", folder=tmp_path).names == ("one", "two")
    small = load_dense("masked", "two", tmp_path, size=4)
    assert (small.names, small.images["two"].shape) == (("two",), (1, 4, 4, 3))
    with pytest.raises(UserError, match="did you mean two"):
        load_dense("masked", "twoo", tmp_path)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": "scene"}, "did you mean scenes"),
        ({"name": "scenes", "severity": 3}, "severity=3 has no effect on scenes: drop the key"),
        ({"name": "scenes", "folder": "x"}, "scenes are drawn here: drop folder"),
        ({"name": "scenes", "domains": "fogg"}, "did you mean fog"),
        ({"name": "masked"}, "add folder=PATH"),
    ],
)
def test_what_cannot_be_is_told(values, said):
    with pytest.raises(UserError, match=said):
        load_dense(**values)


def test_masks_that_do_not_fit_are_told():
    data = masked()
    assert check_masked(data) is data
    wrong = data.labels["a"].copy()
    wrong[0, 0, 0] = 255
    check_masked(replace(data, labels={**data.labels, "a": wrong}))  # ignored is no class
    wrong[0, 0, 0] = 3
    for changed, said in [
        ({"labels": {**data.labels, "a": wrong}}, "classes beyond 2"),
        ({"names": ("a", "a")}, "MaskedDomains.names names a twice"),
        ({"labels": {**data.labels, "a": wrong[:2]}}, "masks of domain 'a'"),
        ({"labels": {"b": data.labels["b"]}}, "domain 'a' has no images or no masks"),
        ({"images": {**data.images, "b": data.images["b"].astype(float)}}, "images of domain 'b' are float64"),
    ]:
        with pytest.raises(UserError, match=said):
            check_masked(replace(data, **changed))
    both = masked((2, 2))
    large = masked((2, 2), side=6)
    with pytest.raises(UserError, match="different sizes"):
        check_masked(
            replace(
                both, images={**both.images, "b": large.images["b"]}, labels={**both.labels, "b": large.labels["b"]}
            )
        )
