"""One client's watchman, against a story told in logits."""

from __future__ import annotations

import pytest
import torch

from fedctta.health.guard import FIRST
from fedctta.health.signals import Views
from fedctta.health.watchman import Watchman

SURE = 30 * torch.eye(2)[torch.arange(32) % 2]
GOOD, BAD = Views(SURE, SURE), Views(SURE, -SURE)
ALL = torch.arange(32)


def check(watchman, adapted):
    watchman.compare(adapted, GOOD, ALL, calibrated=True)
    verdict = watchman.judge()
    watchman.watch(adapted.plain)
    return verdict


@pytest.mark.parametrize(
    ("guard", "verdicts", "resting"),
    [("off", ["go on", "go on"], False), ("reset", ["return", "return"], True), ("freeze", ["return", "return"], True)],
)
def test_harm_is_an_alarm_and_the_guard_says_what_follows(guard, verdicts, resting):
    watchman = Watchman(4, guard)
    assert check(watchman, GOOD) == "remember"
    found = [check(watchman, BAD) for _ in range(4)]
    assert found[-2:] == verdicts
    assert watchman.resting is resting
    assert watchman.frozen is (guard == "freeze")
    assert watchman.alarms[0].accuracy < watchman.alarms[0].source_accuracy
    assert (len(watchman.alarms) > 1) is (guard == "off")


def test_who_rests_tries_again_and_comes_back():
    watchman = Watchman(4, "reset")
    while not watchman.resting:
        check(watchman, BAD)
    alarm = watchman.alarms[0].batch
    due = []
    for batch in range(alarm + 1, alarm + 20):
        due += [batch] if watchman.is_due() else []
        watchman.watch(SURE)
    assert due
    assert min(due) >= alarm + 4
    assert check(watchman, GOOD) == "remember"
    assert not watchman.resting


def test_who_is_frozen_is_never_due():
    watchman = Watchman(1, "freeze")
    assert watchman.is_due()
    while not watchman.resting:
        check(watchman, BAD)
    assert not watchman.is_due()


def test_a_calm_check_shows_the_source_few_images():
    watchman = Watchman(4, "off")
    assert watchman.stride(200, dense=False) == 1
    for _ in range(FIRST):
        check(watchman, GOOD)
    assert watchman.stride(200, dense=False) > 1
    assert watchman.stride(200, dense=True) == watchman.stride(10, dense=False) == 1


def test_who_never_checks_does_not_look_either():
    watchman = Watchman(0, "reset")
    watchman.watch(SURE)
    watchman.resting = True  # as it was restored
    assert not watchman.looks()
    assert not watchman.is_due()
