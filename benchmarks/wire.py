"""What every method puts on the wire, for ResNet-8 and images of 32x32: the table of docs/privacy.md.

    python benchmarks/wire.py [--write docs/privacy.md]

With --write, the table in that page is replaced.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fedctta.core.network import Network
from fedctta.files import whole
from fedctta.models.zoo import load_model
from fedctta.uploads.traffic import table


def replaced(page: str, new: str) -> str:
    """Return the page with the table that has a row of kinds replaced."""
    blocks = page.split("\n\n")
    (place,) = (k for k, block in enumerate(blocks) if "| *kind* |" in block)
    return "\n\n".join([*blocks[:place], new.strip(), *blocks[place + 1 :]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    found = table(Network(load_model("resnet8", "cifar10-c", 10, "auto")), (3, 32, 32))
    print(found, end="")
    if options.write is not None:
        page = replaced(options.write.read_text(encoding="utf-8"), found)
        with whole(options.write) as part:
            part.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
