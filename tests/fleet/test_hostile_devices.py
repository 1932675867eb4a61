"""Whatever a device says, the server goes on: it takes an upload, or it refuses and counts it. Never an exception.

Everything between Flower's message and the uploads of a round is the real code. A few hundred cases run with the other
tests, ten thousand with the slow ones.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))

from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedctta.fleet.server.device_dialogue import DeviceDialogue
from fedctta.fleet.server.examine import Examiner, form_of
from fedctta.fleet.server.ledger import Ledger, ServerProgress
from fedctta.fleet.server.plan import Plan
from fedctta.fleet.simulation.grid import InProcessGrid
from fedctta.fleet.transport import wire
from fedctta.fleet.transport.flower_messages import Questions

SHARED = {"norm.running_mean": torch.zeros(3), "norm.running_var": torch.ones(3)}
SIGNALS = {"indicator": torch.zeros(5)}
TABLE = json.dumps({name: form_of(tensor) for name, tensor in SHARED.items()})
TERMS = {"weights": "ab", "adapter": "bn", "adapter_parameters": "{}", "version": "0.8.0"}
NODE = 7
FEW, MANY = 150, 10_000


class Server:
    """The server's half of a dialogue with one device, whose next answer is what `say` makes of the request."""

    def __init__(self, folder):
        examiner = Examiner(SHARED, SIGNALS, frozenset({"norm.running_var"}), TERMS, limit=1 << 16)
        plan = Plan(retry=0.0, quarantine=10**9)
        self.post = Questions(InProcessGrid({NODE: self._answer}), ttl=60)
        self.ledger = Ledger(folder, "fuzz")
        self.letters = DeviceDialogue(plan, examiner, self.post, self.ledger, ServerProgress(), {"run": "r"})

    def _answer(self, message):
        request = wire.unpack(message.content.array_records["parcel"]["parcel"].numpy(), 1 << 30)
        return self.say(message, request)

    def hear(self, say, known):
        """Ask the device, as a newcomer or as one that is known; return what became of its answer."""
        letters, self.say = self.letters, say
        letters.hellos.clear()
        letters.roster.names[:], letters.roster.nodes = (["device"], {NODE: 0}) if known else ([], {})
        letters.turn()
        before = sum(letters.roster.refused.values())
        if known:
            letters.ask({NODE}, lambda row, download: {})
        else:
            letters.invite({NODE})
        assert self.post.busy() == {NODE}
        assert letters.listen()
        refused = sum(letters.roster.refused.values()) - before
        if refused:
            last = self.ledger.refusals.read_bytes().splitlines()[-1]
            assert b"cannot be examined" not in last, "a case that nobody thought of"
            assert len(last) < 1000
        taken = len(letters.uploads) + len(letters.hellos)
        assert refused + taken + (NODE in letters.idle) == 1
        return "refused" if refused else "taken" if taken else "idle"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("hostile"))
    yield server
    server.ledger.close()


def flat_reply(message, flat):
    return Message(RecordDict({"parcel": ArrayRecord({"parcel": Array(flat)})}), reply_to=message)


def honest(request):
    """The parcel that an honest device answers."""
    if request.kind == "hello":
        return wire.Parcel("hello", request.round, {"device": "device", **TERMS, "tensors": TABLE})
    arrays = {f"own.{name}": tensor.numpy() for name, tensor in SHARED.items()}
    arrays |= {f"signal.{name}": tensor.numpy() for name, tensor in SIGNALS.items()}
    return wire.Parcel("upload", request.round, {**TERMS, "nonce": request.note["nonce"]}, arrays)


def framed(text, rest=b""):
    return wire.MAGIC + bytes([wire.SCHEMA]) + len(text).to_bytes(4, "big") + text + rest


# -- what a device may say, as functions of the message and the request

numbers = st.one_of(
    st.integers(), st.floats(), st.sampled_from([0, 1, 2**39, 2**40, 2**63, 2**64, 10**400, -1, float("inf"), 1e308])
)
shapes = st.lists(numbers, max_size=10)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=8,
)
nested = st.builds(lambda depth, pair: pair[0] * depth + pair[1] * depth, st.integers(0, 20_000), st.just(("[", "]")))
raw_json = st.one_of(
    json_values.map(json.dumps),
    nested,
    st.integers(0, 20_000).map(lambda depth: '{"a":' * depth),
    st.sampled_from(['{"norm.running_mean": ["float32", [1e999]]}', '{"x": [NaN, [NaN]]}', "1e999", "9" * 5000, ""]),
    st.text(max_size=20),
)


@st.composite
def raw_bytes(draw):
    content = draw(st.one_of(st.binary(max_size=200), st.binary(max_size=100).map(framed)))
    return lambda message, request: flat_reply(message, np.frombuffer(content, np.uint8))


@st.composite
def any_array(draw):
    array = draw(npst.arrays(npst.scalar_dtypes(), npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
    return lambda message, request: flat_reply(message, array)


@st.composite
def changed_bytes(draw):
    """An honest answer with some bytes changed, cut or added."""
    changes = draw(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4))
    cut, more = draw(st.integers(0, 30)), draw(st.binary(max_size=10))

    def say(message, request):
        content = bytearray(wire.pack(honest(request)).tobytes())
        for place, value in changes:
            content[place % len(content)] = value
        return flat_reply(message, np.frombuffer(bytes(content[: len(content) - cut]) + more, np.uint8))

    return say


@st.composite
def strange_header(draw):
    """A well-framed parcel whose header says anything."""
    if draw(st.booleans()):
        text = draw(raw_json)
    else:
        entry = st.tuples(
            st.sampled_from(["own.norm.running_mean", "rows.a", "a", "signal.indicator"]),
            st.sampled_from([*wire.DTYPES, "object", "complex128"]),
            st.one_of(shapes, json_values),
        )
        note = draw(st.dictionaries(st.text(max_size=5), json_values, max_size=3))
        kind, round_ = draw(st.one_of(st.sampled_from(wire.KINDS), json_values)), draw(st.one_of(numbers, st.just(0)))
        header = {"kind": kind, "round": round_, "note": note, "arrays": draw(st.lists(entry, max_size=3))}
        text = json.dumps(header)
    content = framed(text.encode("utf-8", "surrogatepass"), draw(st.binary(max_size=60)))
    return lambda message, request: flat_reply(message, np.frombuffer(content, np.uint8))


@st.composite
def strange_note(draw):
    """An honest answer that says anything in a fact of its note."""
    key = draw(st.sampled_from(["tensors", "device", "adapter", "nonce", "health.alarms", "health.accuracy", "reason"]))
    value = draw(st.one_of(raw_json, st.integers(-(2**62), 2**62), st.floats(allow_nan=False, allow_infinity=False)))
    kind = draw(st.sampled_from(wire.KINDS))

    def say(message, request):
        parcel = honest(request)
        kept = kind if draw_kind else parcel.kind
        text = value if not isinstance(value, str) else value[: 1 << 15].encode("utf-8", "ignore").decode()
        return flat_reply(
            message, wire.pack(wire.Parcel(kept, parcel.round, {**parcel.note, key: text}, parcel.arrays))
        )

    draw_kind = draw(st.booleans())
    return say


@st.composite
def strange_numbers(draw):
    """An honest upload with any numbers in its tensors."""
    mean = draw(npst.arrays(np.float32, 3, elements=st.floats(width=32)))
    spread = draw(npst.arrays(np.float32, 3, elements=st.floats(width=32)))

    def say(message, request):
        parcel = honest(request)
        numbers = {"own.norm.running_mean": mean, "own.norm.running_var": spread} if parcel.arrays else {}
        return flat_reply(
            message, wire.pack(wire.Parcel(parcel.kind, parcel.round, parcel.note, {**parcel.arrays, **numbers}))
        )

    return say


def saved(save, *words):
    file = io.BytesIO()
    save(file, *words)
    return file.getvalue()


@st.composite
def strange_record(draw):
    """A Flower message whose array is not what it says, or that holds none."""
    data = draw(
        st.one_of(
            st.binary(max_size=200),
            st.sampled_from(
                [
                    saved(np.savez, np.zeros(3)),
                    saved(np.savez_compressed, np.zeros(1 << 20, np.uint8)),
                    saved(np.save, np.zeros(3))[:-5],
                    saved(np.save, np.zeros(3)).replace(b"(3,)", b"(9" + b"9" * 12 + b",)"),
                    b"\x93NUMPY\x01\x00\x76\x00" + b"(" * 118,
                    b"PK\x03\x04 not a zip",
                ]
            ),
        )
    )
    shape = draw(st.lists(st.integers(0, 2**40), max_size=3))
    name = draw(st.sampled_from(["parcel", "another"]))
    kind = draw(st.sampled_from(["numpy.ndarray", "torch", ""]))

    def say(message, request):
        record = ArrayRecord({name: Array("uint8", tuple(shape), kind, data)})
        return Message(RecordDict({name: record}), reply_to=message)

    return say


anything = st.one_of(
    raw_bytes(), any_array(), changed_bytes(), strange_header(), strange_note(), strange_numbers(), strange_record()
)


def play(server, cases):
    seen = {"refused": 0, "taken": 0, "idle": 0}

    @settings(
        max_examples=cases, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(say=anything, known=st.booleans())
    def hear(say, known):
        seen[server.hear(say, known)] += 1

    hear()
    assert seen["refused"] > 0.3 * cases
    assert seen["taken"] > 0
    return seen


def test_whatever_a_device_says_is_taken_or_refused_and_counted(server):
    play(server, FEW)


@pytest.mark.slow
def test_ten_thousand_times(server):
    print(play(server, MANY))


def test_an_honest_device_is_taken(server):
    for known in (False, True):
        assert server.hear(lambda message, request: flat_reply(message, wire.pack(honest(request))), known) == "taken"


@pytest.mark.parametrize(
    "table",
    [
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 50_000,
        '{"norm.running_mean": ["float32", [1e999]], "norm.running_var": ["float32", [3]]}',
        '{"norm.running_mean": ["float32", [NaN]], "norm.running_var": ["float32", [3]]}',
        '{"norm.running_mean": ["float32", [3.7]], "norm.running_var": ["float32", [3]]}',
    ],
)
def test_a_hello_that_killed_the_server_is_refused(server, table):
    def say(message, request):
        return flat_reply(message, wire.pack(wire.Parcel("hello", 0, {**honest(request).note, "tensors": table})))

    server.letters.examiner.__dict__["limit"] = 1 << 20
    try:
        assert server.hear(say, known=False) == "refused"
    finally:
        server.letters.examiner.__dict__["limit"] = 1 << 16


@pytest.mark.parametrize("shape", [[0, 2**39, 2**39], [2**39, 0, 2**39, 2**39], [0] + [2**39] * 7])
def test_a_shape_that_killed_the_server_is_refused(server, shape):
    header = {"kind": "upload", "round": 0, "note": {}, "arrays": [["own.norm.running_mean", "float32", shape]]}
    content = np.frombuffer(framed(json.dumps(header).encode()), np.uint8)
    assert server.hear(lambda message, request: flat_reply(message, content), known=True) == "refused"
