"""Flower's SuperLink with a lock: its control API asks for a token, and it starts the fleet's own app only.

The open version of Flower lets everyone who reaches its port start any app, and with it any code on all nodes. It has a
plug for authentication, `ControlAuthnPlugin`, but ships none that asks for anything. This one asks for the token in a
file that only the server's user can read, made anew with every start. An app other than the fleet's is refused even
with the token, and the fleet's is kept with its signature (`app_bundle`), which nodes ask for.

Run as `python -m fedctta.fleet.transport.superlink TOKEN KEYS <options of flower-superlink>`; KEYS is - without keys.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fedctta.errors import UserError
from fedctta.fleet import flower
from fedctta.fleet.flower import AccountInfo, Fab, NoOpControlAuthnPlugin
from fedctta.fleet.transport.app_bundle import read_bundle

Metadata = Sequence[tuple[str, str | bytes]]


class TokenOnly(NoOpControlAuthnPlugin):
    """Lets the holder of one token in, as Flower's only account."""

    def __init__(self, token: str) -> None:
        if len(token) < 32:
            raise UserError("the token of the control API is too short: start the server again")
        self._token = token.encode()

    def validate_tokens_in_metadata(self, metadata: Metadata) -> tuple[bool, AccountInfo | None]:
        """Return the account if the token is right."""
        given = dict(metadata).get(flower.ACCESS_TOKEN_KEY, b"")
        given = given.encode() if isinstance(given, str) else given
        if not secrets.compare_digest(given, self._token):
            return False, None
        found: tuple[bool, AccountInfo | None] = super().validate_tokens_in_metadata(metadata)
        return found

    def refresh_tokens(self, metadata: Metadata) -> tuple[Metadata | None, AccountInfo | None]:
        """Give nobody a token."""
        return None, None


def only(bundle: bytes, signature: dict[str, str]) -> Callable[..., Fab]:
    """Return what makes Flower's record of an app: of this one with its signature, and of no other."""
    ours = hashlib.sha256(bundle).hexdigest()

    def record(hash_str: str, content: bytes, verifications: dict[str, str]) -> Fab:
        if hash_str != ours or content != bundle:
            raise flower.FlowerError(
                flower.ApiErrorCode.INVALID_APP_SPEC, "this SuperLink starts the fleet's own app only"
            )
        return Fab(hash_str, content, signature)

    return record


def lock(token: str, bundle: bytes, signature: dict[str, str]) -> Callable[[], None]:
    """Put the lock into Flower; return what starts its SuperLink."""
    return flower.replace(
        "flower_superlink",
        {"load_control_authn_plugin": lambda: TokenOnly(token), "Fab": only(bundle, signature)},
    )


def main(words: list[str]) -> None:
    """Serve until ended."""
    token, keys, *options = words
    start = lock(Path(token).read_text(encoding="ascii").strip(), *read_bundle(None if keys == "-" else Path(keys)))
    sys.argv = ["flower-superlink", *options]
    start()


if __name__ == "__main__":
    main(sys.argv[1:])
