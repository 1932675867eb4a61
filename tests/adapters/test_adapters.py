"""What every adapter must satisfy, whatever its method."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from fedctta.adapters import adapters
from fedctta.aggregators import Server
from fedctta.aggregators.fedavg import FedAvg
from fedctta.core.clients import InChunks, by_loop, by_vmap, stack, take
from fedctta.core.network import Network
from fedctta.engine.rounds import Federation
from fedctta.errors import UserError
from fedctta.machine import arithmetic
from fedctta.models import build

# parameters with which a method is quick, or does something, on a few random images
SMALL = {
    "grad": {"lr": 1e-3},
    "eata": {"threshold": 0.9},
    "rdumb": {"every": 1},
    "sar": {"threshold": 0.9},
    "t3a": {"supports": 3},
    "cotta": {"views": 2},
    "memo": {"views": 2},
    "rotta": {"places": 3},
    "bbn": {"threshold": 0.9},
    "atp": {"rates": "0.01"},
    "fedthe": {"views": 2, "plus": 1},
    "fedicon": {"steps": 2},
    "bpa": {"steps": 2},
    "cola": {"vectors": 3, "threshold": 0.0},  # every batch is of a new domain
}
OTHER_FORMS = [
    ("bn", {"momentum": 0.3}),
    ("grad", {"variant": "code"}),
    ("grad", {"lr": 1e-3, "prox": 1.0}),
    ("grad", {"lr": 1e-3, "moon": 1.0}),
    ("grad", {"lr": 1e-3, "distil": 1.0}),
    ("grad", {"lr": 1e-3, "finetune": 1}),
    ("grad", {"variant": "code", "prox": 1.0, "moon": 1.0, "distil": 1.0, "finetune": 1}),
    ("bbn", {"variant": "code", "threshold": 0.9, "augment_teacher": True, "gamma": 0.1}),
    ("atp", {"rates": "0.01", "mode": "online", "start": "received"}),
    ("cola", {"vectors": 1, "threshold": 0.0, "base": "sar"}),
    ("cola", {"role": "mixed", "every": 1}),
    ("cola", {"role": "follower"}),
    ("recall", {"inner": "tent"}),
    ("recall", {"inner": "eata"}),
    ("recall", {"inner": "sar"}),
    ("bpa", {"trains": "all", "start": "own", "loss": "infomax", "precision": "low", "predict_with": "received"}),
]
FORMS = [(name, SMALL.get(name, {})) for name in adapters.classes()] + OTHER_FORMS
# and bn without momentum
NEEDS_A_BATCH = {"grad", "tent", "eata", "eta", "rdumb", "sar", "shot", "cotta", "roid", "fedicon", "bpa", "cola"}
NEEDS_BATCHNORM = {"bn", "recall", "norm-alpha", "norm-ema", "dua", "rotta", "bbn"}
CLIENTS, ROUNDS = 3, 2
by_chunks = InChunks(CLIENTS - 1)  # as in a run of many clients: some at a time, and a rest
gpu = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture(params=FORMS, ids=lambda form: "-".join([form[0], *(f"{k}={v}" for k, v in form[1].items())]))
def adapter(request):
    return adapters.create(*request.param)


def batches(device):
    generator = torch.Generator().manual_seed(3)
    return torch.rand(ROUNDS, CLIENTS, 4, 3, 32, 32, generator=generator).to(device)


def play(adapter, network, lift, device):
    """Predict, adapt and predict for a few rounds; return the logits[2, T, N, B, K] before and after."""
    clients = stack(adapter.init(network), CLIENTS)
    before, after = [], []
    with torch.no_grad():
        for x in batches(device):
            before.append(lift(partial(adapter.predict_before, network))(clients, x))
            clients = lift(partial(adapter.adapt, network))(clients, x)
            clients = lift(partial(adapter.receive, network))(clients, x)
            after.append(lift(partial(adapter.predict, network))(clients, x))
    return torch.stack([torch.stack(before), torch.stack(after)]), clients


@pytest.fixture
def exact():
    """As in a run: full float32 on CUDA too."""
    with arithmetic():
        yield


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("device", ["cpu", gpu])
def test_in_chunks_equals_looped_equals_alone(adapter, device):
    network = Network(build("resnet8-w16", 10, seed=1), device)
    chunked, _ = play(adapter, network, by_chunks, device)
    looped, _ = play(adapter, network, by_loop, device)
    assert (chunked - looped).abs().max() < 1e-4
    with torch.no_grad():
        for i in range(CLIENTS):
            client = adapter.init(network)
            for t, x in enumerate(batches(device)[:, i]):
                assert (adapter.predict_before(network, client, x) - chunked[0, t, i]).abs().max() < 1e-4
                client = adapter.receive(network, adapter.adapt(network, client, x), x)
                assert (adapter.predict(network, client, x) - chunked[1, t, i]).abs().max() < 1e-4


def test_the_same_input_gives_the_same_client(adapter, tiny_network):
    first, again = (play(adapter, tiny_network, by_chunks, "cpu")[0] for _ in range(2))
    assert torch.equal(first, again)


def test_labels_change_no_prediction(adapter, relabelled):
    relabelled(adapter, FedAvg())


def test_predicting_before_is_predicting_after_just_where_the_adapter_says_so(adapter, tiny_module):
    if not adapter.waits:
        assert adapter.predicts_alike(communicates=True)  # it predicts in its adapting pass, whatever is asked
        return
    with torch.no_grad():
        tiny_module[5].weight *= 8  # sure enough for those who filter
    before, after = play(adapter, Network(tiny_module), by_loop, "cpu")[0]
    assert bool((before - after).abs().max() < 1e-6) == adapter.predicts_alike(communicates=False)


def test_predicting_before_changes_no_model(adapter):
    network = Network(build("resnet8-w16", 10, seed=1))
    server = Server(network, by_loop, 0, (3, 32, 32), CLIENTS, lambda count: torch.rand(count, 3, 32, 32))
    federation = Federation(adapter, FedAvg(), server)
    start, everyone, x = federation.start(), torch.ones(CLIENTS, dtype=torch.bool), batches("cpu")[0]
    with torch.no_grad():
        early, outcome = replace(federation, predict="before").play(start, 0, x, everyone, None)
        late, _ = federation.play(start, 0, x, everyone, None)
        expected = by_loop(partial(adapter.predict_before, network))(start.clients, x)
    assert torch.equal(outcome.logits, expected)
    for part in ("own", "private"):
        one, other = getattr(early.clients, part), getattr(late.clients, part)
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_client_keeps_its_shapes_and_dtypes(adapter, tiny_network):
    _, clients = play(adapter, tiny_network, by_loop, "cpu")
    start = stack(adapter.init(tiny_network), CLIENTS)
    for before, after in ((start.own, clients.own), (start.private, clients.private)):
        assert before.keys() == after.keys()
        assert all(before[n].shape == after[n].shape and before[n].dtype == after[n].dtype for n in before)


def test_clients_do_not_touch_each_other(adapter, tiny_network):
    x = batches("cpu")[0]
    other = x.clone()
    other[1] = 0.5
    lifted = by_chunks(partial(adapter.adapt, tiny_network))
    clients = stack(adapter.init(tiny_network), CLIENTS)
    with torch.no_grad():
        one, two = lifted(clients, x), lifted(clients, other)
    untouched = torch.tensor([0, 2])
    for a, b in zip(take(one, untouched).own.values(), take(two, untouched).own.values(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_single_image_works_or_is_refused(adapter):
    network = Network(build("resnet8-w16", 10, seed=1))
    x = batches("cpu")[0, 0, :1]
    if adapter.name in NEEDS_A_BATCH or adapter == adapters.create("bn"):
        with pytest.raises(UserError, match="batch=1 gives"):
            adapter.check(network, batch=1)
        return
    adapter.check(network, batch=1)
    with torch.no_grad():
        client = adapter.receive(network, adapter.adapt(network, adapter.init(network), x), x)
        assert adapter.predict(network, client, x).isfinite().all()


def test_an_absent_client_stays_as_it_was(adapter):
    network = Network(build("resnet8-w16", 10, seed=1))
    images = torch.rand(8, 3, 32, 32)
    server = Server(network, by_loop, seed=0, shape=(3, 32, 32), clients=CLIENTS, images=lambda count: images)
    federation = Federation(adapter, FedAvg(), server)
    before = federation.start()
    active = torch.tensor([True, False, True])
    with torch.no_grad():
        after, outcome = federation.play(before, 0, batches("cpu")[0][active], active, None)
    assert outcome.logits.shape[0] == 2
    for part in ("own", "private"):
        old, new = getattr(before.clients, part), getattr(after.clients, part)
        assert all(torch.equal(old[name][1], new[name][1]) for name in old)


class Mine(nn.Module):
    """Convolution, norm, ReLU, the largest activations, Linear."""

    def __init__(self, norm):
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 6, 3), norm, nn.Linear(6, 4)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))).amax((2, 3)))


class Volumes(nn.Module):
    """Sees an image and its mirror image as a volume."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Conv3d(3, 6, 3, padding=1), nn.BatchNorm3d(6), nn.Linear(6, 4)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(torch.stack([x, x.flip(-1)], 2)))).amax((2, 3, 4)))


class Twice(Mine):
    """Calls its norm twice."""

    def __init__(self):
        super().__init__(nn.BatchNorm2d(6))

    def forward(self, x):
        seen = self.norm(self.first(x))
        return self.last(self.norm(torch.relu(seen) + seen).amax((2, 3)))


MODULES = {
    "batch": lambda: Mine(nn.BatchNorm2d(6)),
    "group": lambda: Mine(nn.GroupNorm(2, 6)),
    "both": lambda: Mine(nn.Sequential(nn.GroupNorm(2, 6), nn.BatchNorm2d(6))),
    "instance": lambda: Mine(nn.InstanceNorm2d(6, affine=True)),
    "volumes": Volumes,
    "twice": Twice,
}


@pytest.mark.parametrize("kind", MODULES)
def test_any_module_works_unedited_or_is_refused(adapter, kind):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network(MODULES[kind]().eval())
    if not network.norms and adapter.name in NEEDS_BATCHNORM and getattr(adapter, "inner", "none") == "none":
        with pytest.raises(UserError, match="needs BatchNorm"):
            adapter.check(network, 4)
        return
    adapter.check(network, 4)
    if kind == "twice" and adapter.name == "bbn":
        with pytest.raises(UserError, match="layer 'norm' is called twice"):
            play(adapter, network, by_vmap, "cpu")
        return
    looped, _ = play(adapter, network, by_loop, "cpu")
    vmapped, _ = play(adapter, network, by_vmap, "cpu")
    assert vmapped.shape == (2, ROUNDS, CLIENTS, 4, 4)
    apart = (vmapped - looped).abs()
    if adapter.name == "fedthe":  # two equal heads before the first batch: Adam weighs them by how gradients of 0 round
        apart[0, 0] = 0
    assert apart.max() < 1e-4
