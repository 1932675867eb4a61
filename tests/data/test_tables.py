"""Which file belongs to which domain and class."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from fedctta.data.tables import Item, class_names, list_items
from fedctta.errors import UserError


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return folder


def test_folders_name_domain_and_class(tmp_path):
    touch(tmp_path, "b/y/2.png", "b/x/1.jpg", "b/x/deep/3.png", "a/9.png", ".hidden/x/1.png", "b/x/readme.txt", "1.png")
    items = list_items(tmp_path)
    assert [(str(i.path.relative_to(tmp_path)), i.domain, i.label) for i in items] == [
        ("a/9.png", "a", None),
        ("b/x/1.jpg", "b", "x"),
        ("b/x/deep/3.png", "b", "x"),
        ("b/y/2.png", "b", "y"),
    ]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ((), "holds no images as DOMAIN/CLASS"),
        (("a/readme.txt",), "holds no images as DOMAIN/CLASS"),
        (("a/1.png", "a/x/2.png"), "both in folders of classes and beside them: move .*a/1.png"),
    ],
)
def test_other_folders_are_refused(tmp_path, files, said):
    with pytest.raises(UserError, match=said):
        list_items(touch(tmp_path, *files))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_name_path_domain_and_label(tmp_path, kind):
    file = tmp_path / f"list.{kind}"
    columns = {"path": ["p/1.png", "p/2.png"], "domain": ["a", "b"], "label": ["dog", None]}
    if kind == "csv":
        file.write_text("path,domain,label\np/1.png,a,dog\np/2.png,b,\n")
    else:
        pa.parquet.write_table(pa.table(columns), file)
    assert list_items(file) == [Item(tmp_path / "p/1.png", "a", "dog"), Item(tmp_path / "p/2.png", "b", None)]


def test_labels_may_be_missing_or_numbers(tmp_path):
    file = tmp_path / "list.csv"
    file.write_text("domain,path\n7,1.png\n")
    assert list_items(file) == [Item(tmp_path / "1.png", "7", None)]
    file.write_text("domain,path,label\n7,1.png,2\n")
    assert list_items(file)[0].label == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("file,domain\n1.png,a\n", "has columns file, domain: it needs path and domain"),
        ("path,domain\n", "has no rows"),
        ("path,domain\n1.png,\n", "row 1 of .* has no path or no domain"),
        ("path,domain,label\n1.png,a,0.5\n", "row 1 of .* has the label 0.5: write a class's name or number"),
        ("path,domain\n1.png\n", "cannot read .*list.csv"),
    ],
)
def test_other_tables_are_refused_in_one_line(tmp_path, text, said):
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(UserError, match=said) as refused:
        list_items(tmp_path / "list.csv")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["list.csv", "folder"])
def test_what_is_not_there_is_told(tmp_path, name):
    with pytest.raises(UserError, match="there is no"):
        list_items(tmp_path / name)


def items(*labels):
    return [Item(Path(f"{k}.png"), "a", label) for k, label in enumerate(labels)]


def test_classes_are_names_in_order_or_numbers():
    assert class_names(items("dog", "cat", None), None, Path()) == (("cat", "dog"), [1, 0, -1])
    assert class_names(items("dog", "cat"), ("dog", "elk", "cat"), Path()) == (("dog", "elk", "cat"), [0, 2])
    assert class_names(items(2, 0), None, Path()) == (("class 0", "class 1", "class 2"), [2, 0])
    assert class_names(items(None), None, Path()) == ((), [-1])
    with pytest.raises(UserError, match=r"class 'elk' of 0.png is not in classes.txt"):
        class_names(items("elk"), ("dog",), Path())
    with pytest.raises(UserError, match="has the label -1: give 0 to 1"):
        class_names(items(-1, 1), None, Path("x.csv"))
    with pytest.raises(UserError, match="has the label 3: give 0 to 1"):
        class_names(items(0, 3), ("a", "b"), Path("x.csv"))
