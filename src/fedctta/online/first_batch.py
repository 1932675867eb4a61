"""What is looked at on the first batch of every form: whether model, method and inputs fit each other."""

from __future__ import annotations

from math import prod

from torch import Tensor

from fedctta.adapters import Adapter, adapters
from fedctta.core.network import Network
from fedctta.core.outputs import Inputs, count_rows
from fedctta.errors import UserError, either
from fedctta.models.try_on import describe, refuse_regression, try_on

MANY = 1_000_000  # images, which are too few for no method: a check of the model alone
OUTSIDE = 0.1  # share of values beyond 0..1 that pictures may have


def check_first_batch(network: Network, adapter: Adapter, x: Inputs) -> None:
    """Refuse, in one line each, a batch that the model or the method cannot take, and outputs that are no classes."""
    logits, rows = try_on(network, x), count_rows(x)
    if not logits.is_floating_point():
        raise UserError(f"the model gives {logits.dtype} for logits: say by output= where the real numbers are")
    refuse_regression(logits)
    if logits.ndim != 2 or (len(logits) != rows and not network.dense):
        raise UserError(
            f"the model gives outputs of shape {list(logits.shape)} for {rows} images: say by output= what the logits"
            " [batch, classes] are, or dense=True if it predicts every pixel"
        )
    if network.dense and isinstance(x, Tensor):
        _check_pixels(len(logits), x)
    if adapter.descends:
        network.try_gradients(x)
    adapter.check(network, MANY)  # the pass has shown whether the classifier is what it looks like
    if adapter.pictures:
        _check_pictures(adapter, x)
    elif adapter.looks:
        _check_looks(adapter, x)


def _check_pixels(predicted: int, x: Tensor) -> None:
    if predicted == len(x) * prod(x.shape[2:]):
        return
    if predicted == len(x):
        raise UserError(f"dense=True and the model gives one prediction for {describe(x)}: drop dense=True")
    raise UserError(
        f"the model predicts {predicted // len(x)} pixels for {describe(x)}: wrap it in WholeSize (of"
        " fedctta.models.whole_size), which brings its logits to the size of the images"
    )


def _check_looks(adapter: Adapter, x: Inputs) -> None:
    if not isinstance(x, Tensor) or x.dim() not in (3, 4):
        able = either(name for name, cls in adapters.classes().items() if not cls.pictures and not cls.looks)
        raise UserError(
            f"adapter {adapter.name!r} looks at images [batch, channels, height, width] or series [batch, channels,"
            f" time] and a batch has {describe(x)}: use adapter {able}"
        )


def _check_pictures(adapter: Adapter, x: Inputs) -> None:
    if not isinstance(x, Tensor) or x.dim() != 4 or x.shape[1] != 3:
        raise UserError(
            f"adapter {adapter.name!r} works on colour pictures [batch, 3, height, width] and a batch has"
            f" {describe(x)}: use adapter {_others()}"
        )
    check_range(adapter, x)


def check_range(adapter: Adapter, x: Tensor) -> None:
    """Refuse pictures of which many values lie beyond 0 and 1."""
    low, high = x.aminmax()
    if low >= 0 and high <= 1:  # nearly always, and quicker than looking at every value
        return
    beyond = float(((x < 0) | (x > 1)).to(x.dtype).mean())
    if beyond > OUTSIDE:
        raise UserError(
            f"adapter {adapter.name!r} works on colour pictures with values from 0 to 1 and {beyond:.0%} of this"
            f" batch's lie beyond: normalise inside the module, or use adapter {_others()}"
        )


def _others() -> str:
    return either(name for name, cls in adapters.classes().items() if not cls.pictures)
