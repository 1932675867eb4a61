"""Whose request it is, told by its head alone: Flower's nodes sign the time of every request with their key.

    flwr-public-key: base64 of the key (PEM)    flwr-timestamp: ISO 8601    flwr-signature: base64 of ECDSA(timestamp)

A key is known for as long as its `.pub` file lies in the folder: one that is removed is refused a second later.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

KEY, TIME, SIGNATURE = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"
WINDOW = 305.0  # seconds by which the two clocks may differ; Flower's own
LOOK = 1.0  # seconds between two looks into the folder


class NodeSignatures:
    """Knows the public keys in a folder."""

    def __init__(self, folder: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._folder, self._now = folder, now
        self._known: dict[bytes, tuple[str, ec.EllipticCurvePublicKey]] = {}
        self._files: dict[str, tuple[int, int]] = {}
        self._next = 0.0

    def signer(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Return the name of the node that signed the request; None if no known node did."""
        self._look()
        try:
            name, key = self._known[b64decode(headers[KEY], validate=True)]
            signature, moment = b64decode(headers[SIGNATURE], validate=True), headers[TIME]
            age = (self._now() - datetime.fromisoformat(moment.decode("ascii"))).total_seconds()
            key.verify(signature, moment, ec.ECDSA(hashes.SHA256()))
        except (KeyError, ValueError, TypeError, OverflowError, InvalidSignature):
            return None
        return name if abs(age) < WINDOW else None

    def _look(self) -> None:
        if monotonic() < self._next:
            return
        self._next = monotonic() + LOOK
        files = {}
        for path in sorted(self._folder.glob("*.pub")):
            with suppress(OSError):
                about = path.stat()
                files[str(path)] = (about.st_mtime_ns, about.st_size)
        if files != self._files:
            self._files = files
            self._known = {}
            for place in files:
                with suppress(OSError, ValueError, UnsupportedAlgorithm):  # half-written, or something else
                    key = load_ssh_public_key(Path(place).read_bytes())
                    if isinstance(key, ec.EllipticCurvePublicKey):
                        pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
                        self._known[pem] = (Path(place).stem, key)
