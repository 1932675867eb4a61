"""A Flower grid within one process: messages go straight to functions. For tests and for trying an app out.

It runs the same ServerApp as a deployment does, without sockets, processes or waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from fedctta.fleet.flower import Error, Grid, Message, RecordDict, Run, TaskIdentity

Handler = Callable[[Message], Message]


class InProcessGrid(Grid):
    """Nodes are functions of a message. The answer to a message cannot be had for as long as it is `late`."""

    def __init__(self, nodes: Mapping[int, Handler], late: Callable[[Message], bool] = lambda message: False) -> None:
        self.nodes = dict(nodes)
        self._late = late
        self._waiting: dict[str, Message] = {}
        self._count = 0
        self._run = Run.create_empty(run_id=1)
        # Flower's processes are told who they are when they start; a message cannot be made before.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 0

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message."""
        return Message(content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are there."""
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Take messages and return their ids."""
        ids = []
        for message in messages:
            self._count += 1
            message.metadata.__dict__["_message_id"] = str(self._count)  # as Flower's own grids do
            self._waiting[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Let the nodes answer that are not late."""
        ready = [i for i in message_ids if i in self._waiting and not self._late(self._waiting[i])]
        return [self._answer(self._waiting.pop(message_id)) for message_id in ready]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push, and pull until all have answered."""
        ids = list(self.push_messages(messages))
        answers: list[Message] = []
        while len(answers) < len(ids):
            answers += list(self.pull_messages(ids))
        return answers

    def _answer(self, message: Message) -> Message:
        node = self.nodes.get(message.metadata.dst_node_id)
        if node is None:
            return Message(Error(5, "the node has left"), reply_to=message)
        try:
            return node(message)
        except Exception as error:  # as Flower does: whatever happens in a ClientApp is an error message
            return Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)
