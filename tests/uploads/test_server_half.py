"""The server's half of a round, on a worked example of three clients with one number each."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedctta.aggregators import Aggregator, Uploads
from fedctta.errors import UserError
from fedctta.uploads.robust import Robust
from fedctta.uploads.server_half import serve
from fedctta.uploads.stages import Transit

SERVER = SimpleNamespace(network=SimpleNamespace(state={"a": torch.zeros(1)}), clients=3)
HELD = {"a": torch.tensor([[10.0], [20.0], [30.0]])}


@dataclass(frozen=True)
class Told(Aggregator):
    """Average all, add 1 to what is sent, and count the rounds."""

    name: ClassVar[str] = "told"

    def collaborate(self, server, uploads, memory):
        count = len(uploads.active)
        return torch.full((count, count), 1 / count), {"rounds": memory["rounds"] + 1}

    def contribute(self, own, active, memory):
        return {name: 2 * tensor for name, tensor in own.items()}

    def step(self, server, uploads, mixed, receive, memory):
        assert server is SERVER
        assert uploads.own["a"].shape == mixed["a"].shape
        return {name: tensor + 1 for name, tensor in mixed.items()}, memory


def transit(active, receive=None, trust=None):
    active = torch.tensor(active)
    trust = None if trust is None else torch.tensor(trust)
    uploads = Uploads({"a": torch.tensor([[1.0], [2.0], [6.0]])}, {}, active, None, trust)
    return Transit(0, uploads, active, active if receive is None else torch.tensor(receive))


def play(way, **given):
    return serve(SERVER, Told(), Robust(way), transit(**given), HELD, {"rounds": torch.tensor(0)})


def test_everybody_is_sent_the_mean_of_all_contributions_and_a_step():
    served = play("none", active=[True, True, True])
    torch.testing.assert_close(served.received["a"], torch.full((3, 1), 7.0))  # (2 + 4 + 12) / 3 + 1
    assert served.memory["rounds"] == 1
    assert served.receive.tolist() == [True, True, True]


def test_who_does_not_receive_keeps_what_it_held():
    served = play("none", active=[True, True, True], receive=[True, False, True], trust=[1.0, 1.0, 1.0])
    torch.testing.assert_close(served.received["a"], torch.tensor([[7.0], [20.0], [7.0]]))


def test_trust_weighs_uploads():
    served = play("none", active=[True, True, True], receive=[True, True, False], trust=[1.0, 0.5, 0.0])
    torch.testing.assert_close(served.received["a"][:2], torch.full((2, 1), 1 + (2 + 0.5 * 4) / 1.5))


def test_memory_stays_when_nothing_has_arrived():
    nobody = [False, False, False]
    served = play("none", active=nobody, receive=nobody, trust=[0.0, 0.0, 0.0])
    assert served.memory["rounds"] == 0


@pytest.mark.parametrize(("way", "expected"), [("cap", 2 * (0.6 + 0.4 + 1.2) + 1), ("median", 5.0)])
def test_robustness_limits_what_is_mixed(way, expected):
    """With a cap of 0.2, W of client 0 is (0.6, 0.2, 0.2); its median of 2, 4 and 12 is 4."""
    served = play(way, active=[True, True, True])
    assert served.received["a"][0].item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mixing", "found"),
    [
        (torch.eye(2), r"W\[2, 2\]"),
        (torch.eye(3, dtype=torch.float64), "W in float64"),
        (np.eye(3, dtype=np.float32), "a ndarray"),
        (None, "a NoneType"),
    ],
)
def test_a_wrong_w_of_a_method_of_ones_own_is_one_line(monkeypatch, mixing, found):
    monkeypatch.setattr(Told, "collaborate", lambda self, server, uploads, memory: (mixing, memory))
    with pytest.raises(UserError, match=rf"told returned {found}: return W\[3, 3\], a tensor in float32"):
        play("none", active=[True, True, True])
