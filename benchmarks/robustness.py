"""What two lying clients of twenty cost the honest ones, with every way of mixing.

    python benchmarks/robustness.py [--slots 10] [--liars 2] [--aggregators fedavg fedctta] [--ways none clip ...]

CIFAR-10-C, NIID, adapter bn, batch 10. Every cell is the accuracy of the clients that never lie, in percent; in
brackets its difference to the same aggregator with nobody lying and plain mixing. A run whose predictions stop
being numbers "fails".
"""

from __future__ import annotations

import argparse
import gc
from typing import Any, get_args

import fedctta
from fedctta.keys import Lie, Way
from fedctta.uploads.attacks import choose_liars


def honest_accuracy(values: dict[str, Any], honest: list[int]) -> float | None:
    gc.collect()  # the images of the run before
    try:
        (record,) = fedctta.run(**values, baseline=False)
    except fedctta.UserError as error:
        if "NaN" not in str(error):
            raise
        return None
    return 100 * float(record.correct[:, honest].sum() / record.seen[:, honest].sum())


def cell(accuracy: float | None, plain: float) -> str:
    return f"{'fails':>15}" if accuracy is None else f"{accuracy:7.2f} ({accuracy - plain:+.2f})".rjust(15)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="cifar10-c")
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--liars", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--aggregators", nargs="+", default=["fedavg", "fedctta"])
    parser.add_argument("--lies", nargs="+", default=["nobody", *get_args(Lie)])
    parser.add_argument("--ways", nargs="+", default=list(get_args(Way)))
    options = parser.parse_args()
    lying = choose_liars(20, options.liars, options.seed)
    honest = [i for i in range(20) if i not in lying]
    common = {"dataset": options.dataset, "slots": options.slots, "seed": options.seed, "clients": 20}
    print(f"{'aggregator':12}{'lie':8}" + "".join(f"{way:>15}" for way in options.ways))
    for aggregator in options.aggregators:
        plain = honest_accuracy(common | {"aggregator": aggregator}, honest) or 0.0
        for lie in options.lies:
            liars = {} if lie == "nobody" else {"liars": options.liars, "lie": lie}
            print(f"{aggregator:12}{lie:8}", end="", flush=True)
            for way in options.ways:
                if (lie, way) == ("nobody", "none"):
                    accuracy: float | None = plain
                else:
                    accuracy = honest_accuracy(common | liars | {"aggregator": aggregator, "robust": way}, honest)
                print(cell(accuracy, plain), end="", flush=True)
            print()


if __name__ == "__main__":
    main()
