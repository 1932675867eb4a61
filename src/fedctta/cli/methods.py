"""`fedctta methods`."""

from __future__ import annotations

from collections.abc import Iterable

from fedctta.cli.console import print_list
from fedctta.listing import Method, list_broken, list_methods, list_models
from fedctta.runs.preset_files import presets, published, titles


def methods() -> None:
    """List adapters, aggregators, streams, models and presets with one line each."""
    servers = list_methods("aggregator").values()
    print_list("adapters (client side)", _rows(list_methods("adapter").values()))
    print_list("aggregators (server side)", _rows(each for each in servers if not each.upper_bound))
    print_list("upper bounds (told the true domains; not methods)", _rows(each for each in servers if each.upper_bound))
    print_list("streams", _rows(list_methods("stream").values()))
    print_list("samples (which images a client sees)", _rows(list_methods("samples").values()))
    if broken := list_broken():
        print_list("plugins that cannot be loaded", [(name, str(why), "") for name, why in broken.items()])
    print_list("models", [(name, about, f"{count:,} parameters") for name, (about, count) in list_models().items()])
    print_list("presets", [(name, title, "") for name, title in titles(presets()).items()])
    print_list(
        "published tables and figures (fedctta reproduce)",
        [(name, title, "") for name, title in titles(published()).items()],
    )


def _rows(found: Iterable[Method]) -> list[tuple[str, str, str]]:
    return [
        (method.name, method.summary, "  ".join(f"{key}={value}" for key, value in method.defaults.items()))
        for method in found
    ]
