"""The method of a device for which none is named: the one that never waits, where it fits, and otherwise none."""

from __future__ import annotations

from fedctta.adapters import adapters
from fedctta.adapters.common.needs import meets
from fedctta.core.network import Network
from fedctta.errors import UserError
from fedctta.keys import PLAIN, UNWAITING
from fedctta.online.precision import check_precision


def choose_default(network: Network) -> tuple[str, str]:
    """Return the name of an adapter that fits a model, and, if it adapts nothing, why.

    >>> from torch import nn
    >>> choose_default(Network(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten())))
    ('recall', '')
    >>> choose_default(Network(nn.Flatten()))[0]
    'none'
    """
    unwaiting = adapters.create(UNWAITING)
    if not meets(network, unwaiting.needs):
        return PLAIN, (
            f"adapter {UNWAITING!r} needs BatchNorm layers and this model has none, so that it predicts without"
            " adapting: name another method (`fedctta doctor` says which fit)"
        )
    try:
        check_precision(network, unwaiting)
    except UserError as error:
        return PLAIN, f"{error}; as no method was named, the model predicts without adapting"
    return UNWAITING, ""
