"""L-DAWA's layer-wise weights by hand."""

from __future__ import annotations

import pytest
import torch

from fedctta.aggregators import Uploads
from fedctta.aggregators.common.mixing import mix, restrict
from fedctta.aggregators.ldawa import LDAWA, agreement, measure
from fedctta.errors import UserError

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
        sent, memory = aggregator.step(None, None, mix(restrict(weights, active), own), active, memory)
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


def test_the_code_neither_renormalises_nor_clamps():
    """The third points away: -1 times (-1, 0) counts like (1, 0)."""
    weights, sent, memory = play(LDAWA(variant="code"), [FIRST, SECOND])
    close(weights["a"], [[1.0, 1 / 0.6, -1 / 0.6]] * 3)  # 0.6, 1 and -1 over 0.6
    close(sent["a"], [[7.8 / 3, 2.4 / 3]] * 3)  # (0.6 (3, 4) + (5, 0) - (-1, 0)) / 3
    close(memory["global.a"], [7.8 / 3, 2.4 / 3])
    close(sent["b"], [4.0] * 3)


def test_the_code_turns_models_that_all_point_away():
    away = {"a": -FIRST["a"]}
    weights, sent, _ = play(LDAWA(variant="code"), [{"a": FIRST["a"]}, away])
    close(weights["a"], [[1 / 3] * 3] * 3)
    close(sent["a"], [[2.0, 0.0]] * 3)  # -1 times the mean, (-2, 0)


def test_the_code_keeps_a_tensor_at_zero_once_it_is_there():
    """All cosines to a zero tensor are 0 there, where the other reading has nothing to compare with."""
    zero = {"a": torch.zeros(3, 2)}
    _, sent, memory = play(LDAWA(variant="code"), [zero, {"a": FIRST["a"]}, {"a": FIRST["a"]}])
    close(sent["a"], [[0.0, 0.0]] * 3)
    close(memory["global.a"], [0.0, 0.0])
    close(play(LDAWA(), [zero, {"a": FIRST["a"]}])[1]["a"], [[2.0, 0.0]] * 3)


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_a_restart_is_fedavg(variant):
    """Rounds 1 and 3 of four; the second and the fourth compare with the mean of the one before."""
    aggregator = LDAWA(variant=variant, restart=2)
    _, second, _ = play(aggregator, [FIRST, SECOND])
    weights, third, memory = play(aggregator, [FIRST, SECOND, SECOND])
    close(weights["a"], [[1 / 3] * 3] * 3)
    close(third["a"], [[7 / 3, 4 / 3]] * 3)
    close(memory["global.a"], [7 / 3, 4 / 3])
    assert not torch.allclose(play(LDAWA(variant=variant), [FIRST, SECOND, SECOND])[1]["a"], third["a"])
    _, fourth, _ = play(aggregator, [FIRST, SECOND, FIRST, SECOND])
    torch.testing.assert_close(fourth["a"], second["a"])


def test_a_restart_before_the_first_round_is_refused():
    with pytest.raises(UserError, match=r"ldawa.restart=-1 must not be negative"):
        LDAWA(restart=-1)


def test_the_absent_neither_count_nor_receive():
    present = torch.tensor([True, False, True])
    # Deltas are 0.6 and 0, and (1/2) (0.6 (3, 4) - (-1, 0)) in the code, which divides by the two clients present.
    for variant, expected in (("paper", [3.0, 4.0]), ("code", [1.4, 1.2])):
        aggregator = LDAWA(variant=variant)
        _, _, memory = play(aggregator, [FIRST])
        weights, memory = aggregator.collaborate(None, Uploads(SECOND, {}, present), memory)
        assert weights["a"][0, 1] == 0
        sent, memory = aggregator.step(None, None, mix(restrict(weights, present), SECOND), present, memory)
        close(sent["a"], [expected, [5.0, 0.0], expected])
        close(memory["global.a"], expected)


def test_the_global_model_is_of_all_that_came_whoever_receives():
    """In the second round nothing comes, in the third only the second client's upload, late and for nobody."""
    nobody = torch.zeros(3, dtype=torch.bool)
    for variant in ("paper", "code"):
        aggregator = LDAWA(variant=variant)
        _, _, memory = play(aggregator, [FIRST])
        for trust, expected in (([0.0, 0.0, 0.0], [2.0, 0.0]), ([0.0, 0.25, 0.0], [5.0, 0.0])):
            trust = torch.tensor(trust)
            weights, memory = aggregator.collaborate(None, Uploads(SECOND, {}, trust > 0, None, trust), memory)
            sent, memory = aggregator.step(None, None, mix(restrict(weights, nobody, trust), SECOND), nobody, memory)
            close(memory["global.a"], expected)
            assert torch.equal(sent["a"], SECOND["a"])


def test_alone():
    weights, sent, _ = play(LDAWA(), [{"a": FIRST["a"][:1]}, {"a": SECOND["a"][:1]}], ALL[:1])
    assert weights["a"].tolist() == [[1]]
    close(sent["a"], [[3.0, 4.0]])


def test_where_cosines_say_nothing_everybody_counts():
    stack = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])

    def agree(stack, globe):
        return agreement(*measure(stack[None], torch.tensor([globe])), ALL[: len(stack)])[0]

    assert agree(stack, [0.0, 0.0]).tolist() == [1, 1, 1]  # no direction to compare with
    assert agree(stack[:2], [-1.0, -1.0]).tolist() == [1, 1]  # all point away
    close(agree(stack, [1.0, 0.0]), [1.0, 0.0, 1.0])  # a zero tensor has no direction
