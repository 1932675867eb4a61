"""Images on the device: what is read there is what the stream gives."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from fedctta.data.domains import Domains
from fedctta.engine import device_stream
from fedctta.engine.device_stream import DeviceStream, put_on_device
from fedctta.models.inputs import to_input
from fedctta.streams import ABSENT, build
from fedctta.streams.arrivals import Churn
from fedctta.streams.clusters import NIID


@pytest.mark.parametrize("schedule", [NIID(clusters=2), Churn()])
def test_every_round_is_read_as_the_stream_gives_it(schedule, domains, device):
    stream = build(schedule, domains, clients=4, slots=3, batch=4, seed=0)
    there = DeviceStream(stream, domains, device)
    assert {ABSENT, *range(3)} >= set(stream.domain.flatten().tolist())
    for t in range(len(stream)):
        slot, (x, labels, domain) = stream.slot(t), there.read(t)
        assert torch.equal(x.cpu(), to_input(slot.images))
        assert labels.tolist() == slot.labels.tolist()
        assert domain.tolist() == slot.domain.tolist()


def test_a_round_number_on_the_device_reads_the_same(domains, device):
    stream = build(NIID(clusters=2), domains, clients=4, slots=3, batch=4, seed=0)
    there = DeviceStream(stream, domains, device)
    for t in (0, 5):
        for one, other in zip(there.slot(torch.tensor([t], device=device)), there.read(t), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("schedule", [NIID(clusters=2), Churn(leave=0.3)])
def test_domains_of_their_own_sizes_are_read_as_the_stream_gives_them(schedule, make_domains, device):
    sizes = {"d0": 13, "d1": 29, "d2": 48}
    whole = make_domains()
    images = {name: whole.images[name][:size] for name, size in sizes.items()}
    labels = {name: whole.labels[:size] for name, size in sizes.items() if name != "d1"}
    data = Domains(whole.names, images, labels, whole.classes)
    stream = build(schedule, data, clients=4, slots=4, batch=4, seed=0)
    there = DeviceStream(stream, data, device)
    for t in range(len(stream)):
        slot, read = stream.slot(t), there.read(t)
        assert torch.equal(read.x.cpu(), to_input(slot.images))
        assert read.labels.tolist() == slot.labels.tolist()
        if (slot.domain != ABSENT).all():
            for one, other in zip(there.slot(torch.tensor([t], device=device)), read, strict=True):
                assert torch.equal(one, other)


def test_images_shown_again_to_fill_a_batch_have_no_label(domains, device):
    stream = build(NIID(clusters=2), domains, clients=4, slots=3, batch=5, seed=0, everything=True)
    there = DeviceStream(stream, domains, device)
    assert stream.counted is not None
    for t in range(len(stream)):
        slot, read = stream.slot(t), there.read(t)
        assert torch.equal(read.x.cpu(), to_input(slot.images))
        assert read.labels.tolist() == slot.labels.tolist()


def test_the_images_of_one_data_set_stay_until_it_is_gone(make_domains, device):
    data, other = make_domains(), make_domains(seed=1)
    streams = [build(NIID(clusters=2), each, clients=4, slots=3, batch=4, seed=0) for each in (data, other)]
    first = DeviceStream(streams[0], data, device)._images
    assert DeviceStream(streams[0], data, device)._images is first
    second = DeviceStream(streams[1], other, device)._images
    assert not torch.equal(first, second)
    assert [kept.data() for kept in device_stream._kept] == [other]
    del streams, other
    gc.collect()
    assert not device_stream._kept


def test_images_of_the_data_set_before_make_room_and_those_on_the_device_need_none(make_domains, monkeypatch):
    data, other = make_domains(), make_domains(seed=1)
    stream = build(NIID(clusters=2), data, clients=4, slots=3, batch=4, seed=0)
    gpu, images = torch.device("cuda"), torch.zeros(1)
    monkeypatch.setattr(device_stream, "DeviceStream", lambda *_: "there")
    monkeypatch.setattr(device_stream, "_kept", [device_stream._Kept(weakref.ref(other), images)])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (0 if device_stream._kept else 10**9, 10**9))
    assert put_on_device(stream, gpu) == "there"
    assert device_stream._kept == []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (100 * stream.visit.size * stream.batch, 10**9))
    assert put_on_device(stream, gpu) is None  # no room for the images
    monkeypatch.setattr(device_stream, "_find_kept", lambda data, device: images)
    assert put_on_device(stream, gpu) == "there"


def test_on_a_cpu_images_stay_where_they_are(domains):
    stream = build(NIID(clusters=2), domains, clients=4, slots=3, batch=4, seed=0)
    assert put_on_device(stream, torch.device("cpu")) is None


@pytest.mark.gpu
def test_images_that_do_not_fit_stay_where_they_are(domains, monkeypatch):
    stream, gpu = build(NIID(clusters=2), domains, clients=4, slots=3, batch=4, seed=0), torch.device("cuda")
    assert put_on_device(stream, gpu) is not None
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 1000))
    assert put_on_device(stream, gpu) is None
