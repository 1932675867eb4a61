"""Methods by name: found in a folder of this package, in installed plugins, or registered by hand."""

from __future__ import annotations

import importlib
import math
import pkgutil
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from fedctta.errors import UserError, unknown
from fedctta.ranges import Range

T = TypeVar("T")

LARGEST = 3.4e38
"""Beyond it numbers are infinite in float32, in which methods compute."""

_INFINITE = "may be infinite"
MayBeInfinite = Annotated[float, _INFINITE]
"""The type of a parameter for which infinity means something; every other number must be finite."""


class Registry(Generic[T]):
    """All methods of one kind.

    A method is a frozen dataclass with a class attribute `name`; its fields are its parameters, its docstring's first
    line describes it, and tables show its `title`. Whatever module of `package` defines one is found, and so is every
    entry point of the group named like the package (`fedctta.adapters`), which is how another distribution adds
    methods. One that cannot be loaded is an error only for who asks for it.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._classes: dict[str, type[T]] = {}
        self._searched = False
        self._broken: dict[str, UserError] = {}

    def register(self, cls: type[T]) -> type[T]:
        """Add one class; usable as a decorator. It may replace an earlier one of the user's, not one of the package."""
        name = own_name(cls)
        if not is_dataclass(cls):
            raise UserError(f"{cls.__qualname__} is no dataclass: write @dataclass(frozen=True) above it")
        known = self.classes().get(name)
        if known not in (None, cls) and known.__module__.startswith(f"{self.package}."):
            raise UserError(f"{self.kind} {name!r} is one of the package's own: give {cls.__qualname__} another name")
        self._classes[name] = cls
        return cls

    def classes(self) -> Mapping[str, type[T]]:
        """Return every known class by name."""
        if not self._searched:
            self._searched = True
            for cls in self._discover():
                self._classes.setdefault(own_name(cls), cls)
        return dict(sorted(self._classes.items()))

    def usual(self) -> dict[str, T]:
        """Return every method with its default parameters, apart from those that cannot do without a given one."""
        known = self.classes().items()
        return {name: cls() for name, cls in known if defaults(cls).keys() == parameter_types(cls).keys()}

    def title(self, name: str) -> str:
        """Return what tables call a method; one that is not known here, as in another's record, goes by its name."""
        cls = self.classes().get(name)
        return name if cls is None else own_title(cls)

    def _discover(self) -> Iterator[type[T]]:
        package = importlib.import_module(self.package)
        for info in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{self.package}.{info.name}")
            for value in vars(module).values():
                if isinstance(value, type) and value.__module__ == module.__name__ and "name" in vars(value):
                    yield value
        plugins, self._broken = load_plugins(self.package)
        yield from plugins

    def find(self, name: str) -> type[T]:
        """Return the class of this name, or say that there is none, or why it cannot be loaded."""
        known = self.classes()
        if name not in known:
            raise self._broken.get(name) or unknown(self.kind, name, known)
        return known[name]

    def create(self, name: str, parameters: Mapping[str, Any] | None = None) -> T:
        """Make a method from its name and parameters; text values are read as the field's type."""
        cls = self.find(name)
        hints = parameter_types(cls)
        values = {}
        for key, value in (parameters or {}).items():
            values[key] = read(value, type_of(name, key, hints), f"{name}.{key}")
        for field in fields(cls):  # type: ignore[arg-type]
            if field.init and field.default is MISSING and field.name not in values:
                raise UserError(f"{name} needs {name}.{field.name}: add {name}.{field.name}=VALUE")
        return cls(**values)


def load_plugins(group: str) -> tuple[list[type[Any]], dict[str, UserError]]:
    """Return the methods that other distributions add to a group, and by entry point why others cannot be loaded."""
    found, broken = [], {}
    for point in entry_points(group=group):
        try:
            cls = point.load()
            own_name(cls), parameter_types(cls)
        except Exception as error:  # whatever their module raises
            whose = f" of {point.dist.name}" if point.dist else ""
            why = " ".join(f"{type(error).__name__}: {error}".split())
            told = f"entry point {point.name} = {point.value}{whose} cannot be loaded ({why}): mend or uninstall it"
            broken[point.name] = UserError(told)
        else:
            found.append(cls)
    return found, broken


def import_object(module: str, name: str) -> Any:
    """Import what a module, also one in the current folder, calls `name`."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    return getattr(importlib.import_module(module), name)


def own_name(cls: type[Any]) -> str:
    """Return a method's name; one that is only inherited would hide the method it comes from."""
    name = vars(cls).get("name")
    if not isinstance(name, str):
        raise UserError(f'{cls.__qualname__} has no name of its own: add `name: ClassVar[str] = "..."` to the class')
    return name


def own_title(cls: type[Any]) -> str:
    """Return what tables call a method: its title, or its name; one that is only inherited is another method's."""
    return str(vars(cls).get("title", own_name(cls)))


def parameter_types(cls: type[Any]) -> dict[str, Any]:
    """Return the type of every parameter (dataclass field) of a method."""
    key: Any = cls  # mypy takes classes for unhashable
    return dict(_read_types(key))


@cache  # reading types takes longer than all else that makes an experiment, and there may be thousands of these
def _read_types(cls: Any) -> Mapping[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls) if field.init}


def type_of(method: str, parameter: str, types: Mapping[str, Any]) -> Any:
    """Return the type of one of a method's parameters, given those of all, or say that there is no such parameter."""
    if parameter in types:
        return types[parameter]
    raise unknown(f"parameter of {method}", parameter, types) if types else UserError(f"{method} has no parameters")


def parameters_of(method: Any) -> dict[str, Any]:
    """Return a method's parameters and their values."""
    return {field.name: getattr(method, field.name) for field in fields(method) if field.init}


def defaults(cls: type[Any]) -> dict[str, Any]:
    """Return the default of every parameter that has one."""
    return {field.name: field.default for field in fields(cls) if field.default is not MISSING}


def check_ranges(method: Any) -> None:
    """Refuse parameters of a method outside the ranges that their types tell."""
    for key, hint in parameter_types(type(method)).items():
        value = getattr(method, key)
        for limits in _notes_of(_some(hint)):
            if isinstance(limits, Range) and value is not None:
                limits.require(value, f"{method.name}.{key}")


def _some(hint: Any) -> Any:
    """Return the type of what may also be none."""
    if get_origin(hint) in (typing.Union, types.UnionType):
        return next(option for option in get_args(hint) if option is not type(None))
    return hint


def _notes_of(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


_WANTED = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def expected(hint: Any, limits: str = "") -> str:
    """Say what `read` takes for a type; `limits` is said of the number.

    >>> expected(int | None), expected(Literal["fast", "slow"]), expected(float, " from 0 on"), expected(MayBeInfinite)
    ('a whole number, or none', 'fast or slow', 'a number from 0 on', 'a number, or inf')
    """
    if _some(hint) is not hint:
        return f"{expected(_some(hint), limits)}, or none"
    if notes := _notes_of(hint):
        told = "".join(f" {note}" for note in notes if isinstance(note, Range))
        return expected(get_args(hint)[0], told or limits) + (", or inf" if _INFINITE in notes else "")
    if get_origin(hint) is Literal:
        *others, last = get_args(hint)
        return f"{', '.join(others)} or {last}" if others else last
    return _WANTED.get(hint, str(hint)) + limits


def read(value: Any, hint: Any, key: str) -> Any:
    """Turn text (or a TOML value) into the type `hint`, or say what was expected.

    >>> read("0.5", float, "fedctta.temperature")
    0.5
    >>> read("yes", bool, "fedctta.squash")
    True
    >>> read("inf", MayBeInfinite, "dirichlet.delta")
    inf
    """
    if _some(hint) is not hint:
        if value in (None, "none", "None"):
            return None
        hint = _some(hint)
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if str(value) not in choices:
            raise unknown(f"value for {key}", str(value), choices)
        return str(value)
    text = str(value).strip()
    infinite = _INFINITE in _notes_of(hint)
    hint = get_args(hint)[0] if _notes_of(hint) else hint
    try:
        if hint is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        if hint is float and math.isnan(float(text)):
            raise ValueError
        if hint is float and abs(float(text)) > LARGEST and not infinite:
            raise UserError(f"{key}={text} must be finite (up to 3.4e38): write for example {key}=0.5")
        if hint in (int, float, str):
            return hint(text)
    except (KeyError, ValueError):
        pass
    else:
        return value
    raise UserError(
        f"{key}={text} is not {_WANTED[hint]}: write for example {key}={ {bool: 'true', int: 10, float: 0.5}[hint] }"
    )


def read_names(text: str, key: str) -> tuple[str, ...]:
    """Split names joined by "+", each of which may be there once.

    >>> read_names("fog+snow", "domains")
    ('fog', 'snow')
    """
    names = tuple(name.strip() for name in text.split("+"))
    refuse_twice(names, key)
    return names


def refuse_twice(names: Iterable[str], key: str) -> None:
    """Refuse a name that is there twice: it would count double, or hide another."""
    seen = set()
    for name in names:
        if name in seen:
            raise UserError(f"{key} names {name} twice: name it once")
        seen.add(name)
