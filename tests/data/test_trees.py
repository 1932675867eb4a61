from __future__ import annotations

import zipfile

import pytest

from fedctta.data.trees import open_tree
from fedctta.errors import UserError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "set" / "b").mkdir(parents=True)
    (tmp_path / "set" / "b" / "2.txt").write_bytes(b"two")
    (tmp_path / "set" / "1.txt").write_bytes(b"one")
    return tmp_path / "set"


@pytest.mark.parametrize("suffix", ["", ".zip", ".whl"])
def test_folders_and_archives_are_read_alike(folder, tmp_path, suffix):
    place = folder
    if suffix:
        place = tmp_path / f"set{suffix}"
        with zipfile.ZipFile(place, "w") as archive:
            for file in sorted(folder.rglob("*")):
                archive.write(file, file.relative_to(folder))
    with open_tree(place) as tree:
        assert tree.names == ("1.txt", "b/2.txt")
        assert [tree.read(name) for name in tree.names] == [b"one", b"two"]
        assert tree.where == str(place)


def test_what_is_not_there_or_damaged_is_told(folder, tmp_path):
    for name in ("none", "none.zip"):
        with pytest.raises(UserError, match=f"there is no .*{name}: check the path"), open_tree(tmp_path / name):
            pass
    broken = tmp_path / "broken.zip"
    broken.write_bytes(b"PK")
    with pytest.raises(UserError, match="damaged or no zip archive"), open_tree(broken):
        pass
    with zipfile.ZipFile(broken, "w") as archive:
        archive.write(folder / "1.txt", "1.txt")
    broken.write_bytes(broken.read_bytes().replace(b"one", b"eno"))
    with open_tree(broken) as tree, pytest.raises(UserError, match=r"broken\.zip is damaged"):
        tree.read("1.txt")
    with open_tree(folder) as tree, pytest.raises(UserError, match=r"cannot read .*3\.txt: No such file"):
        tree.read("3.txt")
