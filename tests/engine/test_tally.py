"""Counts of a run, and what a resumed run takes over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedctta.aggregators.common.groups import Groups
from fedctta.aggregators.common.mixing import overall
from fedctta.aggregators.common.neighbours import Neighbours
from fedctta.engine import tally as tally_module
from fedctta.engine.tally import Tally, count_kept, even_sample
from fedctta.errors import UserError
from fedctta.results.metrics import calibration_error, macro_f1
from fedctta.streams import ABSENT, Stream

BATCH = 4


@pytest.fixture
def make_tally(domains, device):
    """Give the maker of tallies over a stream with the given domain[T, N]."""

    def make(plan, aggregations=None) -> Tally:
        plan = np.asarray(plan, np.int32)
        samples = np.zeros((plan.shape[1], len(plan), BATCH), np.int64)
        rounds = np.arange(len(plan)) if aggregations is None else np.asarray(aggregations, np.int64)
        return Tally(Stream(domains, plan, samples, np.zeros_like(plan)), rounds, device)

    return make


def answers(right: list[int], device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits[A, BATCH, 3] and labels[A, BATCH] with `right` hits for each client."""
    labels = torch.arange(len(right) * BATCH).reshape(-1, BATCH) % 3
    hit = torch.arange(BATCH) < torch.tensor(right)[:, None]
    logits = torch.nn.functional.one_hot(torch.where(hit, labels, (labels + 1) % 3), 3).float()
    return logits.to(device), labels.to(device)


def test_right_predictions_are_counted_for_every_client_and_round(make_tally, device):
    tally = make_tally([[0, 1, 2], [0, ABSENT, 2]])
    tally.record(0, *answers([4, 0, 1], device), torch.tensor([0, 1, 2], device=device))
    assert tally.accuracy(1) == 5 / 12
    tally.record(1, *answers([2, 3], device), torch.tensor([0, ABSENT, 2], device=device))
    assert tally.correct.tolist() == [[4, 0, 1], [2, 0, 3]]
    assert tally.accuracy(2) == 10 / 20
    assert tally.seen().tolist() == [[4, 4, 4], [4, 0, 4]]
    assert tally.seen().dtype == np.int32


def reference_f1(truth, guess) -> float:
    """Mean over the classes that occur of the harmonic mean of precision and recall, image by image."""
    scores = []
    for k in np.unique(truth):
        hits = float(((truth == k) & (guess == k)).sum())
        precision, recall = hits / max((guess == k).sum(), 1), hits / (truth == k).sum()
        scores.append(2 * precision * recall / (precision + recall) if hits else 0.0)
    return float(np.mean(scores))


def reference_calibration_error(truth, guess, confidence, bins: int = 15) -> float:
    """Sum over bins (low, high] of the share of images times |accuracy - mean confidence|."""
    error = 0.0
    for low in np.arange(bins) / bins:
        inside = (confidence > low) & (confidence <= low + 1 / bins)
        if inside.any():
            gap = (truth[inside] == guess[inside]).mean() - confidence[inside].mean()
            error += inside.mean() * abs(gap)
    return float(error)


@pytest.mark.parametrize("classes", [[0, 1, 2], [0, 2], [1]], ids=str)
@pytest.mark.parametrize("sharpness", [0.3, 2.0, 20.0])
def test_f1_and_calibration_error_are_those_of_a_reference(make_tally, device, classes, sharpness):
    """Random predictions, some of classes that never occur, of clients that come and go."""
    random = np.random.default_rng([len(classes), int(10 * sharpness)])
    plan = random.integers(ABSENT, 3, (30, 5))
    tally = make_tally(plan)
    truth, guess, confidence = [], [], []
    for t, domain in enumerate(plan):
        active = int((domain != ABSENT).sum())
        labels = random.choice(classes, (active, BATCH))
        logits = sharpness * random.normal(size=(active, BATCH, 3)) + np.eye(3)[labels]
        p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        truth, guess, confidence = [*truth, labels], [*guess, p.argmax(-1)], [*confidence, p.max(-1)]
        there, here = torch.from_numpy(logits).float().to(device), torch.from_numpy(labels).to(device)
        tally.record(t, there, here, torch.from_numpy(domain).to(device))
    truth, guess, confidence = (np.concatenate(parts).ravel() for parts in (truth, guess, confidence))
    seen = np.bincount(truth, minlength=3)
    right, predicted = (counts.sum((0, 1)).cpu().numpy() for counts in (tally.right, tally.predicted))
    assert macro_f1(seen, right, predicted) == pytest.approx(reference_f1(truth, guess), abs=1e-12)
    expected = reference_calibration_error(truth, guess, confidence)
    assert calibration_error(tally.calibration.cpu().numpy()) == pytest.approx(expected, abs=2e-6)


def test_predictions_are_counted_by_domain_client_and_class(make_tally, device):
    tally = make_tally([[0, 2], [1, ABSENT]])
    tally.record(0, *answers([4, 1], device), torch.tensor([0, 2], device=device))
    tally.record(1, *answers([0], device), torch.tensor([1, ABSENT], device=device))
    # labels are 0 1 2 0 | 1 2 0 1, a miss predicts the next class
    assert tally.right[0, 0].tolist() == [2, 1, 1]
    assert tally.right[2, 1].tolist() == [0, 1, 0]
    assert tally.predicted[2, 1].tolist() == [1, 2, 1]  # right 1; 2 -> 0, 0 -> 1, 1 -> 2
    assert tally.predicted[1, 0].tolist() == [1, 2, 1]
    assert int(tally.right.sum()) == 5
    assert int(tally.predicted.sum()) == 12


def test_confidence_and_entropy_by_hand(make_tally, device):
    tally = make_tally([[0, 1]])
    logits = torch.tensor([0.6, 0.3, 0.1]).log().expand(2, BATCH, 3).to(device)
    labels = torch.tensor([[0, 0, 1, 2], [1, 1, 1, 1]], device=device)
    tally.record(0, logits, labels, torch.tensor([0, 1], device=device))
    at = int(0.6 * 15)
    assert tally.calibration[at].tolist() == pytest.approx([8, 8 * 600_000, 2], abs=8)
    assert int(tally.calibration.sum()) == int(tally.calibration[at].sum())
    expected = -(0.6 * np.log(0.6) + 0.3 * np.log(0.3) + 0.1 * np.log(0.1))
    assert tally.entropy[0].tolist() == pytest.approx([expected, expected], abs=1e-5)


def test_before_the_first_image_the_accuracy_is_zero(make_tally):
    assert make_tally([[0, 1]]).accuracy(0) == 0
    assert make_tally([[ABSENT, ABSENT]]).accuracy(1) == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_outputs_that_are_not_finite_stop_the_run(make_tally, device, value):
    tally = make_tally([[0, 1], [0, 1]])
    everyone = torch.tensor([0, 1], device=device)
    logits, labels = answers([1, 1], device)
    spoilt = logits.clone()
    spoilt[1, 2, 0] = value
    tally.record(0, spoilt, labels, everyone)
    tally.record(1, logits, labels, everyone)  # once is enough
    with pytest.raises(UserError, match="predictions became NaN or infinite by round 2"):
        tally.accuracy(2)


def test_weight_on_the_same_domain_is_the_mean_over_those_present(make_tally, device):
    tally = make_tally([[0, 0, 1], [0, 0, ABSENT]])
    uniform = torch.full((3, 3), 1 / 3, device=device)
    tally.record_collaboration(0, uniform, torch.tensor([0, 0, 1], device=device), (30, 20))
    assert tally.same_domain_weight() == pytest.approx((2 / 3 + 2 / 3 + 1 / 3) / 3)
    pair = torch.tensor([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]], device=device)
    tally.record_collaboration(1, pair, torch.tensor([0, 0, ABSENT], device=device), (3, 2))
    assert tally.same_domain_weight() == pytest.approx((5 / 3 + 2) / 5)
    assert tally.bytes.tolist() == [33, 22]
    torch.testing.assert_close(tally.matrices, torch.stack([uniform, pair]))


def test_few_weights_a_row_are_counted_like_a_whole_matrix(make_tally, device):
    plan = [[0, 1, 0, ABSENT], [1, 1, 1, 0]]
    dense, sparse = make_tally(plan), make_tally(plan)
    who = torch.tensor([[0, 2], [1, 0], [2, 1], [3, 0]], device=device)
    weight = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.9, 0.1], [1.0, 0.0]], device=device)
    matrix = overall(Neighbours(who, weight), {})
    for t, domain in enumerate(torch.tensor(plan, device=device)):
        sparse.record_collaboration(t, matrix, domain, (2, 1))
        dense.record_collaboration(t, matrix.to_dense(), domain, (2, 1))
    assert sparse.same_domain_weight() == pytest.approx(dense.same_domain_weight())
    assert sparse.same_domain_weight() == pytest.approx((1 + 0.5 + 0.9 + 1 + 1 + 1 + 1) / 7)
    assert torch.equal(sparse.matrices, dense.matrices)


def test_groups_are_counted_like_their_matrix(make_tally, device):
    plan = [[0, 1, 0, ABSENT], [1, 1, 1, 0]]
    dense, grouped = make_tally(plan), make_tally(plan)
    takes, gives = torch.rand(4, 2, device=device), torch.rand(2, 4, device=device)
    groups = Groups(takes, gives, torch.rand(4, device=device))
    for t, domain in enumerate(torch.tensor(plan, device=device, dtype=torch.int32)):
        grouped.record_collaboration(t, groups, domain, (2, 1))
        dense.record_collaboration(t, groups.matrix(), domain, (2, 1))
    assert grouped.same_domain_weight() == pytest.approx(dense.same_domain_weight())
    assert torch.equal(grouped.matrices, dense.matrices)


def test_without_collaboration_everybody_is_its_own_peer(make_tally):
    tally = make_tally([[0, 1]], aggregations=[])
    assert tally.same_domain_weight() == 1
    assert tally.matrices.shape == (0, 2, 2)
    assert len(tally.kept_rounds) == 0


def test_matrices_over_time_stay_within_their_memory(make_tally, device, monkeypatch):
    monkeypatch.setattr(tally_module, "KEPT_MATRIX_BYTES", 3 * 4 * 2 * 2)
    tally = make_tally(np.zeros((20, 2)), aggregations=[1, 3, 5, 7, 9])
    assert tally.kept_rounds.tolist() == [1, 5, 9]
    for t in (1, 3, 5, 7, 9):
        weights = torch.full((2, 2), float(t), device=device)
        tally.record_collaboration(t, weights, torch.zeros(2, device=device), (1, 1))
    assert tally.matrices[:, 0, 0].tolist() == [1, 5, 9]
    assert tally.bytes.tolist() == [5, 5]


def test_no_matrix_is_kept_that_alone_is_larger_than_their_memory(make_tally, device, monkeypatch):
    assert (count_kept(1), count_kept(4096), count_kept(4097)) == (2**24, 1, 0)
    monkeypatch.setattr(tally_module, "KEPT_MATRIX_BYTES", 4 * 2 * 2 - 1)
    tally = make_tally(np.zeros((3, 2)))
    domain, weights = torch.tensor([0, 0], device=device), torch.full((2, 2), 0.5, device=device)
    for t in range(3):
        tally.record_collaboration(t, weights, domain, (1, 1))
        tally.keep_matrix(torch.tensor([t], device=device), weights)
    assert len(tally.kept_rounds) == 0
    assert tally.tensors()["tally.matrices"].numel() == 0
    assert tally.same_domain_weight() == 1  # which is counted in every round


@given(st.integers(0, 40), st.integers(0, 50), st.integers(1, 5))
def test_an_even_sample_is_within_the_limit_in_order_and_spread(count, limit, interval):
    rounds = np.arange(count) * interval
    kept = even_sample(rounds, limit)
    assert len(kept) == min(count, limit)
    assert set(kept) <= set(rounds)
    steps = np.diff(kept)
    assert (steps > 0).all()
    if len(kept) >= 2:
        assert (kept[0], kept[-1]) == (rounds[0], rounds[-1])
        assert steps.max() - steps.min() <= interval


def test_a_resumed_tally_goes_on_where_the_other_was(make_tally, device):
    first, second = make_tally([[0, 1], [1, 0]]), make_tally([[0, 1], [1, 0]])
    everyone = torch.tensor([0, 1], device=device)
    first.record(0, *answers([3, 1], device), everyone)
    first.record_collaboration(0, torch.eye(2, device=device), torch.tensor([0, 1], device=device), (5, 4))
    first.seconds += 2.5
    saved = {name: tensor.clone().cpu() for name, tensor in first.tensors().items()}
    second.restore(saved, Path("a.checkpoint"))
    assert second.accuracy(1) == first.accuracy(1)
    for name, tensor in second.tensors().items():
        assert torch.equal(tensor, first.tensors()[name]), name
        assert tensor.device == first.tensors()[name].device, name
    second.record(1, *answers([4, 4], device), everyone)
    assert int(first.correct.sum()) == 4, "the copy is a copy"


def test_a_tally_of_another_run_does_not_fit(make_tally):
    mine, other = make_tally([[0, 1], [1, 0]]), make_tally([[0, 1, 2], [1, 0, 2]])
    with pytest.raises(UserError, match=r"a.checkpoint does not fit this run: delete it, or run without --resume"):
        mine.restore(other.tensors(), Path("a.checkpoint"))
    for name in mine.tensors():
        rest = {key: tensor for key, tensor in mine.tensors().items() if key != name}
        with pytest.raises(UserError, match="does not fit"):
            mine.restore(rest, Path("a.checkpoint"))
