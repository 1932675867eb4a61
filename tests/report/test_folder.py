from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from fedctta.errors import UserError
from fedctta.report import write_report
from fedctta.results.records import Record

Fake = Callable[..., Record]


@pytest.fixture(scope="module")
def study(fake: Fake) -> list[Record]:
    idle = fake(rounds=6, adapter="none", aggregator="local", accuracy=0.25)
    first = fake(rounds=6, absent=True, fedctta={"temperature": 0.5, "layers": [1, 2], "kind": 3})
    second = fake(rounds=6, seed=1, absent=True, fedctta={"temperature": 1, "kind": "soft"})
    return [idle, first, second]


@pytest.fixture(scope="module")
def folder(study: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(study, tmp_path_factory.mktemp("out") / "new" / "folder", title="x").parent


def read(folder: Path, name: str) -> list[dict[str, object]]:
    return pyarrow.parquet.read_table(folder / name).to_pylist()


def test_everything_is_written_and_nothing_is_left_over(folder: Path) -> None:
    names = {file.name for file in folder.iterdir()}
    tables = {
        f"{name}{end}" for name in ("results", "by_domain", "by_slot", "by_client") for end in (".csv", ".parquet")
    }
    pictures = {f"{n}.png" for n in ("accuracy_over_time", "accuracy_by_domain", "collaboration", "cost")}
    assert names == tables | pictures | {"report.html", "table.md", "table.csv", "collaboration.parquet"}
    for name in pictures:
        assert (folder / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert (folder / name).stat().st_size > 5000
    assert "<title>x</title>" in (folder / "report.html").read_text(encoding="utf-8")


def test_numbers_come_back_from_parquet(study: list[Record], folder: Path) -> None:
    results = read(folder, "results.parquet")
    assert [row["accuracy"] for row in results] == [record.accuracy for record in study]
    assert [row["method"] for row in results][:2] == ["No-Adapt", "FedCTTA temperature=0.5 layers=[1, 2] kind=3"]
    assert [row["fedctta.temperature"] for row in results] == [None, 0.5, 1.0]
    assert [row["fedctta.kind"] for row in results] == [None, "3", "soft"]
    assert results[1]["fedctta.layers"] == "[1, 2]"

    slots = [row for row in read(folder, "by_slot.parquet") if row["run"] == 1]
    assert [row["seen"] for row in slots] == study[1].seen.sum(1).tolist()
    assert slots[3]["accuracy"] is None  # nobody came
    clients = [row for row in read(folder, "by_client.parquet") if row["run"] == 2]
    assert [row["accuracy"] for row in clients] == study[2].accuracy_by_client
    domains = {row["domain"]: row["accuracy"] for row in read(folder, "by_domain.parquet") if row["run"] == 0}
    assert {name: value for name, value in domains.items() if value is not None} == study[0].accuracy_by_domain


def test_collaboration_is_one_row_a_weight(study: list[Record], folder: Path) -> None:
    table = pyarrow.parquet.read_table(folder / "collaboration.parquet")
    assert table.column_names == ["run", "round", "client", "peer", "weight"]
    run, at, client, peer, weight = (table[name].to_numpy() for name in table.column_names)
    assert len(run) == sum(record.collaboration.size for record in study)
    pick = (run == 1) & (at == 4) & (client == 2) & (peer == 3)
    assert weight[pick] == study[1].collaboration[4, 2, 3]
    assert np.unique(run).tolist() == [0, 1, 2]


def test_csv_and_parquet_agree(folder: Path) -> None:
    for name in ("by_domain", "by_client", "results"):
        text, binary = (
            pyarrow.csv.read_csv(folder / f"{name}.csv"),
            pyarrow.parquet.read_table(folder / f"{name}.parquet"),
        )
        assert text.column_names == binary.column_names
        assert text["accuracy"].to_pylist() == binary["accuracy"].to_pylist()


def test_every_column_has_its_pictures(fake: Fake, tmp_path: Path) -> None:
    write_report([fake(rounds=2, clients=2, stream=s) for s in ("a/b", "../c")], tmp_path)
    assert sorted(file.name for file in tmp_path.glob("cost*")) == ["cost-1-a-b.png", "cost-2-c.png"]


def test_a_folder_that_cannot_be_written_is_a_users_error(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(UserError, match="choose a folder"):
        write_report([fake(rounds=2)], tmp_path / "taken")
