"""The one Flower app of a fleet, and the signature that nodes ask for.

    app.key         the Ed25519 key that signs; nodes answer to what it has signed: store it with ca.key
    app.fab         the app as Flower packs it: it names two objects of this package and has no code of its own
    app.json        its signature, which the SuperLink sends to nodes along with it
    trusted.yaml    what a node believes: it answers only to apps that the key in this file has signed

Flower's open SuperLink keeps signatures only of apps that it fetched from Flower's own hub, and so could not run a
signed app of ours; `superlink` adds this one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fedctta.errors import UserError
from fedctta.fleet import flower

SIGNER = "fedctta"
FILES = ("app.key", "app.fab", "app.json", "trusted.yaml")

APP = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedctta-fleet"
version = "1.0.0"
description = "Federated continual test-time adaptation on a fleet of devices"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedctta"

[tool.flwr.app.components]
serverapp = "fedctta.fleet.server.server_app:app"
clientapp = "fedctta.fleet.transport.client_app:app"

[tool.flwr.app.config]
plan = ""
"""


def build_bundle() -> bytes:
    """Return the app as Flower packs it: the same bytes every time."""
    bundle: bytes = flower.build_fab_from_files({"pyproject.toml": APP.encode()})[0]
    return bundle


def sign_bundle(bundle: bytes, private: bytes) -> str:
    """Return the signature of a packed app as Flower reads it; `private` is an Ed25519 key in OpenSSH's form.

    What is signed is the time, in 8 bytes, and the SHA-256 of the app.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    key = load_ssh_private_key(private, None)
    if not isinstance(key, Ed25519PrivateKey):
        raise UserError("app.key is no Ed25519 key: use the one that `fedctta fleet keys` made")
    now = int(time.time())
    signature = key.sign(now.to_bytes(8, "big") + hashlib.sha256(bundle).digest())
    told = {"signed_at": now, "signature": base64.urlsafe_b64encode(signature).decode().rstrip("=")}
    return json.dumps({SIGNER: json.dumps(told), "valid_license": "Valid"}) + "\n"


def is_signed(bundle: bytes, signatures: Mapping[str, str], trusted: Mapping[str, str]) -> bool:
    """Whether a trusted key has signed a packed app; `trusted` holds Ed25519 keys in OpenSSH's form, by name."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    for name in trusted.keys() & signatures.keys():
        with suppress(ValueError, KeyError, TypeError, OverflowError, InvalidSignature):  # whatever a server sends
            told = json.loads(signatures[name])
            signature = base64.urlsafe_b64decode(told["signature"] + "=" * (-len(told["signature"]) % 4))
            key = load_ssh_public_key(trusted[name].encode())
            assert isinstance(key, Ed25519PublicKey)  # `read_trusted` has looked
            key.verify(signature, int(told["signed_at"]).to_bytes(8, "big") + hashlib.sha256(bundle).digest())
            return True
    return False


def read_trusted(path: Path) -> dict[str, str]:
    """Return the keys of a trusted.yaml."""
    import yaml
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        trusted = dict(yaml.safe_load(path.read_text(encoding="utf-8")))
        if trusted and all(isinstance(load_ssh_public_key(key.encode()), Ed25519PublicKey) for key in trusted.values()):
            return trusted
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError, UnsupportedAlgorithm):
        pass
    raise UserError(f"{path} names no Ed25519 key: copy it from the folder of keys that the server has")


def make_signer() -> tuple[bytes, bytes]:
    """Return a new private key, and the text of trusted.yaml for its public half."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, f"{SIGNER}: '{public}'\n".encode()


def read_bundle(keys: Path | None) -> tuple[bytes, dict[str, str]]:
    """Return the app of a folder of keys and its signature; without keys, the app unsigned."""
    if keys is None:
        return build_bundle(), {}
    try:
        return (keys / "app.fab").read_bytes(), dict(json.loads((keys / "app.json").read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{keys} has no signed app: make it with `fedctta fleet keys --out {keys} --renew`, and give every node"
            " the new trusted.yaml"
        ) from error
