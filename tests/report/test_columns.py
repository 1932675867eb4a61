from __future__ import annotations

from collections.abc import Callable

import pytest

from fedctta.errors import UserError
from fedctta.report.columns import arrange, flat
from fedctta.results.records import Record

Fake = Callable[..., Record]


def labels(records: list[Record]) -> list[list[str]]:
    return [list(column.methods) for column in arrange(records)]


def test_methods_have_their_papers_names_and_baselines_come_first(fake: Fake) -> None:
    names = ["oracle", "fedctta", "fedtsa", "fedavg", "local"]
    runs = [fake(rounds=3, aggregator=name) for name in names]
    idle = fake(rounds=3, adapter="none", aggregator="local")
    expected = ["No-Adapt", "Local", "FedAvg", "FedCTTA", "FedTSA", "Oracle (upper bound)"]
    assert labels([*runs, idle]) == [expected]


def test_parameters_in_labels_do_not_change_the_order(fake: Fake) -> None:
    runs = [fake(rounds=3, aggregator=a, bn={"momentum": m}) for a in ("oracle", "fedctta", "local") for m in (0.5, 1)]
    titles = [label.partition(" momentum=")[0] for label in labels(runs)[0]]
    assert titles == ["Local", "Local", "FedCTTA", "FedCTTA", "Oracle (upper bound)", "Oracle (upper bound)"]


def test_a_differing_parameter_goes_into_the_label(fake: Fake) -> None:
    runs = [fake(rounds=3, seed=s, fedctta={"temperature": t, "ema": 0.9}) for t in (0.5, 1.0) for s in (0, 1)]
    (column,) = arrange(runs)
    assert {label: len(found) for label, found in column.methods.items()} == {
        "FedCTTA temperature=0.5": 2,
        "FedCTTA temperature=1.0": 2,
    }


def test_what_follows_from_the_seed_does_not_make_a_row_of_every_seed(fake: Fake) -> None:
    follows = [{"sh": 0.1 * s, "th": 0.2 * s, "lying": [s], "quiet": str(s), "privacy": {"spent": s}} for s in (0, 1)]
    runs = [fake(rounds=3, seed=s, **follows[s]) for s in (0, 1)]
    (column,) = arrange(runs)
    assert {label: len(found) for label, found in column.methods.items()} == {"FedCTTA": 2}


def test_seeds_are_averaged_whatever_computed_them(fake: Fake) -> None:
    machines = [{"hardware": f"{k} CPU threads", "torch": f"2.1{k}", "lift": w} for k, w in ((1, "loop"), (2, "vmap"))]
    runs = [fake(rounds=3, seed=s, **machines[s]) for s in (0, 1)]
    assert labels(runs) == [["FedCTTA"]]
    again = [fake(rounds=3, hardware="same", lift=lift) for lift in ("loop", "vmap")]
    assert labels(again) == [["FedCTTA lift=loop", "FedCTTA lift=vmap"]]


def test_a_run_given_twice_is_one_seed(fake: Fake) -> None:
    runs = [fake(rounds=3, seed=s) for s in (0, 1, 0, 1)]
    (column,) = arrange(runs)
    assert column.methods == {"FedCTTA": (runs[0], runs[1])}


def test_parameters_of_another_method_do_not_lengthen_a_label(fake: Fake) -> None:
    runs = [fake(rounds=3, fedctta={"temperature": 0.5}), fake(rounds=3, aggregator="fedtsa", fedtsa={"steps": 5})]
    assert labels(runs) == [["FedCTTA", "FedTSA"]]


def test_equal_parameter_names_are_told_apart_by_their_owner(fake: Fake) -> None:
    runs = [fake(rounds=3, tent={"lr": lr}, fedctta={"lr": 2 * lr}) for lr in (1, 2)]
    assert labels(runs) == [["FedCTTA tent.lr=1 fedctta.lr=2", "FedCTTA tent.lr=2 fedctta.lr=4"]]


def test_runs_of_different_length_of_aggregation_are_never_averaged(fake: Fake) -> None:
    assert labels([fake(rounds=3, interval=k) for k in (1, 5)]) == [["FedCTTA interval=1", "FedCTTA interval=5"]]


def test_a_column_names_only_what_varies(fake: Fake) -> None:
    both = [fake(rounds=3, stream=s, adapter=a) for s in ("niid", "iid") for a in ("tent", "bn")]
    assert [c.name for c in arrange(both)] == ["niid / tent", "niid / bn", "iid / tent", "iid / bn"]
    # the model follows from the data set, and the slots from the batch
    sets = [fake(rounds=3, dataset=d, model=m) for d, m in (("a", "small"), ("b", "large"))]
    assert [c.name for c in arrange(sets)] == ["a / niid", "b / niid"]
    batches = [fake(rounds=3, batch=b, slots=500 // b) for b in (10, 20)]
    assert [c.name for c in arrange(batches)] == ["niid / batch=10", "niid / batch=20"]
    visits = [fake(rounds=3, stream_parameters={"loop": k}) for k in (1, 2)]
    assert [c.name for c in arrange(visits)] == ["niid / loop=1", "niid / loop=2"]


def test_a_key_that_only_some_runs_record_has_its_default_in_the_others(fake: Fake) -> None:
    runs = [fake(rounds=3, stream="niid"), fake(rounds=3, stream="niid", storage="bf16")]
    assert [column.name for column in arrange(runs)] == ["niid / storage=float32", "niid / storage=bf16"]


def test_no_adapt_stands_in_the_column_of_every_adapter(fake: Fake) -> None:
    idle = fake(rounds=3, adapter="none", aggregator="local")
    runs = [idle, fake(rounds=3, adapter="tent"), fake(rounds=3, adapter="bn")]
    columns = arrange(runs)
    assert [c.name for c in columns] == ["niid / tent", "niid / bn"]
    assert all(column.methods["No-Adapt"] == (idle,) for column in columns)
    assert [c.name for c in arrange([idle])] == ["niid"]


def test_no_adapt_stands_in_every_column_that_differs_in_what_is_nothing_to_it(fake: Fake) -> None:
    idle = fake(rounds=3, adapter="none", aggregator="local", liars=0, predict="after")
    runs = [fake(rounds=3, liars=n, predict=p) for n in (0, 2) for p in ("after", "before")]
    columns = arrange([*runs, idle])
    assert len(columns) == 4
    assert all(column.methods["No-Adapt"] == (idle,) for column in columns)
    two = [fake(rounds=3, adapter="none", aggregator="local", liars=n) for n in (0, 2)]
    found = [column.methods["No-Adapt"] for column in arrange([*two, *(fake(rounds=3, liars=n) for n in (0, 2))])]
    assert found == [(two[0],), (two[1],)]  # asked for in both, each stands in its own


def test_no_adapt_of_another_model_or_of_other_weights_stands_in_its_own_column(fake: Fake) -> None:
    for key in ("model", "weights", "batch"):
        idle = [fake(rounds=3, adapter="none", aggregator="local", **{key: value}) for value in ("a", "b")]
        columns = arrange([*(fake(rounds=3, **{key: value}) for value in ("a", "b")), *idle])
        assert [column.methods["No-Adapt"] for column in columns] == [(idle[0],), (idle[1],)]


def test_no_runs_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(UserError, match="run an experiment"):
        arrange([])


def test_flat_leaves_lists_alone() -> None:
    assert flat({"a": {"b": {"c": 1}}, "d": [1, 2]}) == {"a.b.c": 1, "d": [1, 2]}
