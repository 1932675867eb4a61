"""Refuse a key=value word that should have been an option."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

from fedctta.errors import UserError


def refuse_options(keys: Iterable[str], function: Callable[..., Any], *options: str) -> None:
    """Refuse keys that the function or the command takes by that name itself."""
    for key in keys:
        if key in options or key in signature(function).parameters:
            raise UserError(f"{key}= is no setting: for an option write --{key}, as --help lists them")
