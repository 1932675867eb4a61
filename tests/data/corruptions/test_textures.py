from __future__ import annotations

import hashlib
import subprocess
import zipfile
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from fedctta.data import fetch
from fedctta.data.corruptions import textures
from fedctta.data.corruptions.textures import SHA256, STATISTICS, frost_textures, shrink, stand_in
from fedctta.errors import UserError


def picture(name, size=(30, 20)):
    pixels = np.random.default_rng(len(name)).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    store = BytesIO()
    Image.fromarray(pixels).save(store, "PNG")
    return store.getvalue(), pixels


@pytest.fixture
def files():
    return {name: picture(name)[0] for name in SHA256}


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """No package installed, an empty cache, and an index that cannot be reached; returns the calls made to it."""
    calls = []

    def unreachable(command, **options):
        calls.append(command)
        return subprocess.CompletedProcess(command, 1, "", "")

    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(textures.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(fetch.subprocess, "run", unreachable)
    return calls


def trust(monkeypatch, files):
    monkeypatch.setattr(textures, "SHA256", {name: hashlib.sha256(file).hexdigest() for name, file in files.items()})


def save(folder, files):
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def test_shrink_takes_the_middle_of_each_block_in_rgb():
    content, pixels = picture("x", (33, 21))
    np.testing.assert_array_equal(shrink(content), pixels[2::5, 2::5])
    assert shrink(content).shape == (4, 7, 3)


def test_stand_in_matches_the_statistics_and_is_always_the_same():
    made = stand_in()
    assert made.origin == "generated stand-in"
    for image, again, (shape, mean, std) in zip(made.images, stand_in().images, STATISTICS, strict=True):
        assert image.shape == (*shape, 3)
        assert image.dtype == np.uint8
        np.testing.assert_allclose(image.mean(axis=(0, 1)), mean, atol=0.3)
        np.testing.assert_allclose(image.std(axis=(0, 1)), std, rtol=0.02)
        np.testing.assert_array_equal(image, again)


def test_without_any_source_it_stands_in(alone):
    assert frost_textures().origin == "generated stand-in"
    assert "--only-binary=:all:" in alone[0]
    assert {"--no-deps", "--no-input", "--disable-pip-version-check"} <= set(alone[0])


def test_a_folder_of_own_pictures(alone, files, tmp_path):
    save(tmp_path / "own", files)
    found = frost_textures(tmp_path / "own")
    assert found.origin.startswith("frost ")
    assert len(found.images) == 5
    assert not alone


def test_a_folder_with_the_true_pictures_is_known(files, tmp_path, monkeypatch):
    trust(monkeypatch, files)
    save(tmp_path / "own", files)
    assert frost_textures(tmp_path / "own").origin == "imagecorruptions"


def test_an_incomplete_or_damaged_folder_is_an_error(files, tmp_path):
    save(tmp_path / "own", files)
    (tmp_path / "own" / "frost3.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match="cannot be read"):
        frost_textures(tmp_path / "own")
    (tmp_path / "own" / "frost3.png").unlink()
    with pytest.raises(UserError, match=r"has no frost3\.png"):
        frost_textures(tmp_path / "own")


def test_the_installed_package_is_found_without_importing_it(files, tmp_path, monkeypatch, alone):
    trust(monkeypatch, files)
    save(tmp_path / "site" / "imagecorruptions" / "frost", files)
    (tmp_path / "site" / "imagecorruptions" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.undo()
    trust(monkeypatch, files)
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert frost_textures().origin == "imagecorruptions"


def test_fetched_pictures_are_kept(files, tmp_path, monkeypatch, alone):
    trust(monkeypatch, files)

    def pip(command, **options):
        alone.append(command)
        with zipfile.ZipFile(f"{command[-1]}/imagecorruptions-1.1.2-py3-none-any.whl", "w") as wheel:
            for name, content in files.items():
                wheel.writestr(f"imagecorruptions/frost/{name}", content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(fetch.subprocess, "run", pip)
    first, second = frost_textures(), frost_textures()
    assert first.origin == second.origin == "imagecorruptions"
    assert len(alone) == 1
    assert sorted(path.name for path in (tmp_path / "cache" / "frost").iterdir()) == sorted(SHA256)
    for a, b in zip(first.images, second.images, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_wheel_with_other_pictures_is_not_used(files, monkeypatch, alone, tmp_path):
    def pip(command, **options):
        with zipfile.ZipFile(f"{command[-1]}/imagecorruptions-1.1.2-py3-none-any.whl", "w") as wheel:
            for name, content in files.items():
                wheel.writestr(f"imagecorruptions/frost/{name}", content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(fetch.subprocess, "run", pip)
    assert frost_textures().origin == "generated stand-in"
    assert not (tmp_path / "cache").exists()


def test_a_damaged_cache_is_not_used(files, monkeypatch, alone, tmp_path):
    trust(monkeypatch, files)
    save(tmp_path / "cache" / "frost", files)
    assert frost_textures().origin == "imagecorruptions"
    (tmp_path / "cache" / "frost" / "frost1.png").write_bytes(b"half")
    assert frost_textures().origin == "generated stand-in"


@pytest.mark.parametrize("failure", [subprocess.TimeoutExpired("pip", 60), OSError(12, "Cannot allocate memory")])
def test_a_slow_index_and_a_pip_that_does_not_start_are_given_up(alone, monkeypatch, failure):
    def fail(command, timeout, **options):
        assert timeout <= 60  # a run waits
        raise failure

    monkeypatch.setattr(fetch.subprocess, "run", fail)
    assert frost_textures().origin == "generated stand-in"
