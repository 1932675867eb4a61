"""Books of domains over the wire: the real device and the real server's half, message by message, in one process."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedctta.adapters.recall import Recall as Adapter
from fedctta.aggregators import Server
from fedctta.aggregators.recall import Recall
from fedctta.core.clients import by_loop, by_vmap
from fedctta.engine.first_clients import first_client
from fedctta.engine.rounds import Federation
from fedctta.fleet.device.device import Device, Stop
from fedctta.fleet.device.device_state import DeviceState, StreamPosition
from fedctta.fleet.device.equipment import Equipment, equip
from fedctta.fleet.device.handover import Handover, Snapshot
from fedctta.fleet.device.predictions import open_predictions
from fedctta.fleet.device.request_handler import RequestHandler
from fedctta.fleet.device.sources import Batch
from fedctta.fleet.server.collaboration import Hub
from fedctta.fleet.server.examine import Examiner
from fedctta.fleet.server.plan import method_note
from fedctta.fleet.transport.wire import Parcel, pack, unpack
from fedctta.models.inputs import to_input
from fedctta.online.adaptation import Adaptation
from fedctta.registry import parameters_of

DEVICES, LIMIT = 3, 1 << 26


def pictures(rounds, kinds=2, images=6, size=8, seed=0):
    """uint8 pictures[rounds, devices, B, H, W, 3] of some kinds, which differ in brightness and contrast."""
    random = np.random.default_rng(seed)
    raw = random.integers(0, 256, (rounds, DEVICES, images, size, size, 3))
    kind = (np.arange(rounds)[:, None] // 4 + np.arange(DEVICES)) % kinds
    dim = (1 + kind).reshape(rounds, DEVICES, 1, 1, 1, 1)
    return (raw // dim).astype(np.uint8)


class Fleet:
    """Three devices and a server; messages are packed, checked and unpacked as over a network."""

    def __init__(self, folder, network, domains=4, spare=None, **parameters):
        self.network, self.adapter = network, Adapter(domains=domains)
        self.aggregator = Recall(domains=domains, **parameters)
        server = Server(network, by_loop, 0, (3, 8, 8), DEVICES, lambda n: torch.zeros(n, 3, 8, 8))
        first = self.adapter.init(network)
        signals = self.aggregator.signal(network, first, torch.zeros(2, 3, 8, 8))
        self.hub = Hub(self.aggregator, server, {}, handed=self.aggregator.hands(first.private))
        self.examiner = Examiner({}, signals, frozenset(), "recall", LIMIT, sums=True)
        self.standing, self.round, self.bytes_up = self.hub.start(), 0, []
        kit = Equipment(network, self.adapter, (), lambda: spare or network)
        self.devices = [self._device(folder / str(k), kit, k) for k in range(DEVICES)]
        self.desks = [
            RequestHandler(f"{k}", network, self.adapter, device.handover, spare=kit.spare)
            for k, device in enumerate(self.devices)
        ]

    def _device(self, folder, kit, k):
        folder.mkdir()
        adaptation = Adaptation(kit.network, kit.adapter, guard="off", check=0)
        adaptation.take_up(first_client(kit.network, kit.adapter, lambda n: torch.zeros(n, 3, 8, 8), 6, 0, k))
        handover = Handover(Snapshot(adaptation.client, None, 0))
        out, keep = open_predictions(folder / "p.jsonl"), DeviceState(folder, "me")
        return Device(kit, adaptation, StreamPosition(), out, keep, handover)

    def see(self, batches):
        for device, images in zip(self.devices, batches, strict=True):
            with torch.no_grad():
                device.predict(Batch(images, tuple(map(str, range(len(images))))), Stop())

    def ask(self, k, download, ask=1):
        """One question to a device, and its answer, as they travel."""
        note = {**method_note(self.hub), "run": "r", "nonce": "n", "lockstep": 0, "ask": ask}
        note |= {"download": self.round - 1} if download else {}
        arrays = self.hub.write(self.standing, k, download)
        request = unpack(pack(Parcel("step", self.round, note, arrays)), LIMIT)
        flat = pack(self.desks[k].answer(request))
        return unpack(flat, LIMIT), flat.nbytes

    def exchange(self, who=range(DEVICES), download=False):
        """A round of the server; with `download`, questions bring the books of the round before."""
        uploads = {}
        for k in who:
            answer, size = self.ask(k, download)
            self.bytes_up.append(size)
            uploads[k] = self.examiner.upload(answer, self.round, "n")
        self.standing, _, receivers = self.hub.close(self.standing, uploads)
        self.round += 1
        return receivers

    def deliver(self, who=range(DEVICES)):
        for k in who:
            assert self.ask(k, download=True, ask=0)[0].note["received"] == 1

    def images(self, name):
        return [float(device.client.private[name][:, 0].sum()) for device in self.devices]


@pytest.fixture
def fleet(tmp_path, tiny_network):
    return Fleet(tmp_path, tiny_network)


def predicted(folder, k):
    return [json.loads(line)["class"] for line in (folder / str(k) / "p.jsonl").read_text().splitlines()]


def test_a_fleet_predicts_what_the_simulation_predicts(tmp_path, tiny_network, fleet):
    stream = pictures(10)
    server = Server(tiny_network, by_vmap, 0, (3, 8, 8), DEVICES, lambda n: torch.zeros(n, 3, 8, 8))
    federation = Federation(fleet.adapter, fleet.aggregator, server, interval=2)
    state, wanted = federation.start(), []
    for t, images in enumerate(stream):
        with torch.no_grad():
            x = torch.stack([to_input(batch) for batch in images])
            state, outcome = federation.play(state, t, x, torch.ones(DEVICES, dtype=torch.bool), None)
        wanted.append(outcome.logits.argmax(-1))
        fleet.see(images)
        if t % 2:
            fleet.exchange()
            fleet.deliver()
    for k in range(DEVICES):
        assert predicted(tmp_path, k) == torch.stack(wanted)[:, k].flatten().tolist()
    torch.testing.assert_close(fleet.standing.rows["book"], state.clients.private["book"], rtol=1e-3, atol=1e-3)


def test_nothing_is_lost_or_counted_twice_if_books_come_with_the_next_question(fleet):
    for t, images in enumerate(pictures(16)):
        fleet.see(images)
        fleet.exchange(download=t > 0)  # uploads are of before the book that they come back with is taken up
    fleet.deliver()
    fleet.see(pictures(1, seed=1)[0])
    assert fleet.images("part") == pytest.approx([17 * 6] * DEVICES, rel=0.05)
    assert fleet.images("book") == pytest.approx([16 * 6 * (DEVICES - 1)] * DEVICES, rel=0.05)
    for device in fleet.devices:
        names = device.client.private["name"]
        assert len(names[names != 0].unique()) == (names != 0).sum()


def test_lost_late_and_repeated_messages_change_nothing_in_the_end(tmp_path, tiny_network):
    fleet = Fleet(tmp_path, tiny_network, domains=8)  # room for names that are not united yet: none is forgotten
    chance = np.random.default_rng(3)
    for t, images in enumerate(pictures(16)):
        fleet.see(images)
        fleet.exchange(np.flatnonzero(chance.random(DEVICES) < 0.5) if t % 3 else [0], download=chance.random() < 0.5)
        fleet.ask(0, download=True)  # an answer that is lost on its way
    for _ in range(2):
        fleet.exchange()
        fleet.deliver()
        fleet.deliver()
    fleet.see(pictures(1, seed=1)[0])
    assert fleet.images("part") == pytest.approx([17 * 6] * DEVICES, rel=0.05)
    assert fleet.images("book") == pytest.approx([16 * 6 * (DEVICES - 1)] * DEVICES, rel=0.05)


def test_what_the_server_has_is_not_sent_again(fleet):
    for images in pictures(3):
        fleet.see(images)
    fleet.exchange()
    answer, _ = fleet.ask(0, download=False)
    assert not answer.arrays["signal.part"].any()
    assert answer.arrays["signal.name"].any()
    rows = fleet.standing.memory["rows"]
    fleet.exchange()
    assert torch.equal(fleet.standing.memory["rows"], rows)


def test_a_server_that_has_forgotten_is_sent_everything(fleet):
    for images in pictures(3):
        fleet.see(images)
    fleet.exchange()
    known = fleet.standing
    fleet.standing = fleet.hub.start()
    fleet.exchange()
    assert torch.equal(fleet.standing.memory["rows"], known.memory["rows"])


def test_a_book_before_the_first_batch_is_left_out(fleet):
    for images in pictures(3):
        fleet.see(images)
    fleet.exchange()
    device = fleet.devices[0]
    device.adaptation.seen = None  # as after a restart
    fleet.deliver([0])
    before = device.client
    taken = device._take(device.handover.take(), before, None)
    assert taken is before


def test_an_exchange_after_a_stay_in_two_domains_is_small(tmp_path):
    network = equip("resnet8", "cifar10", "none", 10).network
    fleet = Fleet(tmp_path, network, domains=32, spare=network)
    for images in pictures(8, images=10, size=32):
        fleet.see(images)
    fleet.exchange()
    assert max(fleet.bytes_up) <= 25_000


def test_a_domain_of_too_few_images_stays_on_the_device(fleet):
    fleet.see(pictures(1)[0])
    fleet.desks[0].min_batch = 7
    answer, _ = fleet.ask(0, download=False)
    assert not answer.arrays["signal.part"].any()
    assert not answer.arrays["signal.name"].any()
    fleet.desks[0].min_batch = 6
    assert fleet.ask(0, download=False)[0].arrays["signal.name"].any()


def test_lists_that_are_none_are_refused(fleet):
    fleet.see(pictures(1)[0])
    for known in ({"name": np.zeros(2, np.int64), "version": np.zeros(3, np.int64)}, {"name": np.zeros(2, np.float32)}):
        note = {**method_note(fleet.hub), "run": "r", "nonce": "n", "lockstep": 0, "ask": 1}
        request = Parcel("step", 0, note, {f"known.{key}": value for key, value in known.items()})
        answer = fleet.desks[0].answer(request)
        assert answer.kind == "refused"
        assert "lists of one length" in answer.note["reason"]


def test_parameters_are_those_of_the_server(fleet):
    told = json.loads(str(method_note(fleet.hub)["parameters"]))
    assert told == parameters_of(fleet.aggregator)
