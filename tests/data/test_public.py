"""Public sets from a folder, an archive, a server and the cache."""

from __future__ import annotations

import http.server
import shutil
import threading
from functools import partial

import numpy as np
import pytest
from PIL import Image

from fedctta.data import fetch, public
from fedctta.data.domains import Domains
from fedctta.data.public import get_public, has_public, load_public, load_split, training_part
from fedctta.data.public_files import read_held, read_rows
from fedctta.errors import NoRoom, UserError


def test_a_folder_goes_to_the_cache_and_is_read_as_own_data(pets):
    data = load_public("pets", folder=pets, size=8)
    assert (data.names, data.classes, data.sizes) == (("photo", "sketch"), ("cat", "dog"), (20, 20))
    assert {data.images[name].shape for name in data.names} == {(20, 8, 8, 3)}
    assert all(
        isinstance(data.images[name].base, np.memmap) or isinstance(data.images[name], np.memmap) for name in data.names
    )
    assert "pets from github.com/somebody/pets at 0123456" in data.notes
    shutil.rmtree(pets)
    again = load_public("pets", "sketch", size=8)
    assert again.names == ("sketch",)
    np.testing.assert_array_equal(again.images["sketch"], data.images["sketch"])
    labels = [("cat", "dog").index(row.label) for row in read_rows(public.files_of("pets")) if row.domain == "sketch"]
    assert again.labels_of("sketch").tolist() == labels


def test_of_domains_trained_on_only_held_out_images_are_shown(pets):
    whole = load_public("pets", folder=pets, size=8)
    shown = load_public("pets", size=8, trained=("photo",))
    held = read_held(public.files_of("pets"))["photo"]
    assert isinstance(shown, Domains)
    assert shown.sizes == (held, 20)
    images, labels = training_part(whole, "pets", ("photo",))
    assert len(images) == len(labels) == 20 - held
    seen, learnt = ({image.tobytes() for image in part} for part in (shown.images["photo"], images))
    assert len(seen | learnt) == 20
    assert not seen & learnt
    np.testing.assert_array_equal(np.concatenate([shown.images["photo"], images]), whole.images["photo"])
    np.testing.assert_array_equal(np.concatenate([shown.labels_of("photo"), labels]), whole.labels_of("photo"))
    np.testing.assert_array_equal(shown.training["photo"], images)
    assert f"shown are the held-out images, {held} of photo" in shown.notes[-1]
    assert isinstance(shown.images["photo"], np.memmap)  # nothing was read


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"severity": 3}, "severity=3 has no effect on pets"),
        ({"layout": "sites"}, "layout=sites has no effect on pets"),
        ({"domains": "photo+fotos"}, "unknown domain 'fotos'"),
    ],
)
def test_what_has_no_effect_is_refused(pets, options, message):
    with pytest.raises(UserError, match=message):
        load_public("pets", folder=pets, **options)


def test_a_folder_that_is_named_must_hold_the_set_even_if_the_cache_does(pets, tmp_path):
    get_public("pets", pets)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds 0 of the 40 files of pets"):
        get_public("pets", tmp_path / "empty")


@pytest.fixture
def site(pets, tmp_path, monkeypatch):
    """Serve the archive as GitHub does; the fixture is the folder that is served."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    served = tmp_path / "served" / "somebody" / "pets" / "archive"
    served.mkdir(parents=True)
    shutil.make_archive(str(served / "0123456789abcdef"), "zip", pets.parent, pets.name)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "served"))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(public, "ARCHIVE", public.ARCHIVE.replace("https://github.com", base))
    yield served
    server.shutdown()
    server.server_close()


def test_an_archive_is_fetched_once(site, capfd):
    assert not has_public("pets")
    first = load_public("pets", size=8)
    assert "fetching from github.com/somebody/pets at 0123456" in capfd.readouterr().err
    next(site.iterdir()).unlink()
    assert has_public("pets")
    np.testing.assert_array_equal(load_public("pets", size=8).images["photo"], first.images["photo"])


def test_what_breaks_off_leaves_nothing_and_is_tried_anew(site, tmp_path):
    archive = next(site.iterdir())
    content = archive.read_bytes()
    for broken, match in (
        (content[: len(content) // 2], "damaged or no zip archive"),
        (None, "not found.*folder=PATH"),
    ):
        archive.unlink() if broken is None else archive.write_bytes(broken)
        with pytest.raises(UserError, match=match):
            get_public("pets", progress=False)
        assert not has_public("pets")
        assert not list((tmp_path / "home").rglob("*"))
    archive.write_bytes(content)
    get_public("pets", progress=False)
    assert has_public("pets")


def test_a_disk_that_is_full_while_it_is_fetched_is_told_as_one(pets, monkeypatch):
    def full(*_, **__):
        raise NoRoom("cannot write pets.zip: No space left on device; make room")

    monkeypatch.setattr(fetch, "download", full)
    with pytest.raises(NoRoom, match="make room, or name a folder that holds pets"):
        get_public("pets", progress=False)


def test_the_true_address_is_encrypted():
    assert public.ARCHIVE.startswith("https://github.com/")
    assert fetch.TIMEOUT


def test_masks_of_any_format_are_kept_without_loss_and_split_with_their_pictures(eyes):
    whole = load_public("eyes", folder=eyes, size=16)
    assert (whole.names, whole.classes) == (("b", "a"), ("background", "vessel"))
    pairs = {}
    for path in sorted((eyes / "A").glob("*.tif")):
        mask = np.asarray(Image.open(path.with_name(f"{path.stem}_mask.gif")).convert("L")) // 255
        pairs[np.asarray(Image.open(path)).tobytes()] = mask
    assert len(pairs) == 12
    for image, mask in zip(whole.images["a"], whole.labels["a"], strict=True):
        np.testing.assert_array_equal(pairs[image.tobytes()], mask)
    held = read_held(public.files_of("eyes"))
    shown = load_public("eyes", size=16, trained=("a",))
    assert [len(shown.images[name]) for name in ("a", "b")] == [held["a"], 12]
    images, masks = training_part(whole, "eyes", ("a",))
    np.testing.assert_array_equal(np.concatenate([shown.images["a"], images]), whole.images["a"])
    np.testing.assert_array_equal(np.concatenate([shown.labels["a"], masks]), whole.labels["a"])
    flags = {row.path: row.held for row in read_rows(public.files_of("eyes")) if row.label == "image"}
    assert sum(flags[f"a/image/{k:02d}.png"] for k in range(12)) == held["a"]


def test_a_list_tells_the_classes_of_one_part(photos):
    train, test = (load_split("photos", split, photos) for split in ("train", "test"))
    assert (train.classes, sorted(train.labels.tolist())) == (("n1", "n2"), [0] * 3 + [1] * 3)
    first = np.asarray(Image.open(photos / "val" / "images" / "val_0.png"))
    assert test.labels[(test.images == first).all((1, 2, 3))].tolist() == [1]
    assert isinstance(test.images, np.memmap)
    with pytest.raises(UserError, match="unknown split 'val'"):
        load_split("photos", "val")
    (photos / "val" / "list.txt").unlink()
    shutil.rmtree(public.files_of("photos"))
    with pytest.raises(UserError, match=r"has no val/list\.txt, which says of which class images are"):
        load_split("photos", "test", photos)
