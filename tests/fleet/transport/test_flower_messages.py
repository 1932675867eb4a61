"""Questions and answers: one open per node, dropped when they expire, and an unreadable one spoils no other."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedctta.fleet.simulation.grid import InProcessGrid
from fedctta.fleet.transport import flower_messages
from fedctta.fleet.transport.flower_messages import HELLO, PARCEL, Questions
from fedctta.fleet.transport.wire import Parcel, unpack


def echo(message):
    return Message(message.content, reply_to=message)


def fail(message):
    raise RuntimeError("no")


def say_nothing(message):
    return Message(RecordDict(), reply_to=message)


def say_numbers(message):
    return Message(RecordDict({PARCEL: ArrayRecord({"other": Array(np.zeros(3))})}), reply_to=message)


def test_a_question_travels_and_its_answer_comes_back():
    questions = Questions(InProcessGrid({7: echo}), ttl=60)
    size = questions.ask(7, HELLO, Parcel("hello", 3, {"name": "me"}), nonce="n", carried=2)
    assert questions.online() == questions.busy() == {7}
    (answer,) = questions.collect()
    assert (answer.question.node, answer.question.round, answer.question.nonce, answer.question.carried) == (
        7,
        3,
        "n",
        2,
    )
    assert unpack(answer.flat, size) == Parcel("hello", 3, {"name": "me"})
    assert questions.busy() == set()
    assert questions.collect() == []


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (fail, "Flower's error 2: RuntimeError: no"),
        (say_nothing, "the message holds no parcel (KeyError)"),
        (say_numbers, "the message holds no parcel (KeyError)"),
    ],
)
def test_what_is_no_parcel_is_an_error(node, reason):
    questions = Questions(InProcessGrid({7: node}), ttl=60)
    questions.ask(7, HELLO, Parcel("hello"))
    (answer,) = questions.collect()
    assert (answer.flat, answer.error) == (None, reason)


def test_a_question_without_an_answer_expires(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(flower_messages.time, "monotonic", lambda: now[0])
    questions = Questions(InProcessGrid({7: echo}, late=lambda message: True), ttl=60)
    questions.ask(7, HELLO, Parcel("hello"))
    now[0] = 90.0
    assert questions.collect() == []
    now[0] = 90.1
    (answer,) = questions.collect()
    assert answer.error == "no answer within 90 s"
    assert questions.busy() == set()


def test_an_answer_that_cannot_be_read_spoils_no_other():
    class Torn(InProcessGrid):
        def pull_messages(self, message_ids):
            found = list(message_ids)
            if any(self._waiting[i].metadata.dst_node_id == 8 for i in found):
                raise ValueError("torn")
            return super().pull_messages(found)

    questions = Questions(Torn({7: echo, 8: echo, 9: echo}), ttl=60)
    for node in (7, 8, 9):
        questions.ask(node, HELLO, Parcel("hello"))
    errors = {answer.question.node: answer.error for answer in questions.collect()}
    assert errors == {7: "", 8: "the message cannot be read (ValueError)", 9: ""}
