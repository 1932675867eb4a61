"""`fedctta keys`, and the list of keys in `fedctta run --help`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fedctta.cli.console import out, print_list
from fedctta.cli.refusal import TakesWords
from fedctta.errors import unknown
from fedctta.keys import ABOUT, ALLOWED, DEFAULTS, KEYS, LIMITS
from fedctta.listing import KINDS, Method, list_broken, list_methods, list_models
from fedctta.registry import expected, type_of


class ListsKeys(TakesWords):
    """A command whose help ends with the keys that it takes."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the usual help, then a line per key."""
        super().format_help(ctx, formatter)
        print_list("keys and their defaults", [(_with(key, DEFAULTS[key]), ABOUT[key], "") for key in KEYS])
        out.print(
            "fedctta keys KEY lists the values of a key; METHOD.PARAMETER=VALUE sets a method's own.", style="dim"
        )


def keys(
    key: Annotated[
        str | None,
        typer.Argument(help="A key, a method, or a parameter like fedctta.temperature; without it, all keys."),
    ] = None,
) -> None:
    """Say what can be set in a run: every key, or one key or method, with its default and the values it takes.

    Example: fedctta keys fedctta.temperature
    """
    if key is None:
        print_list("keys", [(_with(name, DEFAULTS[name]), ABOUT[name], allowed(name)) for name in KEYS])
    elif key in KEYS:
        _print_one(f"{key}: {ABOUT[key]}", DEFAULTS[key], allowed(key))
    else:
        _print_method(key)


def allowed(key: str) -> str:
    """Say which values a key takes.

    >>> allowed("batch"), allowed("clients"), allowed("decay"), allowed("stale")
    ('a whole number from 1 on', 'a whole number from 1 on, or none', 'a number from 0 to 1', 'discount or refuse')
    """
    if key in ALLOWED:
        return ALLOWED[key]
    if key in KINDS:
        return ", ".join(list_methods(key))
    if key == "model":
        return ", ".join(["auto", *list_models(), "or package.module:factory of your own"])
    if key == "dataset":
        from fedctta.data.catalogue import CORRUPTED
        from fedctta.data.dense import DENSE
        from fedctta.data.own import OWN
        from fedctta.data.public_sets import PUBLIC

        return ", ".join([*CORRUPTED, *PUBLIC, *DENSE, *OWN])
    if key == "layout":
        from fedctta.data.mask_layouts import LAYOUTS

        return ", ".join(["auto", *LAYOUTS])
    return expected(KEYS[key], f" {LIMITS[key]}" if key in LIMITS else "")


def _print_method(key: str) -> None:
    name, dot, parameter = key.partition(".")
    found: dict[str, list[tuple[str, Method]]] = {}
    for kind in KINDS:
        for method in list_methods(kind).values():
            found.setdefault(method.name, []).append((kind, method))
    if name not in found:
        if name in (broken := list_broken()):
            raise broken[name]
        raise unknown("method", name, found) if dot else unknown("key or method", name, [*KEYS, *found])
    if dot:
        kind, method = next((one for one in found[name] if parameter in one[1].types), found[name][0])
        hint = type_of(name, parameter, method.types)
        _print_one(
            f"{key}: parameter of {kind}={name}. {method.summary}",
            method.defaults.get(parameter, "there is none; it must be given"),
            expected(hint),
        )
        return
    for kind, method in found[name]:
        out.print(f"{kind}={name}: {method.summary}", soft_wrap=True, markup=False, highlight=False)
        print_list("parameters" if method.types else "no parameters", _parameters(method))


def _parameters(method: Method) -> list[tuple[str, str, str]]:
    return [
        (
            _with(f"{method.name}.{key}", method.defaults[key]) if key in method.defaults else f"{method.name}.{key}",
            expected(hint),
            "",
        )
        for key, hint in method.types.items()
    ]


def _print_one(line: str, default: Any, values: str) -> None:
    for text in (line, f"default: {_word(default)}", f"allowed: {values}"):
        out.print(text, soft_wrap=True, markup=False, highlight=False)


def _with(key: str, default: Any) -> str:
    return f"{key}={_word(default)}"


def _word(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
