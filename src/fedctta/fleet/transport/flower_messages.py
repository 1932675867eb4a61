"""Questions to nodes and their answers as Flower messages: a packed parcel each way, one open question per node."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from fedctta.fleet.flower import Array, ArrayRecord, Grid, Message, RecordDict
from fedctta.fleet.transport import wire

HELLO, STEP = "query", "train.step"
PARCEL = "parcel"


@dataclass(frozen=True)
class Question:
    """What a node was asked: a hello, or its upload of a round; `carried` is the round of the model sent along."""

    node: int
    kind: str
    round: int
    nonce: str
    sent: float
    carried: int | None = None


@dataclass(frozen=True)
class Answer:
    """A node's answer: packed bytes, or what went wrong on the way; a message that is no answer is `unreadable`."""

    question: Question
    flat: NDArray[Any] | None
    error: str = ""
    unreadable: bool = False


class Questions:
    """Sends questions and collects answers. A question without an answer is dropped some time after it expires."""

    def __init__(self, grid: Grid, ttl: float) -> None:
        self._grid, self._ttl = grid, ttl
        self._pending: dict[str, Question] = {}
        self._broken: dict[str, str] = {}

    def online(self) -> set[int]:
        """Return the nodes that are there now."""
        return set(self._grid.get_node_ids())

    def busy(self) -> set[int]:
        """Return the nodes that have a question to answer."""
        return {question.node for question in self._pending.values()}

    def ask(self, node: int, kind: str, parcel: wire.Parcel, nonce: str = "", carried: int | None = None) -> int:
        """Send one question; return its bytes."""
        flat = wire.pack(parcel)
        content = RecordDict({PARCEL: ArrayRecord({PARCEL: Array(flat)})})
        message = Message(content, dst_node_id=node, message_type=kind, group_id=str(parcel.round), ttl=self._ttl)
        for message_id in self._grid.push_messages([message]):
            if message_id:  # a node that left a moment ago gets none
                self._pending[message_id] = Question(node, kind, parcel.round, nonce, time.monotonic(), carried)
        return int(flat.nbytes)

    def collect(self) -> list[Answer]:
        """Return the answers that have come."""
        answers = []
        for message in self._pull(list(self._pending)) if self._pending else ():
            question = self._pending.pop(message.metadata.reply_to_message_id, None)
            if question is not None:
                answers.append(_answer(question, message))
        answers += [Answer(self._pending.pop(i), None, reason, True) for i, reason in self._broken.items()]
        self._broken.clear()
        patience = self._ttl + 30
        for message_id, question in list(self._pending.items()):
            if time.monotonic() - question.sent > patience:
                del self._pending[message_id]
                answers.append(Answer(question, None, f"no answer within {patience:.0f} s"))
        return answers

    def _pull(self, message_ids: list[str]) -> list[Message]:
        """Pull all at once; if an answer cannot even be read, one by one, so that it spoils no other."""
        try:
            return list(self._grid.pull_messages(message_ids))
        except _UNREADABLE as error:
            if len(message_ids) > 1:
                return [message for message_id in message_ids for message in self._pull([message_id])]
            self._broken[message_ids[0]] = f"the message cannot be read ({type(error).__name__})"
            return []


# What Flower raises on objects that are not what they say; a broken connection is another matter.
_UNREADABLE = (ValueError, TypeError, KeyError, MemoryError, OverflowError, RecursionError, DecodeError)


def _answer(question: Question, message: Message) -> Answer:
    if message.has_error():
        return Answer(question, None, f"Flower's error {message.error.code}: {message.error.reason:.300}")
    try:
        flat = message.content.array_records[PARCEL][PARCEL].numpy()  # Flower loads without pickles
    except Exception as error:  # nothing but the node's bytes is read here, and readers of formats raise anything
        return Answer(question, None, f"the message holds no parcel ({type(error).__name__})", True)
    if not isinstance(flat, np.ndarray):  # NumPy opens archives, too
        return Answer(question, None, f"the message holds no parcel ({type(flat).__name__})", True)
    return Answer(question, flat)
