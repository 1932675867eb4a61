"""Flower's SuperLink with a lock: its control API asks for a token, and it starts the fleet's own app only.

The open version of Flower lets everyone who reaches its port start any app, and with it any code on all nodes. It has a
plug for authentication, `ControlAuthnPlugin`, but ships none that asks for anything. This one asks for the token in a
file that only the server's user can read, made anew with every start. An app other than the fleet's is refused even
with the token, and the fleet's is kept with its signature (`app_bundle`), which nodes ask for.

And a ServerApp gets an answer when all of it is here. Flower hands one out as soon as it is announced, and who takes it
waits for the rest: for three minutes if the node was killed, or means no good, and all others wait with it.

Run as `python -m fedctta.fleet.transport.superlink TOKEN KEYS <options of flower-superlink>`; KEYS is - without keys.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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


def hold_parts_back() -> None:
    """Let Flower hand out whole answers only; one that keeps its books in another way is left as it is."""
    with suppress(UserError):
        tables = flower.MessageRes, flower.ObjectPushSessionRoot, flower.ObjectPushSession
        flower.runtime_handlers.pull_messages = whole_only(flower.runtime_handlers.pull_messages, *tables)


def whole_only(pull: Callable[..., Any], answers: Any, roots: Any, uploads: Any) -> Callable[..., Any]:
    """Return what gives a ServerApp the answers it asks for, but for those of which a part is still to come.

    When nothing has come of an upload for long, Flower gives it up: then its announcement is handed out, as a failure.
    """
    from sqlalchemy import select

    coming = (
        select(answers.reply_to_message_id)
        .join(roots, roots.root_object_id == answers.message_id)
        .join(uploads, uploads.session_id == roots.session_id)
    )

    def pull_whole(request: Any, state: Any, task: Any) -> Any:
        with state.session() as session:
            still = (uploads.pending_count > 0) & (uploads.expires_at > datetime.now(UTC))
            parts = set(session.scalars(coming.where(still)))
        wanted = [asked for asked in request.message_ids if asked not in parts]
        return pull(type(request)(message_ids=wanted), state, task)

    return pull_whole


def main(words: list[str]) -> None:
    """Serve until ended."""
    token, keys, *options = words
    start = lock(Path(token).read_text(encoding="ascii").strip(), *read_bundle(None if keys == "-" else Path(keys)))
    hold_parts_back()
    sys.argv = ["flower-superlink", *options]
    start()


if __name__ == "__main__":
    main(sys.argv[1:])
