"""L-DAWA's layer-wise weights by hand."""

from __future__ import annotations

import torch

from fedctta.aggregators import Uploads, mix, restrict
from fedctta.aggregators.ldawa import LDAWA, agreement

ALL = torch.ones(3, dtype=torch.bool)
FIRST = {"a": torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 0.0]]), "b": torch.tensor([1.0, 2.0, 6.0])}
# Cosines to (2, 0), the mean of FIRST: 0.6, 1 and -1, which counts as 0.
SECOND = {"a": torch.tensor([[3.0, 4.0], [5.0, 0.0], [-1.0, 0.0]]), "b": torch.tensor([3.0, 4.0, 5.0])}


def play(aggregator, rounds, active=ALL):
    """Give W and the models sent in the last round, and the memory."""
    memory = aggregator.init(None)
    for own in rounds:
        weights, memory = aggregator.collaborate(None, Uploads(own, {}, active), memory)
        for w in weights.values():
            torch.testing.assert_close(w.sum(1), torch.ones(len(active)), atol=1e-6, rtol=0)
        sent, memory = aggregator.step(mix(restrict(weights, active), own), active, memory)
    return weights, sent, memory


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected))


def test_the_first_round_is_fedavg():
    for variant in ("paper", "code"):
        weights, sent, memory = play(LDAWA(variant=variant), [FIRST])
        for w in weights.values():
            close(w, [[1 / 3] * 3] * 3)
        close(sent["a"], [[2.0, 0.0]] * 3)
        close(memory["global.a"], [2.0, 0.0])


def test_the_second_round_by_hand():
    weights, sent, memory = play(LDAWA(), [FIRST, SECOND])
    close(weights["a"], [[0.375, 0.625, 0.0]] * 3)  # 0.6, 1 and 0 over 1.6
    close(sent["a"], [[4.25, 1.5]] * 3)
    close(memory["global.a"], [4.25, 1.5])
    close(weights["b"], [[1 / 3] * 3] * 3)  # single numbers: plainly
    close(sent["b"], [4.0] * 3)


def test_the_code_does_not_renormalise():
    weights, sent, memory = play(LDAWA(variant="code"), [FIRST, SECOND])
    close(weights["a"], [[0.375, 0.625, 0.0]] * 3)
    close(sent["a"], [[6.8 / 3, 2.4 / 3]] * 3)  # (0.6 (3, 4) + (5, 0)) / 3
    close(memory["global.a"], [6.8 / 3, 2.4 / 3])
    close(sent["b"], [4.0] * 3)


def test_the_absent_neither_count_nor_receive():
    present = torch.tensor([True, False, True])
    for variant, scale in (("paper", 1.0), ("code", 0.5)):  # delta is 0.6 and 0; the code divides by two clients
        aggregator = LDAWA(variant=variant)
        _, _, memory = play(aggregator, [FIRST])
        weights, memory = aggregator.collaborate(None, Uploads(SECOND, {}, present), memory)
        close(weights["a"][0], [1.0, 0.0, 0.0])
        sent, memory = aggregator.step(mix(restrict(weights, present), SECOND), present, memory)
        delta = 1.0 if variant == "paper" else 0.6 * scale
        close(sent["a"], [[3.0 * delta, 4.0 * delta], [5.0, 0.0], [3.0 * delta, 4.0 * delta]])
        close(memory["global.a"], [3.0 * delta, 4.0 * delta])


def test_alone():
    weights, sent, _ = play(LDAWA(), [{"a": FIRST["a"][:1]}, {"a": SECOND["a"][:1]}], ALL[:1])
    assert weights["a"].tolist() == [[1]]
    close(sent["a"], [[3.0, 4.0]])


def test_where_cosines_say_nothing_everybody_counts():
    stack = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    assert agreement(stack, torch.zeros(2), ALL).tolist() == [1, 1, 1]  # no direction to compare with
    assert agreement(stack[:2], torch.tensor([-1.0, -1.0]), ALL[:2]).tolist() == [1, 1]  # all point away
    close(agreement(stack, torch.tensor([1.0, 0.0]), ALL), [1.0, 0.0, 1.0])  # a zero tensor has no direction
