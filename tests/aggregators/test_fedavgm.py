"""Server momentum by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fedctta.aggregators import Uploads
from fedctta.aggregators.common.mixing import mix, restrict
from fedctta.aggregators.fedavgm import FedAvgM
from fedctta.errors import UserError

SOURCE = {"a": torch.tensor([1.0, 0.0])}


def play(aggregator, rounds, source=SOURCE, active=(True, True)):
    """Give the models sent in every round, and the memory at the end."""
    statistics = {name: tensor for name, tensor in source.items() if "running" in name}
    network = SimpleNamespace(state=source, statistics=statistics, device="cpu")
    server, active = SimpleNamespace(network=network), torch.tensor(active)
    memory, sent = aggregator.init(server), []
    for own in rounds:
        uploads = Uploads(own, {}, active)
        weights, memory = aggregator.collaborate(server, uploads, memory)
        assert weights.tolist() == [[1 / len(active)] * len(active)] * len(active)
        models, memory = aggregator.step(server, uploads, mix(restrict(weights, active), own), active, memory)
        sent.append(models)
    return sent, memory


def of(*models):
    return {"a": torch.tensor(models)}


def test_momentum_of_the_paper_by_hand():
    """Means (2, 0), (2, 2), (2, 2) from g = (1, 0), beta = 0.5."""
    sent, memory = play(
        FedAvgM(momentum=0.5), [of([1.0, 0.0], [3.0, 0.0]), of([2.0, 1.0], [2.0, 3.0]), of([2.0, 2.0], [2.0, 2.0])]
    )
    assert [models["a"].tolist() for models in sent] == [
        [[2, 0]] * 2,  # m = (1, 0)
        [[2.5, 2]] * 2,  # m = (0.5, 0) + (0, 2)
        [[2.25, 3]] * 2,  # m = (0.25, 1) + (-0.5, 0)
    ]
    assert memory["momentum.a"].tolist() == [-0.25, 1]
    assert memory["global.a"].tolist() == [2.25, 3]


def test_momentum_of_the_code_is_damped():
    sent, _ = play(FedAvgM(momentum=0.5, variant="code"), [of([1.0, 0.0], [3.0, 0.0]), of([2.0, 1.0], [2.0, 3.0])])
    assert [models["a"][0].tolist() for models in sent] == [[2, 0], [2.5, 1]]  # m = (0.5, 0) + 0.5 (0, 2)


def test_restarting_forgets_the_momentum():
    rounds = [of([2.0, 0.0], [2.0, 0.0])] * 2 + [of([2.0, 4.0], [2.0, 4.0])] * 2
    for variant, last in (("paper", [1.75, 6]), ("code", [1.75, 6])):
        sent, _ = play(FedAvgM(momentum=0.5, variant=variant, restart=2), rounds)
        assert [models["a"][0].tolist() for models in sent] == [[2, 0], [2.5, 0], [2, 4], last]


def test_without_momentum_it_is_fedavg():
    rounds = [of([1.0, 5.0], [3.0, 7.0]), of([0.0, 1.0], [4.0, 8.0])]
    sent, _ = play(FedAvgM(momentum=0.0), rounds)
    assert [models["a"].tolist() for models in sent] == [[[2, 6]] * 2, [[2, 4.5]] * 2]


def test_an_absent_client_neither_moves_the_server_nor_receives():
    sent, memory = play(FedAvgM(), [of([9.0, 9.0], [2.0, 4.0])], active=(False, True))
    assert sent[0]["a"].tolist() == [[9, 9], [2, 4]]
    assert memory["global.a"].tolist() == [2, 4]


def test_one_client_alone():
    sent, _ = play(FedAvgM(momentum=0.5), [of([2.0, 0.0]), of([2.0, 2.0])], active=(True,))
    assert [models["a"].tolist() for models in sent] == [[[2, 0]], [[2.5, 2]]]


def test_statistics_are_measured_and_not_moved():
    """Means 1, 3, 2 from 4: what was measured last, where weights would have been carried on to 2.7."""
    source = {name: torch.tensor([4.0]) for name in ("n.running_var", "n.running_mean", "n.weight")}
    rounds = [{name: torch.tensor([[value], [value]]) for name in source} for value in (1.0, 3.0, 2.0)]
    sent, memory = play(FedAvgM(), rounds, source)
    for name in ("n.running_var", "n.running_mean"):
        assert [models[name][0].item() for models in sent] == [1, 3, 2]
        assert f"momentum.{name}" not in memory
    assert [models["n.weight"][0].item() for models in sent] == pytest.approx([1, 0.3, 1.37])


def test_late_uploads_count_less_and_move_the_server_though_nobody_receives():
    server = SimpleNamespace(network=SimpleNamespace(state=SOURCE, statistics={}, device="cpu"))
    aggregator, nobody = FedAvgM(momentum=0.5), torch.zeros(2, dtype=torch.bool)
    memory = aggregator.init(server)
    for trust, g, m in (
        ([1.0, 0.5], [2, 2], [1, 2]),  # the mean of (1, 0) and half of (4, 6), from (1, 0)
        ([0.0, 0.0], [2, 2], [1, 2]),  # nothing comes
        ([0.0, 0.25], [4.5, 7], [2.5, 5]),  # half of the momentum, and from (2, 2) to (4, 6)
    ):
        own, trust = of([1.0, 0.0], [4.0, 6.0]), torch.tensor(trust)
        uploads = Uploads(own, {}, trust > 0, None, trust)
        weights, memory = aggregator.collaborate(server, uploads, memory)
        sent, memory = aggregator.step(server, uploads, mix(restrict(weights, nobody, trust), own), nobody, memory)
        assert torch.equal(sent["a"], own["a"])
        assert memory["global.a"].tolist() == pytest.approx(g)
        assert memory["momentum.a"].tolist() == pytest.approx(m)


def test_a_variance_is_not_carried_below_zero():
    own = {name: torch.tensor([[1.0], [1.0]]) for name in ("n.running_var", "n.running_mean")}
    source = {name: torch.tensor([4.0]) for name in own}
    sent, memory = play(FedAvgM(variant="code"), [own, own], source)
    assert sent[1]["n.running_mean"][0].item() == pytest.approx(1 - 0.9 * 3)
    assert sent[1]["n.running_var"][0].item() == memory["global.n.running_var"].item() == 0


def test_impossible_parameters_are_refused():
    for parameters in ({"momentum": 1.0}, {"momentum": -0.1}, {"restart": -1}):
        with pytest.raises(UserError, match="must"):
            FedAvgM(**parameters)
