"""Which runs of a campaign are meant: those whose keys have certain values, or have not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields

from fedctta.errors import UserError, unknown
from fedctta.runs.settings import Experiment

_KEYS = tuple(field.name for field in fields(Experiment) if field.name != "parameters")


def select(experiments: Sequence[Experiment], words: Sequence[str]) -> list[Experiment]:
    """Return the experiments that all words allow: "key=a,b" (one of these values) or "key!=a,b" (none of them).

    A value that no run has is refused, and a word that all runs agree with.
    """
    left = list(experiments)
    for word in words:
        key, values, wanted = _read(word)
        has = {str(getattr(each, key)) for each in experiments}
        for value in values:
            if value not in has:
                raise unknown(f"{key} in --only", value, has)
        if wanted and has <= set(values):
            raise UserError(f"--only {word} has no effect, since every run has it: leave it out")
        left = [each for each in left if (str(getattr(each, key)) in values) == wanted]
    if not left:
        raise UserError(f"--only {' --only '.join(words)} leaves no run: give other values")
    return left


def _read(word: str) -> tuple[str, list[str], bool]:
    """Split a word into its key, its values, and whether they are wanted."""
    found = re.fullmatch(r"([a-z_]+)(!?=)(.+)", word)
    if found is None:
        raise UserError(f"--only {word}: write for example --only batch=10,50 or --only seed!=0")
    key, sign, values = found.groups()
    if key not in _KEYS:
        raise unknown("key in --only", key, _KEYS)
    return key, values.split(","), sign == "="
