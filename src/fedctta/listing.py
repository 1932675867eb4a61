"""What methods and models there are, read from their files without running them.

The file of a method imports torch, which takes seconds and hundreds of megabytes, while its name, first line and
parameters stand in the source. They are taken from the syntax tree; the only expressions evaluated are the types and
defaults of parameters and the constants these name. Plugins are loaded, for their source may be anywhere. Where a
program has loaded the methods already, its registries are asked: they also know what it has registered.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from fedctta.errors import UserError
from fedctta.registry import defaults, load_plugins, own_name, parameter_types

KINDS = {
    "adapter": ("fedctta.adapters", "adapters"),
    "aggregator": ("fedctta.aggregators", "aggregators"),
    "stream": ("fedctta.streams", "schedules"),
    "samples": ("fedctta.sampling", "samplers"),
}
"""The key that chooses a method, the package that holds them, and the registry in it."""

_ROOT = Path(__file__).parent


@dataclass(frozen=True)
class Method:
    """What is known of a method without running it; `defaults` has the parameters that have one."""

    name: str
    summary: str
    types: Mapping[str, Any]
    defaults: Mapping[str, Any]
    upper_bound: bool = False


def list_methods(kind: str) -> dict[str, Method]:
    """Return the methods of one of `KINDS` by name."""
    package, registry = KINDS[kind]
    if package in sys.modules:
        classes = getattr(sys.modules[package], registry).classes()
        return {name: describe(cls) for name, cls in classes.items()}
    found = read_package(package)
    for cls in load_plugins(package)[0]:
        found.setdefault(own_name(cls), describe(cls))
    return dict(sorted(found.items()))


def list_broken() -> dict[str, UserError]:
    """Return by name why methods of other distributions cannot be loaded."""
    return {name: why for package, _ in KINDS.values() for name, why in load_plugins(package)[1].items()}


def list_models() -> dict[str, tuple[str, int]]:
    """Return the description and the number of parameters of every model by name."""
    table = _source("fedctta.models").assigned["ARCHITECTURES"]
    assert isinstance(table, ast.Dict)
    found = {}
    for name, made in zip(table.keys, table.values, strict=True):
        assert isinstance(name, ast.Constant)
        assert isinstance(made, ast.Call)
        description, parameters = map(ast.literal_eval, made.args[:2])
        found[str(name.value)] = (description, parameters)
    return found


def describe(cls: type[Any]) -> Method:
    """Describe a method that is loaded."""
    summary = (cls.__doc__ or "").partition("\n")[0]
    return Method(own_name(cls), summary, parameter_types(cls), defaults(cls), bool(getattr(cls, "upper_bound", False)))


def read_package(package: str) -> dict[str, Method]:
    """Describe the methods that the modules of a folder of this package define, from their source."""
    found: dict[str, Method] = {}
    for path in sorted(_file(package).parent.iterdir()):
        if path.stem != "__init__" and (path.suffix == ".py" or (path / "__init__.py").is_file()):
            source = _source(f"{package}.{path.stem}")
            for name in source.classes:
                method = _read(source, name)
                if method is not None:
                    found.setdefault(method.name, method)
    return found


class _Source(dict[str, Any]):
    """The names that one module of this package gives values to, each evaluated when it is first asked for."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self.module = module
        self.classes: dict[str, ast.ClassDef] = {}
        self.assigned: dict[str, ast.expr] = {}
        self.imported: dict[str, tuple[str, str]] = {}
        for node in ast.parse(_file(module).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
            elif isinstance(node, ast.ImportFrom):
                self.imported |= {alias.asname or alias.name: (str(node.module), alias.name) for alias in node.names}
            else:
                self.assigned |= {name: value for name, _, value in _assignments(node) if value is not None}

    def __missing__(self, name: str) -> Any:
        if name in self.assigned:
            value = self.evaluate(self.assigned[name])
        elif name in self.imported:
            module, original = self.imported[name]
            here = module.startswith("fedctta.")
            value = _source(module)[original] if here else getattr(import_module(module), original)
        elif name in self.classes:
            value = getattr(import_module(self.module), name)
        else:
            raise KeyError(name)  # Python looks among its own names next
        self[name] = value
        return value

    def evaluate(self, expression: ast.expr) -> Any:
        return eval(compile(ast.Expression(expression), "<listing>", "eval"), {}, self)


@cache
def _source(module: str) -> _Source:
    return _Source(module)


def _file(module: str) -> Path:
    place = _ROOT.joinpath(*module.split(".")[1:])
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def _assignments(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None, ast.expr | None]]:
    """Yield (name, type, value) of what a statement assigns."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node.annotation, node.value
    elif isinstance(node, ast.Assign):
        yield from ((target.id, None, node.value) for target in node.targets if isinstance(target, ast.Name))


def _read(source: _Source, name: str) -> Method | None:
    """Describe one class, or return nothing for one that has no name of its own and so is no method."""
    node = source.classes[name]
    own = {target: value for each in node.body for target, _, value in _assignments(each)}
    title = own.get("name")
    if title is None:
        return None
    types: dict[str, Any] = {}
    usual: dict[str, Any] = {}
    upper_bound = False
    for place, each in _lineage(source, name):
        is_dataclass = any("dataclass" in ast.unparse(decorator) for decorator in each.decorator_list)
        for target, hint, value in (found for statement in each.body for found in _assignments(statement)):
            if target == "upper_bound" and value is not None:
                upper_bound = place.evaluate(value)
            if hint is None or not is_dataclass:
                continue
            if "ClassVar" in ast.unparse(hint):  # no parameter, or no longer one
                types.pop(target, None)
                usual.pop(target, None)
                continue
            types[target] = place.evaluate(hint)
            if value is not None:
                usual[target] = place.evaluate(value)
    summary = (ast.get_docstring(node, clean=False) or "").partition("\n")[0]
    return Method(source.evaluate(title), summary, types, usual, upper_bound)


def _lineage(source: _Source, name: str) -> Iterator[tuple[_Source, ast.ClassDef]]:
    """Yield a class of this package and those it inherits from, the eldest first."""
    if name in source.imported:
        module, original = source.imported[name]
        if module.startswith("fedctta."):
            yield from _lineage(_source(module), original)
    elif name in source.classes:
        for base in reversed(source.classes[name].bases):
            yield from _lineage(source, ast.unparse(base))
        yield source, source.classes[name]
