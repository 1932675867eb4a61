"""A grid within one process: answers come from functions, late ones later, and failures as error messages."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict

from fedctta.fleet.simulation.grid import InProcessGrid


def echo(message):
    return Message(RecordDict(), reply_to=message)


def fail(message):
    raise ValueError("no")


def send(grid, *nodes):
    return [grid.create_message(RecordDict(), "query", node, "1") for node in nodes]


def test_every_node_answers_its_message():
    grid = InProcessGrid({7: echo, 8: echo})
    ids = list(grid.push_messages(send(grid, 7, 8)))
    answers = list(grid.pull_messages(ids))
    assert [answer.metadata.reply_to_message_id for answer in answers] == ids
    assert list(grid.pull_messages(ids)) == []
    assert grid.get_node_ids() == [7, 8]


def test_late_answers_come_later():
    late = {8}
    grid = InProcessGrid({7: echo, 8: echo}, lambda message: message.metadata.dst_node_id in late)
    ids = list(grid.push_messages(send(grid, 7, 8)))
    assert len(list(grid.pull_messages(ids))) == 1
    late.clear()
    (answer,) = grid.pull_messages(ids)
    assert answer.metadata.src_node_id == 8


def test_failures_are_error_messages():
    grid = InProcessGrid({7: fail})
    failed, left = grid.send_and_receive(send(grid, 7, 9))
    assert (failed.error.code, failed.error.reason) == (2, "ValueError: no")
    assert left.error.reason == "the node has left"
