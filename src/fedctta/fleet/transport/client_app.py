"""The Flower ClientApp: it carries messages between the node and the device on the same machine, and no more.

Our own `node` calls it in its process. Flower's SuperNode starts a process for every message, so this module loads
neither torch nor the rest of the package. The node says where its device listens (`device="/run/fedctta/device.sock"`,
with Flower in `--node-config`), and, if needed, how long it may take (`timeout=20.0`). If a device is dead or busy, the
app answers with an empty parcel that says so.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedctta.fleet.flower import Array, ArrayRecord, ClientApp, Context, Message, RecordDict
from fedctta.fleet.transport.framing import LIMIT, Undelivered, exchange
from fedctta.fleet.transport.wire import Malformed, Parcel, pack, unpack

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECORD = "parcel"
"""Name of the record, and of the one array in it, in which a packed parcel travels, either way."""

SMALL = 4096  # bytes; what this app says by itself is shorter
TIMEOUT, LOCKSTEP_TIMEOUT = 20.0, 60.0

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Ask the device who it is."""
    return carry(message, context)


@app.train("step")
def step(message: Message, context: Context) -> Message:
    """Give the device what the server sends, and return its upload."""
    return carry(message, context)


def carry(message: Message, context: Context) -> Message:
    """Send one request to the device and return its reply."""
    flat = next(iter(message.content.array_records[RECORD].values())).numpy()
    reply = ask_device(flat, context.node_config.get("device"), context.node_config.get("timeout"))
    return Message(RecordDict({RECORD: ArrayRecord({RECORD: Array(reply)})}), reply_to=message)


def why_silent(reply: Message) -> str | None:
    """Return why the device did not answer, if this app has answered in its place."""
    if reply.has_error():
        return None
    flat = reply.content.array_records[RECORD][RECORD].numpy()
    if flat.nbytes > SMALL:
        return None
    with suppress(Malformed):
        parcel = unpack(flat, SMALL)
        if parcel.kind == "nothing" and "device" not in parcel.note:
            return str(parcel.note.get("reason", ""))
    return None


def ask_device(flat: NDArray[np.uint8], place: object, timeout: object = None) -> NDArray[np.uint8]:
    """Return the device's packed reply, or a parcel of kind "nothing" that says why there is none."""
    try:
        request = unpack(flat, LIMIT)
    except Malformed as error:
        return pack(Parcel("refused", note={"reason": f"the server's parcel is malformed: {error}"}))
    usual = LOCKSTEP_TIMEOUT if request.note.get("lockstep") else TIMEOUT
    seconds = float(timeout) if isinstance(timeout, (int, float)) and timeout > 0 else usual
    try:
        if not isinstance(place, str) or not place:
            raise Undelivered("the SuperNode was not told its device: start it with --node-config 'device=\"PATH\"'")
        return np.frombuffer(exchange(Path(place), flat.tobytes(), seconds), np.uint8)
    except Undelivered as error:
        note = {"reason": str(error), **{k: v for k, v in request.note.items() if k in ("run", "nonce")}}
        return pack(Parcel("nothing", request.round, note))
