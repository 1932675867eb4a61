from __future__ import annotations

import threading
from time import monotonic

import torch

from fedctta.core.clients import Client
from fedctta.fleet.device.handover import Download, Handover, Snapshot


def held(batches: int) -> Snapshot:
    return Snapshot(Client({}), torch.zeros(1), batches)


def test_the_newest_download_is_taken_once():
    handover = Handover(held(0))
    assert handover.take() is None
    handover.deliver(Download({}, 1))
    handover.deliver(Download({}, 2))
    assert handover.take() == Download({}, 2)
    assert handover.take() is None


def test_a_moment_is_waited_for_until_it_comes_the_data_end_or_time_is_up():
    handover = Handover(held(3))
    assert handover.wait_for_moment(2, 0)
    assert not handover.wait_for_moment(3, 0.01)
    threading.Timer(0.05, lambda: handover.publish(held(4))).start()
    assert handover.wait_for_moment(3, 60)
    threading.Timer(0.05, handover.end).start()
    assert handover.wait_for_moment(4, 60)


def test_waiting_for_a_download_ends_when_told_to_stop():
    handover, began = Handover(held(0)), monotonic()
    assert handover.wait_for_download(lambda: monotonic() - began > 0.05, tick=0.01) is None
    threading.Timer(0.02, lambda: handover.deliver(Download({}, 7))).start()
    assert handover.wait_for_download(lambda: False) == Download({}, 7)
