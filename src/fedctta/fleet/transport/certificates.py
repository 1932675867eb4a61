"""Keys for a fleet: a certificate authority, the server's certificate, and one key pair per node.

    ca.crt, ca.key                the authority that certifies the server; nodes get ca.crt; store ca.key elsewhere
    server.crt, server.key        for the names and addresses in `hosts`
    nodes/device-0.key, .pub      with which a node proves its identity, and what the server gets to check it
    superexec.secret              what Flower's process starter shows the SuperLink, on the server's machine
    app.key, app.fab, app.json    the fleet's app, and the key that signs it (`app_bundle`); nodes get trusted.yaml
    revoked/                      public keys that are never let in again

Node keys are ECDSA on P-384, which Flower asks for. Private files are readable by their owner only; existing keys are
never overwritten. A certificate is renewed for the same key, so that nodes that know the old authority know the new.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fedctta.errors import UserError, reason
from fedctta.files import whole
from fedctta.fleet.expiry import days_left, tell_end
from fedctta.fleet.transport.app_bundle import build_bundle, make_signer, sign_bundle

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
        load_pem_private_key,
        load_ssh_private_key,
        load_ssh_public_key,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise UserError(
        "keys need the cryptography package, which comes with Flower: pip install 'fedctta[fleet]'"
    ) from error

SERVER_FILES = ("ca.crt", "server.crt", "server.key", "superexec.secret", "app.fab", "app.json")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
DAYS = 825  # of a certificate


def make_keys(folder: Path, hosts: Sequence[str], nodes: int, days: int = DAYS) -> list[Path]:
    """Write all files into `folder`, which must be empty or not there; return them.

    The loopback names are always among the server's, because its own parts speak to it there.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: choose another folder; keys are never written over")
    if nodes < 1:
        raise UserError(f"nodes={nodes} must be at least 1")
    for host in hosts:
        _check_host(host)
    ca_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca = _certificate("fedctta fleet CA", ca_key, "fedctta fleet CA", ca_key, days, None)
    server = _certificate("fedctta fleet server", server_key, "fedctta fleet CA", ca_key, days, [*hosts, *LOOPBACK])
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    (folder / "nodes").mkdir(mode=0o700)
    files = [
        _write(folder / "ca.crt", ca.public_bytes(Encoding.PEM), 0o644),
        _write(folder / "ca.key", _private(ca_key), 0o600),
        _write(folder / "server.crt", server.public_bytes(Encoding.PEM), 0o644),
        _write(folder / "server.key", _private(server_key), 0o600),
        _write(folder / "superexec.secret", secrets.token_bytes(48), 0o600),
        *_sign_app(folder),
    ]
    return files + [path for k in range(nodes) for path in add_node(folder, f"device-{k}")]


def add_node(folder: Path, name: str) -> list[Path]:
    """Write one more node's key pair."""
    _require_keys(folder)
    check_name(name)
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {name}\n".encode()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    files = {folder / "nodes" / f"{name}.key": (private, 0o600), folder / "nodes" / f"{name}.pub": (public, 0o644)}
    for path in files:  # neither is written if one of them cannot be
        if path.exists():
            raise _is_there(path)
    return [_write(path, *content) for path, content in files.items()]


def check_name(name: str) -> None:
    """Refuse a node's name that is no name of a file."""
    if not re.fullmatch(r"[\w.-]{1,100}", name):
        raise UserError(f"node name {name!r} must be of letters, digits, - and _")


def revoke_node(folder: Path, name: str) -> Path:
    """Let a node's key in no longer: move its public half to `revoked`, and delete the private one if it is here."""
    public = folder / "nodes" / f"{name}.pub"
    if not public.exists():
        _require_keys(folder)
        known = ", ".join(sorted(path.stem for path in (folder / "nodes").glob("*.pub"))) or "none"
        raise UserError(f"{folder} has no key of {name!r}: its nodes are {known}")
    place = folder / "revoked" / f"{name}-{fingerprint(read_public_key(public))}.pub"
    place.parent.mkdir(mode=0o700, exist_ok=True)
    public.rename(place)
    public.with_suffix(".key").unlink(missing_ok=True)
    return place


def renew(folder: Path, days: int = DAYS) -> list[Path]:
    """Write both certificates anew, for the same keys and hosts, and sign the app; return what was written."""
    _require_keys(folder)
    for file in ("ca.key", "server.key", "server.crt"):
        if not (folder / file).exists():
            raise UserError(
                f"{folder} has no {file}, without which nothing can be renewed: bring it there for a moment"
            )
    ca_key, server_key = (_load_private(folder / f"{name}.key") for name in ("ca", "server"))
    server = _load_certificate(folder / "server.crt")
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [str(name.value) for name in names]
    certificates = {
        "ca.crt": _certificate("fedctta fleet CA", ca_key, "fedctta fleet CA", ca_key, days, None),
        "server.crt": _certificate("fedctta fleet server", server_key, "fedctta fleet CA", ca_key, days, hosts),
    }
    for file, certificate in certificates.items():
        with whole(folder / file) as part:
            part.write_bytes(certificate.public_bytes(Encoding.PEM))
    return [*(folder / file for file in certificates), *_sign_app(folder)]


def check_server_keys(folder: Path) -> None:
    """Refuse a folder that lacks what a server needs, or whose certificate is of another key or authority."""
    missing = [name for name in SERVER_FILES if not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"{folder} lacks {', '.join(missing)}: copy it from where `fedctta fleet keys` made it; --renew there makes"
            " app.fab and app.json anew"
        )
    server, authority = (_load_certificate(folder / name) for name in ("server.crt", "ca.crt"))
    wrong = f"{folder / 'server.crt'} does not fit"
    if server.public_key() != _load_private(folder / "server.key").public_key():
        raise UserError(f"{wrong} server.key beside it: copy both from one folder of keys")
    try:
        server.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise UserError(f"{wrong} ca.crt beside it: copy both from one folder of keys") from error


def remind(certificate: Path) -> str | None:
    """Return what to say of a certificate that ends soon; refuse one that has ended."""
    until = read_end(certificate)
    line = tell_end(certificate, until)
    if line and days_left(until) < 0:
        raise UserError(line)
    return line


def read_end(certificate: Path) -> datetime.datetime:
    """Return when a certificate ends."""
    return _load_certificate(certificate).not_valid_after_utc


def read_public_key(path: Path) -> bytes:
    """Return a node's public key as Flower compares it."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} holds no public key: copy it again") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"{path} is no key on an elliptic curve, which Flower asks for: use `fedctta fleet keys --add`")
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def read_node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a node's private key."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}; copy it from the folder of keys") from error
    except ValueError as error:
        raise UserError(f"{path} is no private key: use the .key that `fedctta fleet keys` made") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} is no node's key: use the one that `fedctta fleet keys` made")
    return key


def fingerprint(key: bytes) -> str:
    """Return a short name of a public key."""
    return hashlib.sha256(key).hexdigest()[:16]


def _sign_app(folder: Path) -> list[Path]:
    """Write the app and its signature; and the key that signs it, where there is none yet."""
    key, made = folder / "app.key", []
    if not key.exists():
        private, trusted = make_signer()
        with whole(folder / "trusted.yaml") as part:
            part.write_bytes(trusted)
        made = [_write(key, private, 0o600), folder / "trusted.yaml"]
    bundle = build_bundle()
    for file, content in (("app.fab", bundle), ("app.json", sign_bundle(bundle, key.read_bytes()).encode())):
        with whole(folder / file) as part:
            part.write_bytes(content)
        made.append(folder / file)
    return made


def _require_keys(folder: Path) -> None:
    """Refuse a folder that is not there, or not one of keys."""
    if not (folder / "ca.crt").exists():
        what = "holds no keys yet" if folder.is_dir() else "is not there"
        raise UserError(
            f"{folder} {what}: name the folder of keys, or make one with `fedctta fleet keys --out {folder}`"
        )


def _load_private(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}; copy it from the folder of keys") from error
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} is no key on an elliptic curve: use the one that `fedctta fleet keys` made")
    return key


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}; copy it from the folder of keys") from error
    except ValueError as error:
        raise UserError(f"{path} cannot be read as a certificate: copy it from the folder of keys") from error


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, content: bytes, mode: int) -> Path:
    """Create a file that has its mode from the first byte on; refuse if it exists."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise _is_there(path) from error
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    return path


def _is_there(path: Path) -> UserError:
    return UserError(f"{path} is there already: choose another name; keys are never written over")


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    days: int,
    hosts: Sequence[str] | None,
) -> x509.Certificate:
    """Return a certificate for a server at these hosts; for an authority, without any."""
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=hosts is None, path_length=0 if hosts is None else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .add_extension(_usage(authority=hosts is None), critical=True)
    )
    if hosts is not None:
        names = [_host(host) for host in dict.fromkeys(hosts)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(issuer_key, hashes.SHA384())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _check_host(host: str) -> None:
    """Refuse what is neither an address nor a name that a certificate may have."""
    label = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return
    if len(host) > 253 or not re.fullmatch(rf"(\*\.)?{label}(\.{label})*", host):
        raise UserError(
            f"host {host!r} is neither a name nor an address: write for example fleet.example.org, without a port"
        )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    return x509.DNSName(host)
