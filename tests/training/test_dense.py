from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedctta.data import scenes
from fedctta.errors import UserError
from fedctta.models import build, zoo
from fedctta.results.metrics import mean_iou
from fedctta.training.dense import _batches, _loss, count, evaluate_dense, judge, train_dense
from fedctta.training.recipe import Recipe

SHORT = Recipe(epochs=6, batch=8, optimizer="adam", lr=0.02, weight_decay=0.0)


def halves(n: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Noisy 16x16 images, class 1 where bright (a column's right side), and a row that is ignored."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 100, (n, 16, 16, 3), dtype=np.uint8)
    masks = (np.arange(16) >= rng.integers(4, 12, (n, 1, 1))).astype(np.uint8) * np.ones((1, 16, 1), np.uint8)
    images += 100 * masks[..., None]
    masks[:, 3] = 255
    return images, masks


@pytest.mark.parametrize(("name", "lr"), [("unet", 0.02), ("segformer", 0.004)])
def test_learns_a_separable_problem(name, lr):
    images, masks = halves()
    losses: list[tuple[int, int, float]] = []
    module = build(name, 2, seed=1)
    train_dense(module, images, masks, replace(SHORT, lr=lr), on_progress=lambda *args: losses.append(args))
    assert not module.training
    assert [done for done, _, _ in losses] == [1, 2, 3, 4, 5, 6]
    assert losses[-1][2] < losses[0][2]
    score = evaluate_dense(module, images, masks, batch=7)
    assert score["pixel_accuracy"] > 0.9
    assert score["miou"] > 0.8


def test_seed_decides_everything():
    images, masks = halves(16)
    recipe = replace(SHORT, epochs=1)
    one, same, other = (
        train_dense(build("unet", 2), images, masks, replace(recipe, seed=seed)).state_dict() for seed in (0, 0, 1)
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])


def test_ignored_pixels_teach_nothing():
    images, masks = halves(8)
    recipe = replace(SHORT, epochs=2, weight_decay=0.0)
    blind = train_dense(build("unet", 2), images, np.full_like(masks, 255), recipe)
    assert torch.equal(blind.head.weight, build("unet", 2).head.weight)


def test_images_and_masks_move_together():
    numbers = torch.arange(1, 101, dtype=torch.uint8).reshape(1, 10, 10, 1).repeat(6, 1, 1, 4)
    moved = torch.cat(list(_batches(numbers, 2, SHORT, torch.Generator().manual_seed(0))))
    assert torch.equal(moved[..., 0], moved[..., 3])
    assert not torch.equal(moved, numbers)
    assert (moved == 0).any()  # the border, which as a mask means ignored
    still = torch.cat(list(_batches(numbers, 2, replace(SHORT, augment="none"), torch.Generator().manual_seed(0))))
    assert torch.equal(still, numbers)


def test_loss_is_the_mean_over_pixels_that_count():
    logits = torch.randn(2, 3, 4, 4)
    targets = torch.randint(-1, 3, (2, 4, 4))
    wanted = F.cross_entropy(logits.movedim(1, -1)[targets >= 0], targets[targets >= 0])
    torch.testing.assert_close(_loss(logits, targets, 0.0), wanted)
    assert _loss(logits, torch.full((2, 4, 4), -1), 0.0) == 0


def test_judged_by_hand():
    truth = torch.tensor([[[0, 0, 1, 1], [2, 255, 255, 0]]])
    guess = torch.tensor([[[0, 1, 1, 1], [0, 2, 0, 0]]])
    confusion = count(F.one_hot(guess, 4).movedim(-1, 1).float(), truth)
    assert confusion.tolist() == [[2, 1, 0, 0], [0, 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert judge(confusion) == pytest.approx({"pixel_accuracy": 4 / 6, "miou": (2 / 4 + 2 / 3 + 0) / 3})
    assert judge(torch.zeros(3, 3, dtype=torch.int64)) == {"pixel_accuracy": 0.0, "miou": 0.0}


def test_a_class_that_is_predicted_and_never_seen_has_no_overlap_as_in_a_record():
    confusion = torch.tensor([[8, 0, 2], [0, 10, 0], [0, 0, 0]])
    assert judge(confusion)["miou"] == pytest.approx(0.9)
    assert judge(confusion)["miou"] == mean_iou(*(np.array(n) for n in ([10, 10, 0], [8, 10, 0], [8, 10, 2])))


def test_evaluate_keeps_the_mode_and_the_order():
    class Brightest(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    images = np.zeros((5, 4, 4, 3), np.uint8)
    images[:, :2, :, 1] = 9
    masks = np.zeros((5, 4, 4), np.uint8)
    masks[:, :2] = 1
    module = Brightest()
    assert evaluate_dense(module, images, masks, batch=2) == {"pixel_accuracy": 1.0, "miou": 1.0}
    assert module.training


def test_wrong_requests_are_explained():
    images, masks = halves(8)
    with pytest.raises(UserError, match=r"masks \[5, 16, 16\]: give"):
        train_dense(build("unet", 2), images, masks[:5], SHORT)
    with pytest.raises(UserError, match="n at least 1"):
        evaluate_dense(build("unet", 2), images[:0], masks[:0])
    with pytest.raises(UserError, match=r"uint8 values"):
        evaluate_dense(build("unet", 2), images / 255, masks)
    with pytest.raises(UserError, match=r"augmix .*: use augment=crop\+flip or none"):
        train_dense(build("unet", 2), images, masks, replace(SHORT, augment="augmix"))
    with pytest.raises(UserError, match="lower the recipe's lr"):
        train_dense(build("unet", 2), images, masks, replace(SHORT, optimizer="sgd", lr=1e30, schedule="constant"))


@pytest.mark.parametrize("model", ["unet", "segformer"])
def test_packaged_weights_are_as_good_as_their_card(model):
    module = zoo.load_model(model, "scenes", classes=len(scenes.CLASSES))
    path = zoo.weights_path(model, "scenes")
    assert path is not None
    assert path.stat().st_size < 600_000
    card = zoo.read_card(path)
    assert card["drawings"] == scenes.VERSION
    test = scenes.load("test")
    score = evaluate_dense(module, test.images[:100], test.masks[:100])
    assert score["miou"] > 0.85
    assert abs(score["miou"] - card["miou"]) < 0.05
