"""What a server and a device must agree on before they exchange anything.

    weights               a hash of the source model's tensors: mixtures of different models are no model
    adapter, parameters   the client method: other parameters give tensors that mean something else
    version               another major or minor version of this package is refused, another patch version is told

Both sides compare, so that each can say in one line what is wrong, and the server counts the refusal. This finds
mistakes. A device that lies about itself is met by the checks on what it uploads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields

from fedctta import __version__
from fedctta.adapters import Adapter, adapters
from fedctta.core.network import Network
from fedctta.core.tensors import read_bytes

Terms = dict[str, str]
TERMS = ("weights", "adapter", "adapter_parameters", "version")


def terms_of(network: Network, adapter: Adapter) -> Terms:
    """Return what one side brings."""
    digest = hashlib.sha256()
    for name, tensor in network.state.items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        digest.update(read_bytes(tensor))
    parameters = json.dumps(_parameters(network, adapter), sort_keys=True, default=str)
    values = (digest.hexdigest()[:32], adapter.name, parameters, __version__)
    return dict(zip(TERMS, values, strict=True))


def _parameters(network: Network, adapter: Adapter) -> dict[str, object]:
    """Return the method's parameters; files by their content, and without noise, which is a device's own."""
    known = adapters.classes()[adapter.name]
    told = {each.name: getattr(adapter, each.name) for each in fields(known) if each.init}  # type: ignore[arg-type]
    if adapter.learns in told:
        told[adapter.learns] = [hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in adapter.reads(network)]
    return told


def disagreement(device: Mapping[str, object], server: Terms) -> str | None:
    """Return what keeps a device from taking part, and what to do; None if nothing does.

    >>> server = {"weights": "a", "adapter": "bn", "adapter_parameters": '{"momentum": 1.0}', "version": "0.8.0"}
    >>> disagreement({**server, "adapter_parameters": '{"momentum": 0.3}'}, server)
    'the device has bn.momentum=0.3, the server bn.momentum=1.0: give both the same'
    """
    for key in TERMS:
        if not isinstance(device.get(key), str):
            return f"the device does not tell its {key}: install the server's fedctta {server['version']} there"
    told = {key: str(device[key]) for key in TERMS}
    if _minor(told["version"]) != _minor(server["version"]):
        return f"the device has fedctta {told['version']:.20}, the server {server['version']}: install the same there"
    if told["adapter"] != server["adapter"]:
        return f"the device runs adapter {told['adapter']!r:.40}, the server {server['adapter']!r}: give both the same"
    if told["adapter_parameters"] != server["adapter_parameters"]:
        return _other_parameters(told["adapter_parameters"], server)
    if told["weights"] != server["weights"]:
        return (
            f"the device's model has other weights ({told['weights']:.8}) than the server's ({server['weights']:.8}):"
            " give both the same file"
        )
    return None


def difference(device: Mapping[str, object], server: Terms) -> str | None:
    """Return what differs and does no harm, to be told."""
    told = device.get("version", server["version"])
    return None if told == server["version"] else f"the device has fedctta {told!s:.20}, the server {server['version']}"


def _other_parameters(told: str, server: Terms) -> str:
    name = server["adapter"]
    try:
        theirs, ours = json.loads(told), json.loads(server["adapter_parameters"])
        key = min(key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key))
        one, other = (f"{name}.{key}={values.get(key)!s:.40}" for values in (theirs, ours))
        return f"the device has {one}, the server {other}: give both the same"
    except (ValueError, AttributeError, RecursionError):
        return f"the device's parameters of {name} cannot be read: install the server's fedctta there"


def _minor(version: str) -> str:
    """Return major and minor number of a version.

    >>> _minor("0.8.1"), _minor("unknown")
    ('0.8', 'unknown')
    """
    return ".".join(version.split(".")[:2])
