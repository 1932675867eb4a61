"""The one kind of failure a user can mend, and how it is worded."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Something the user can put right. The message is one line: what is wrong, and what to do.

    The command line prints it and exits with `code`; from Python it is raised as it is.
    """

    code = 2


class NoRoom(UserError):
    """A disk is full. It has a code of its own (EX_TEMPFAIL): the same command goes on once there is room."""

    code = 75


class NotFinite(UserError):
    """Predictions are NaN or infinite. Who knows the settings adds which of them may be why."""


def reason(error: OSError) -> str:
    """Return why the system refused: its own words, or what the error says where it has none.

    >>> reason(OSError(28, "No space left on device")), reason(OSError("8 requested and 0 written")), reason(OSError())
    ('No space left on device', '8 requested and 0 written', 'OSError')
    """
    return error.strerror or str(error) or type(error).__name__


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for a name that does not exist, offering the nearest ones that do.

    >>> str(unknown("aggregator", "fedctt", ["local", "fedavg", "fedctta"]))
    "unknown aggregator 'fedctt': did you mean fedctta? (all: fedavg, fedctta, local)"
    """
    names = sorted(known)
    if not names:
        return UserError(f"unknown {kind} {name!r}: there is none to choose from")
    near = get_close_matches(name, names, n=3, cutoff=0.6)
    if not near:
        return UserError(f"unknown {kind} {name!r}: use one of {', '.join(names)}")
    return UserError(f"unknown {kind} {name!r}: did you mean {' or '.join(near)}? (all: {', '.join(names)})")


def either(names: Iterable[str]) -> str:
    """Join the names of what there is to choose from.

    >>> either(["none", "bn", "tent"]), either(["bn"])
    ('none, bn or tent', 'bn')
    """
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last
