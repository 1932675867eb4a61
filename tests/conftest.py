"""Tiny data and a tiny model, for tests of everything that only needs some."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image
from torch import nn

from fedctta.adapters import Adapter, adapters
from fedctta.aggregators import Aggregator, Server, aggregators
from fedctta.core.clients import InChunks, Lift, Lifter, choose_lift
from fedctta.core.gpu_kernels import find_obstacle
from fedctta.core.network import Network
from fedctta.data.corrupted import Domains
from fedctta.data.public_files import digest_of, read_labels
from fedctta.data.public_sets import FETCHED, PUBLIC, GitHub, PublicSet
from fedctta.data.trees import open_tree
from fedctta.engine.rounds import Federation
from fedctta.engine.simulation import simulate
from fedctta.streams import build, schedules
from fedctta.streams.clusters import NIID

settings.register_profile("fedctta", deadline=None, derandomize=True, database=None, max_examples=40)
settings.load_profile("fedctta")

# Tests run side by side, one a core: threads of torch would only wait for each other, in processes they start too.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

CLASSES = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where tensors live in tests that do not say: cpu or cuda")


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> torch.device:
    return torch.device(pytestconfig.getoption("--device"))


@pytest.fixture(autouse=True)
def only_real_kernels(request):
    """Let no test of kernels pass by comparing plain torch with itself."""
    if request.node.get_closest_marker("triton") and (obstacle := find_obstacle()):
        reason = f"without a GPU, kernels need Triton and TRITON_INTERPRET=1 ({obstacle})"
        pytest.fail(reason) if sys.platform == "linux" else pytest.skip(reason)


@pytest.fixture(autouse=True)
def no_lasting_methods():
    """Forget the methods a test registers."""
    registries = (adapters, aggregators, schedules)
    kept = [dict(registry.classes()) for registry in registries]
    yield
    for registry, classes in zip(registries, kept, strict=True):
        registry._classes = classes


def publish(monkeypatch, name, folder, spec):
    """Let a set that is none be public under a name: one whose source holds the files of `folder`."""
    with open_tree(folder) as tree:
        classes = read_labels(spec, tree)
        digests = {}
        for place, file in spec.places(tree.names).items():
            digests[place.replace("?", classes.get(Path(file).name, "?"))] = hashlib.sha256(tree.read(file)).hexdigest()
    for known in (PUBLIC, FETCHED):
        monkeypatch.setitem(known, name, replace(spec, files=len(digests), digest=digest_of(digests)))


@pytest.fixture
def pets(tmp_path, monkeypatch):
    """The folder of a public set called "pets", as its archive unpacks: 40 pictures."""
    random = np.random.default_rng(0)
    folder = tmp_path / "pets-main"
    for domain in ("Photo", "Sketch"):
        for kind in ("cat", "dog"):
            (folder / "pictures" / domain / kind).mkdir(parents=True)
            for k in range(10):
                pixels = random.integers(0, 256, (9, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / "pictures" / domain / kind / f"{k}.png")
    (folder / "README.md").write_text("pets")
    rules = {r"Photo/(cat|dog)/([^/]+)": r"photo/\1/\2", r"Sketch/(cat|dog)/([^/]+)": r"sketch/\1/\2"}
    source = GitHub("somebody/pets", "0123456789abcdef")
    told = ("photo", "sketch"), "somebody", "free", ("cat", "dog")
    publish(monkeypatch, "pets", folder, PublicSet("40 pictures of pets", "folders", source, rules, 0, "", *told))
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    return folder


@pytest.fixture
def eyes(tmp_path, monkeypatch):
    """The folder of a public set called "eyes": pictures with masks of two sites, which differ in size and format."""
    random = np.random.default_rng(0)
    folder = tmp_path / "eyes-main"
    for site, side, picture, mask in (("A", 16, "tif", "gif"), ("B", 24, "ppm", "png")):
        (folder / site).mkdir(parents=True)
        for k in range(12):
            pixels = random.integers(0, 256, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / site / f"{k:02d}.{picture}")
            Image.fromarray(255 * (pixels[..., 0] > 99).astype(np.uint8)).save(folder / site / f"{k:02d}_mask.{mask}")
    rules = {
        **{rf"{site}/(\d+)\.\w+": rf"{site.lower()}/image/\1.png" for site in "AB"},
        **{rf"{site}/(\d+)_mask\.\w+": rf"{site.lower()}/mask/\1.png" for site in "AB"},
    }
    source = GitHub("somebody/eyes", "0123456789abcdef")
    told = ("b", "a"), "somebody", "free", ("background", "vessel")
    publish(monkeypatch, "eyes", folder, PublicSet("24 eyes", "masked", source, rules, 0, "", *told))
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    return folder


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """The folder of a set called "photos" with two parts in place of domains; a list tells the classes of one."""
    random = np.random.default_rng(0)
    train = [f"train/{kind}/images/{kind}_{k}" for kind in ("n2", "n1") for k in range(3)]
    for place in (*train, "val/images/val_0", "val/images/val_1"):
        path = tmp_path / "photos-main" / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    (tmp_path / "photos-main" / "val" / "list.txt").write_text("val_0.png\tn2\t0\nval_1.png\tn1\t0\n")
    rules = {r"train/(n\d)/images/([^/]+)": r"train/\1/\2", r"val/images/([^/]+)": r"test/?/\1"}
    source, told = GitHub("somebody/photos", "0123456789abcdef"), (("train", "test"), "somebody", "free")
    spec = PublicSet("8 photos", "folders", source, rules, 0, "", *told, labels="val/list.txt")
    publish(monkeypatch, "photos", tmp_path / "photos-main", spec)
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    return tmp_path / "photos-main"


def random_domains(domains: int = 3, images: int = 48, side: int = 8, seed: int = 0) -> Domains:
    """Make domains d0, d1, ... of random pixels, `images` each, with labels of 3 classes."""
    random = np.random.default_rng(seed)
    names = tuple(f"d{k}" for k in range(domains))
    pixels = random.integers(0, 256, (domains, images, side, side, 3), dtype=np.uint8)
    labels = random.integers(0, CLASSES, images)
    return Domains(names, dict(zip(names, pixels, strict=True)), labels, ("a", "b", "c"), ())


@pytest.fixture(scope="session")
def make_domains() -> Callable[..., Domains]:
    """Give the maker of tiny domains (a test with hypothesis may use it too)."""
    return random_domains


@pytest.fixture
def domains() -> Domains:
    """Three domains of 48 images of 8x8."""
    return random_domains()


@pytest.fixture
def tiny_module() -> nn.Module:
    """Convolution, BatchNorm with statistics of its own, ReLU, pooling, Linear; 3 classes, images of any size."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        norm = nn.BatchNorm2d(4)
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias)
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 1.5)
        conv, head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, CLASSES)
        return nn.Sequential(conv, norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head).eval()


@pytest.fixture
def tiny_network(tiny_module: nn.Module, device: torch.device) -> Network:
    return Network(tiny_module, device)


def make_federation(
    network: Network,
    adapter: str | Adapter = "bn",
    aggregator: str | Aggregator = "fedavg",
    clients: int = 4,
    lift: Lift | Lifter = "auto",
    interval: int = 1,
    **parameters: Any,
) -> Federation:
    """Make a federation of clients that see 4 images at once; `parameters` are those of an aggregator given by name."""
    method = adapters.create(adapter) if isinstance(adapter, str) else adapter
    server_method = aggregators.create(aggregator, parameters) if isinstance(aggregator, str) else aggregator
    lifter = choose_lift(lift, network, method.init(network), batch=4) if isinstance(lift, str) else lift
    server = Server(network, lifter, 0, (3, 8, 8), clients, lambda count: torch.zeros(count, 3, 8, 8))
    return Federation(method, server_method, server, interval)


@pytest.fixture(scope="session")
def federation() -> Callable[..., Federation]:
    """Give the maker of federations."""
    return make_federation


@pytest.fixture
def relabelled(tiny_network: Network) -> Callable[[Adapter, Aggregator], None]:
    """Play a run, and again with the labels permuted: no number but those of right answers may change."""

    def compare(adapter: Adapter, aggregator: Aggregator) -> None:
        data = random_domains(domains=2, side=32)
        one = make_federation(tiny_network, adapter, aggregator, clients=3, lift=InChunks(2))
        first, second = (
            simulate(one, build(NIID(clusters=2), labelled, 3, slots=1, batch=4, seed=0), predictions=True)
            for labelled in (data, replace(data, labels=np.random.default_rng(1).permutation(data.labels)))
        )
        assert not torch.equal(first.right, second.right), "the labels have not changed"
        assert first.classes is not None
        assert second.classes is not None
        assert torch.equal(first.classes, second.classes)
        assert torch.equal(first.entropy, second.entropy)
        assert torch.equal(first.matrices, second.matrices)

    return compare
