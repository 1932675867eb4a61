"""Keys for a fleet: a certificate authority, the server's certificate, and one key pair per node.

    ca.crt, ca.key                the authority that certifies the server; nodes get ca.crt; store ca.key elsewhere
    server.crt, server.key        for the names and addresses in `hosts`
    nodes/device-0.key, .pub      with which a node proves its identity, and what the server gets to check it
    superexec.secret              what Flower's process starter shows the SuperLink, on the server's machine

All keys are ECDSA on P-384, which Flower asks for. Private files are readable by their owner only; existing
files are never overwritten.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from fedctta.errors import UserError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise UserError(
        "keys need the cryptography package, which comes with Flower: pip install 'fedctta[fleet]'"
    ) from error

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def make_keys(folder: Path, hosts: Sequence[str], nodes: int, days: int = 825) -> list[Path]:
    """Write all files into `folder`, which must be empty or not there; return them.

    The loopback names are always among the server's, because its own parts speak to it there.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: choose another folder; keys are never written over")
    if nodes < 1:
        raise UserError(f"nodes={nodes} must be at least 1")
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
    ]
    return files + [path for k in range(nodes) for path in add_node(folder, f"device-{k}")]


def add_node(folder: Path, name: str) -> list[Path]:
    """Write one more node's key pair."""
    if not (folder / "ca.crt").exists():
        raise UserError(f"{folder} holds no keys yet: make them with `fedctta fleet keys`, without --add")
    if not re.fullmatch(r"[\w.-]{1,100}", name):
        raise UserError(f"node name {name!r} must be of letters, digits, - and _")
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {name}\n".encode()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    nodes = folder / "nodes"
    return [_write(nodes / f"{name}.key", private, 0o600), _write(nodes / f"{name}.pub", public, 0o644)]


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, content: bytes, mode: int) -> Path:
    """Create a file that has its mode from the first byte on; refuse if it exists."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise UserError(f"{path} is there already: choose another name; keys are never written over") from error
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    return path


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


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise UserError(
            f"host {host!r} is neither a name nor an address: write for example fleet.example.org"
        ) from error
