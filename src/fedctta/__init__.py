"""Federated continual test-time adaptation: devices that adapt while they predict, and help each other."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("fedctta")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

from fedctta.adapters import Adapter
from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.clients import Client
from fedctta.data.corrupted import Domains
from fedctta.errors import UserError
from fedctta.experiment import Result, run
from fedctta.network import Network
from fedctta.records import Record
from fedctta.settings import Experiment
from fedctta.streams import Schedule

__all__ = [
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
    "run",
]
