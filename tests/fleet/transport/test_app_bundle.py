"""The app is the same every time, and Flower's own check accepts its signature and no other."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("flwr")

import yaml
from flwr.supercore.fab import Fab
from flwr.supernode.start_client_internal import _verify_fab

from fedctta.errors import UserError
from fedctta.fleet.transport.app_bundle import build_bundle, make_signer, read_bundle, sign_bundle
from fedctta.fleet.transport.certificates import make_keys


def test_the_same_app_every_time():
    assert build_bundle() == build_bundle()


def test_nodes_accept_what_the_key_has_signed_and_nothing_else():
    bundle, (private, trusted), (other, _) = build_bundle(), make_signer(), make_signer()
    trust, signature = yaml.safe_load(trusted), json.loads(sign_bundle(bundle, private))
    assert signature["valid_license"]
    assert _verify_fab(Fab("", bundle, signature), trust)
    assert not _verify_fab(Fab("", bundle + b"x", signature), trust)
    assert not _verify_fab(Fab("", bundle, json.loads(sign_bundle(bundle, other))), trust)


def test_the_app_of_a_folder_is_signed_by_its_key(tmp_path):
    make_keys(tmp_path / "keys", [], 1)
    bundle, signature = read_bundle(tmp_path / "keys")
    assert _verify_fab(Fab("", bundle, signature), yaml.safe_load((tmp_path / "keys" / "trusted.yaml").read_text()))
    assert read_bundle(None) == (bundle, {})
    (tmp_path / "keys" / "app.json").unlink()
    with pytest.raises(UserError, match="--renew"):
        read_bundle(tmp_path / "keys")


def test_another_kind_of_key_does_not_sign(tmp_path):
    make_keys(tmp_path / "keys", [], 1)
    with pytest.raises(UserError, match="no Ed25519 key"):
        sign_bundle(b"app", (tmp_path / "keys" / "nodes" / "device-0.key").read_bytes())
