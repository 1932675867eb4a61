"""Federated continual test-time adaptation: devices that adapt while they predict, and help each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedctta.adapters import Adapter
    from fedctta.aggregators import Aggregator, Server, Uploads
    from fedctta.core.clients import Client
    from fedctta.core.network import Network
    from fedctta.data.domains import Domains
    from fedctta.errors import UserError
    from fedctta.online.adapted import AdaptedModel, adapt
    from fedctta.results.records import Record
    from fedctta.runs.experiment import Result, run
    from fedctta.runs.settings import Experiment
    from fedctta.streams import Schedule

    __version__: str

__all__ = [
    "AdaptedModel",
    "Adapter",
    "Aggregator",
    "Client",
    "Domains",
    "Experiment",
    "Network",
    "Record",
    "Result",
    "Schedule",
    "Server",
    "Uploads",
    "UserError",
    "__version__",
    "adapt",
    "run",
]

# Loaded on first use, so that what needs little of the package (a device, a Flower ClientApp) loads only that.
_HOMES = {
    "AdaptedModel": "online.adapted",
    "Adapter": "adapters",
    "Aggregator": "aggregators",
    "Client": "core.clients",
    "Domains": "data.domains",
    "Experiment": "runs.settings",
    "Network": "core.network",
    "Record": "results.records",
    "Result": "runs.experiment",
    "Schedule": "streams",
    "Server": "aggregators",
    "Uploads": "aggregators",
    "UserError": "errors",
    "adapt": "online.adapted",
    "run": "runs.experiment",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "__version__":
        value: Any = _version()
    elif name in _HOMES:
        value = getattr(importlib.import_module(f"fedctta.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module 'fedctta' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("fedctta")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+unknown"
