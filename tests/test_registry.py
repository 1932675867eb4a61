"""Methods are found by name, and their parameters read from text."""

from __future__ import annotations

import doctest
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, ClassVar, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedctta import registry
from fedctta.adapters import adapters
from fedctta.aggregators import aggregators
from fedctta.errors import UserError
from fedctta.registry import (
    MayBeInfinite,
    Registry,
    defaults,
    expected,
    parameter_types,
    parameters_of,
    read,
    read_names,
)
from fedctta.sampling import samplers
from fedctta.streams import schedules


@dataclass(frozen=True)
class Sample:
    """A method."""

    name: ClassVar[str] = "sample"
    rate: float = 0.5
    steps: int | None = None
    mode: Literal["fast", "slow"] = "fast"
    loud: bool = False


@dataclass(frozen=True)
class Plain:
    """A method without parameters."""

    name: ClassVar[str] = "plain"


@pytest.fixture
def methods(tmp_path, monkeypatch):
    """Give a registry over a package of one module that defines `found` and imports `local`."""
    (tmp_path / "a_package").mkdir()
    (tmp_path / "a_package" / "__init__.py").write_text("")
    (tmp_path / "a_package" / "module.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedctta.aggregators.local import Local\n"
        "class Helper: pass\n"
        "@dataclass(frozen=True)\n"
        "class Found:\n    name = 'found'\n    size: int = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("a_package", "a_package.module"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return Registry[Any]("method", "a_package")


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(registry) == (0, 5)


def test_methods_of_this_package_are_found():
    assert {"bn", "grad", "none"} <= set(adapters.classes())
    assert {"local", "fedavg", "fedctta", "oracle"} <= set(aggregators.classes())
    assert {"iid", "niid", "case-fedctta", "case-fedtsa", "custom"} <= set(schedules.classes())


@pytest.mark.parametrize("known", [adapters, aggregators, schedules])
def test_every_method_has_a_line_about_it_and_runs_without_parameters(known):
    for name, cls in known.classes().items():
        assert (cls.__doc__ or "").splitlines()[0].endswith("."), name
        assert known.create(name).name == name
        assert set(defaults(cls)) == set(parameter_types(cls)), name


def test_a_package_offers_what_its_modules_define_and_not_what_they_import(methods):
    assert list(methods.classes()) == ["found"]


def test_installed_plugins_are_found(methods, monkeypatch):
    class Point:
        @staticmethod
        def load():
            return Sample

    groups = []
    monkeypatch.setattr(registry, "entry_points", lambda group: groups.append(group) or [Point])
    assert methods.create("sample") == Sample()
    assert groups == ["a_package"]


def test_a_plugin_that_cannot_be_loaded_is_told_to_who_asks_for_it(methods, monkeypatch):
    points = [
        EntryPoint(name, value, "a_package")
        for name, value in (
            ("half", "half_missing:Nope"),
            ("bare", "types:SimpleNamespace"),
            ("sample", "a_package:no"),
        )
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert list(methods.classes()) == ["found"]
    with pytest.raises(
        UserError, match=r"entry point half = half_missing:Nope cannot be loaded \(ModuleNotFoundError: .*"
    ):
        methods.create("half")
    with pytest.raises(UserError, match=r"entry point bare = .* cannot be loaded \(UserError: .* no name"):
        methods.find("bare")
    with pytest.raises(UserError, match="unknown method 'other'"):
        methods.find("other")


def sample(methods, label):
    @dataclass(frozen=True)
    class Mine:
        name: ClassVar[str] = label

    return methods.register(Mine)


def test_a_class_of_the_users_may_be_defined_again_but_not_hide_one_of_the_packages(methods):
    first, again = sample(methods, "mine"), sample(methods, "mine")
    assert methods.classes()["mine"] is again is not first
    with pytest.raises(UserError, match="'found' is one of the package's own"):
        sample(methods, "found")


def test_a_class_must_bring_its_own_name(methods):
    class Child(Sample):
        pass

    with pytest.raises(UserError, match="Child has no name of its own: add"):
        methods.register(Child)


def test_a_title_is_the_methods_own_or_its_name(methods):
    class Titled(Plain):
        name: ClassVar[str] = "titled"
        title: ClassVar[str] = "A Title"

    class Heir(Titled):
        name: ClassVar[str] = "heir"

    methods.register(Titled)
    methods.register(Heir)
    assert [methods.title(name) for name in ("titled", "heir", "elsewhere")] == ["A Title", "heir", "elsewhere"]


def test_the_usual_methods_are_those_that_need_no_parameter(methods):
    @dataclass(frozen=True)
    class Demanding:
        name: ClassVar[str] = "demanding"
        size: int

    methods.register(Sample)
    methods.register(Demanding)
    assert methods.usual() == {"sample": Sample(), "found": methods.create("found")}


def test_methods_are_made_with_parameters_from_text(methods):
    methods.register(Sample)
    made = methods.create("sample", {"rate": "2", "steps": "none", "mode": "slow", "loud": "yes"})
    assert made == Sample(2.0, None, "slow", True)
    assert parameters_of(made) == {"rate": 2.0, "steps": None, "mode": "slow", "loud": True}
    assert defaults(Sample) == {"rate": 0.5, "steps": None, "mode": "fast", "loud": False}


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("sampel", {}, "unknown method 'sampel': did you mean sample"),
        ("sample", {"rat": 1}, "unknown parameter of sample 'rat': did you mean rate"),
        ("plain", {"rate": 1}, "plain has no parameters"),
        ("sample", {"rate": "fast"}, "sample.rate=fast is not a number: write for example sample.rate=0.5"),
    ],
)
def test_what_does_not_exist_or_cannot_be_read_is_told(methods, name, parameters, message):
    methods.register(Sample)
    methods.register(Plain)
    with pytest.raises(UserError, match=message):
        methods.create(name, parameters)


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        ("10", int, 10),
        (" 7 ", int, 7),
        ("1e-3", float, 0.001),
        (3, float, 3.0),
        ("inf", MayBeInfinite, float("inf")),
        ("2", MayBeInfinite, 2.0),
        ("no", bool, False),
        ("True", bool, True),
        (True, bool, True),
        ("0", bool, False),
        ("text", str, "text"),
        ("none", int | None, None),
        (None, Optional[int], None),  # noqa: UP045  what plugins may write
        ("5", Optional[int], 5),  # noqa: UP045
        ("none", str | None, None),
        ("slow", Literal["fast", "slow"], "slow"),
        ((1, 2), tuple, (1, 2)),
    ],
)
def test_text_is_read_as_the_type_asked_for(value, hint, expected):
    found = read(value, hint, "key")
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint", "message"),
    [
        ("1.5", int, "key=1.5 is not a whole number: write for example key=10"),
        (1.5, int, "key=1.5 is not a whole number"),
        (True, int, "key=True is not a whole number"),
        ("x", int | None, "key=x is not a whole number"),
        ("nan", float, "key=nan is not a number"),
        ("none", float, "key=none is not a number"),
        ("maybe", bool, "key=maybe is not true or false: write for example key=true"),
        ("medium", Literal["fast", "slow"], "unknown value for key 'medium': use one of fast, slow"),
    ],
)
def test_text_that_cannot_be_read_is_told_with_an_example(value, hint, message):
    with pytest.raises(UserError, match=message):
        read(value, hint, "key")


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False, width=32), st.booleans()))
def test_a_value_survives_being_written_and_read(value):
    assert read(str(value), type(value), "key") == value
    assert read(value, type(value), "key") == value


def test_a_name_that_is_joined_twice_is_refused():
    assert read_names("fog + snow", "domains") == ("fog", "snow")
    with pytest.raises(UserError, match="domains names fog twice: name it once"):
        read_names("fog+snow+fog", "domains")


NUMBERS = [
    (methods, name, key, hint)
    for methods in (adapters, aggregators, schedules, samplers)
    for name, cls in methods.classes().items()
    for key, hint in parameter_types(cls).items()
    if expected(hint).startswith("a number")
]


def test_infinity_is_refused_by_every_method_that_has_no_meaning_for_it():
    allowed = [f"{name}.{key}" for _, name, key, hint in NUMBERS if expected(hint).endswith("inf")]
    assert allowed == ["dirichlet.delta"]
    assert len(NUMBERS) > 60
    for methods, name, key, _ in NUMBERS:
        for value in ("inf", "-inf", float("inf"), "1e300") if f"{name}.{key}" not in allowed else ("-inf",):
            with pytest.raises(UserError, match=rf"{name}.{key}=(-?inf|1e300) must be (finite|above 0)"):
                methods.create(name, {key: value})


def test_a_number_has_a_range_wherever_one_is_refused():
    """So that `fedctta keys` tells it."""
    for methods in (adapters, aggregators, schedules, samplers):
        for name, cls in methods.classes().items():
            for key, hint in parameter_types(cls).items():
                if expected(hint) in ("a number", "a whole number", "a number, or none", "a whole number, or none"):
                    assert methods.create(name, {key: -1})
                elif " number " in expected(hint):
                    with pytest.raises(UserError, match=rf"^{name}\.{key}=-1(\.0)? must (be|lie|not be) "):
                        methods.create(name, {key: -1})


@pytest.mark.parametrize("value", ["inf", "-inf", float("inf"), 1e999])
def test_infinity_is_no_number_where_it_means_nothing(value):
    with pytest.raises(UserError, match=r"rate=-?inf must be finite .*: write for example rate=0.5"):
        read(value, float, "rate")
