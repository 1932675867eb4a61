"""Refuse a key=value word that should have been an option, and an option that should have been a word."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

from typer.core import TyperCommand

from fedctta.errors import UserError
from fedctta.keys import KEYS


class TakesWords(TyperCommand):
    """A command that takes key=value words, and says so where a key comes as an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; refuse `--seed 3`, which is written seed=3."""
        known = {option for each in self.get_params(ctx) for option in (*each.opts, *each.secondary_opts)}
        for option in (arg.partition("=")[0] for arg in args if arg.startswith("--")):
            key = option.removeprefix("--").replace("-", "_")
            if option not in known and (key in KEYS or "." in key):
                raise UserError(f"{option} is no option: keys are words, write {key}=VALUE")
        return super().parse_args(ctx, args)


def refuse_options(keys: Iterable[str], function: Callable[..., Any], *options: str) -> None:
    """Refuse keys that the function or the command takes by that name itself."""
    for key in keys:
        if key in options or key in signature(function).parameters:
            raise UserError(f"{key}= is no setting: for an option write --{key}, as --help lists them")
