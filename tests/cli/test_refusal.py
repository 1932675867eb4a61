"""A word that should have been an option is refused."""

from __future__ import annotations

import pytest

from fedctta.cli.refusal import refuse_options
from fedctta.errors import UserError


def play(name, *, seeds=1, **values):
    """What a command calls."""


def test_settings_pass():
    refuse_options(["clients", "slots"], play, "device")


@pytest.mark.parametrize("key", ["seeds", "name", "device"])
def test_options_and_arguments_are_told(key):
    with pytest.raises(UserError, match=f"{key}= is no setting: for an option write --{key}"):
        refuse_options(["clients", key], play, "device")
