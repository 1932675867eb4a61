"""The app is the same every time, and our check and Flower's accept its signature and no other."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("flwr")

import yaml
from flwr.supercore.fab import Fab
from flwr.supernode.start_client_internal import _verify_fab

from fedctta.errors import UserError
from fedctta.fleet.transport.app_bundle import (
    build_bundle,
    is_signed,
    make_signer,
    read_bundle,
    read_trusted,
    sign_bundle,
)
from fedctta.fleet.transport.certificates import make_keys


def accepted(bundle, signature, trust):
    """Ask our check and Flower's, which must agree."""
    ours, flowers = is_signed(bundle, signature, trust), _verify_fab(Fab("", bundle, signature), trust)
    assert ours == flowers
    return ours


def test_the_same_app_every_time():
    assert build_bundle() == build_bundle()


def test_nodes_accept_what_the_key_has_signed_and_nothing_else():
    bundle, (private, trusted), (other, _) = build_bundle(), make_signer(), make_signer()
    trust, signature = yaml.safe_load(trusted), json.loads(sign_bundle(bundle, private))
    assert signature["valid_license"]
    assert accepted(bundle, signature, trust)
    assert not accepted(bundle + b"x", signature, trust)
    assert not accepted(bundle, json.loads(sign_bundle(bundle, other)), trust)


def test_the_app_of_a_folder_is_signed_by_its_key(tmp_path):
    make_keys(tmp_path / "keys", [], 1)
    bundle, signature = read_bundle(tmp_path / "keys")
    assert accepted(bundle, signature, yaml.safe_load((tmp_path / "keys" / "trusted.yaml").read_text()))
    assert read_bundle(None) == (bundle, {})
    (tmp_path / "keys" / "app.json").unlink()
    with pytest.raises(UserError, match="--renew"):
        read_bundle(tmp_path / "keys")


def test_another_kind_of_key_does_not_sign(tmp_path):
    make_keys(tmp_path / "keys", [], 1)
    with pytest.raises(UserError, match="no Ed25519 key"):
        sign_bundle(b"app", (tmp_path / "keys" / "nodes" / "device-0.key").read_bytes())


@pytest.mark.parametrize(
    "told",
    ["", "[]", "{}", '{"signature": 3}', '{"signature": "x", "signed_at": 1}', '{"signature": "AA", "signed_at": -1}'],
)
def test_no_server_can_stop_the_check(told):
    _, trusted = make_signer()
    assert not is_signed(b"app", {"fedctta": told}, yaml.safe_load(trusted))


@pytest.mark.parametrize("text", ["", "[]", "fedctta: 3", "fedctta: ssh-rsa AAAA", "{"])
def test_a_file_without_a_key_trusts_nobody(tmp_path, text):
    (tmp_path / "trusted.yaml").write_text(text)
    with pytest.raises(UserError, match="names no Ed25519 key"):
        read_trusted(tmp_path / "trusted.yaml")
