"""What tables and figures know of a method stands in its class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest

from fedctta.adapters import Adapter, adapters
from fedctta.adapters.none import NoAdaptation
from fedctta.aggregators import Aggregator, aggregators
from fedctta.aggregators.fedavg import FedAvg
from fedctta.report import titles
from fedctta.report.colours import Pen, pens
from fedctta.report.columns import arrange
from fedctta.report.payload import payload
from fedctta.report.titles import is_bound, is_idle, method_title, titled
from fedctta.results.records import Record

Fake = Callable[..., Record]


@dataclass(frozen=True)
class Mine(FedAvg):
    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "My Method"
    colour: ClassVar[str] = "#123456"
    baseline: ClassVar[bool] = True


@dataclass(frozen=True)
class Untitled(FedAvg):
    name: ClassVar[str] = "untitled"


@dataclass(frozen=True)
class Told(Aggregator):
    name: ClassVar[str] = "told"
    title: ClassVar[str] = "Told"
    colour: ClassVar[str] = "#654321"
    upper_bound: ClassVar[bool] = True


@dataclass(frozen=True)
class Frozen(NoAdaptation):
    name: ClassVar[str] = "frozen"
    title: ClassVar[str] = "As Deployed"


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in (Mine, Untitled, Told):
        monkeypatch.setitem(aggregators._classes, cls.name, cls)
    monkeypatch.setitem(adapters._classes, Frozen.name, Frozen)


def test_every_aggregator_of_the_package_has_a_title_of_its_own() -> None:
    known = {name: cls for name, cls in aggregators.classes().items() if cls.__module__.startswith("fedctta.")}
    assert all(vars(cls).get("title") for cls in known.values())
    assert len({cls.title for cls in known.values()}) == len(known)
    assert {aggregators.title(name) for name in known} <= set(titled())


def test_kin_is_shown_by_its_title(fake: Fake) -> None:
    (column,) = arrange([fake(rounds=3, aggregator=name) for name in ("kin", "ldawa")])
    assert list(column.methods) == ["Kin", "L-DAWA"]


def test_a_plugin_is_shown_as_its_class_says(fake: Fake, plugins: None) -> None:
    names = ("told", "fedctta", "untitled", "mine", "local")
    runs = [fake(rounds=3, aggregator=name) for name in names]
    (column,) = arrange([*runs, fake(rounds=3, adapter="frozen", aggregator="local")])
    # baselines first, bounds last, and nothing of it inherited: `untitled` is no FedAvg
    assert list(column.methods) == ["As Deployed", "Local", "My Method", "FedCTTA", "untitled", "Told"]
    looks = pens(column.methods)
    assert (looks["My Method"], looks["Told"]) == (Pen("#123456", False), Pen("#654321", True))
    assert looks["untitled"] != pens(["FedAvg"])["FedAvg"]


def test_a_method_that_is_not_here_goes_by_its_name() -> None:
    assert method_title({"adapter": "bn", "aggregator": "elsewhere"}) == "elsewhere"
    assert not is_idle({"adapter": "elsewhere"})
    assert not is_bound("elsewhere", [{"aggregator": "elsewhere"}])


def test_what_adapts_nothing_has_no_other_method(plugins: None) -> None:
    idle = {name for name in adapters.classes() if is_idle({"adapter": name})}
    assert idle == {"none", "frozen"}
    assert method_title({"adapter": "none", "aggregator": "fedctta"}) == "No-Adapt"


def test_an_upper_bound_is_known_by_its_label_or_its_runs(plugins: None) -> None:
    assert [is_bound(label) for label in ("Oracle (upper bound) interval=2", "Told", "FedAvg")] == [True, True, False]
    assert is_bound("Oracle + BBN", [{"aggregator": "oracle"}])
    assert not is_bound("Oracle + BBN", [{"aggregator": "fedavg"}])


def test_the_page_opens_with_the_matrix_of_a_method(fake: Fake, plugins: None) -> None:
    names = ("local", "mine", "fedavg", "oracle", "ugsa", "fedctta")
    data = payload(arrange([fake(rounds=3, aggregator=name) for name in names]))
    assert data["matrices"][data["opened"]]["name"].startswith("UGSA")
    data = payload(arrange([fake(rounds=3, aggregator="fedctta", interval=k) for k in (1, 2)]))
    assert data["opened"] == 0
    data = payload(arrange([fake(rounds=3, aggregator=name) for name in ("fedavg", "oracle")]))
    assert data["opened"] == 0


def test_only_what_says_so_adapts_nothing() -> None:
    assert Adapter.adapts
    assert [name for name, cls in adapters.classes().items() if not cls.adapts] == ["none"]


def test_a_row_is_judged_by_its_whole_title() -> None:
    assert titles.is_bound("Oracle (upper bound) momentum=0.5")
    assert not titles.is_bound("Oracle (upper bound) free")
    assert titles.is_method("Oracle (upper bound) free")
    assert titles.is_bound("Oracle (upper bound), bn")  # as rows of presets are called
    assert titles.is_method("FedCTTA fedctta.temperature=0.5")
    assert not titles.is_method("FedAvg interval=1")
    assert titles.is_idle_row("No-Adapt batch=1")
    assert not titles.is_idle_row("No-Adapting")
