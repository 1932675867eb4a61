"""Every adapter on networks of another library: it runs, or one line says why not and which adapters do."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module

import pytest
import torch

from fedctta.adapters import adapters
from fedctta.core.network import Network
from fedctta.core.norms import refreshed
from fedctta.errors import UserError
from fedctta.models import build

SIDE, BATCH, CLASSES = 64, 4, 10
FAST = ("mobilenetv3_small_050", "regnetx_002", "convnext_atto")
SLOW = (
    *("cspresnet50", "densenet121", "dla34", "edgenext_xx_small", "efficientnet_lite0", "fastvit_t8", "ghostnet_050"),
    *("hrnet_w18_small", "mobileone_s0", "mobilevitv2_050", "nf_regnet_b0", "poolformer_s12", "repvgg_a0", "resnet18"),
    *("resnet18d", "resnetv2_50", "resnext26ts", "seresnext26d_32x4d", "vgg11_bn"),
)
SIZED = ("mixer_s16_224", "swin_tiny_patch4_window7_224", "vit_tiny_patch16_224", "xcit_nano_12_p16_224")
REFUSALS = re.compile(
    r"adapter '[a-z0-9-]+' (needs BatchNorm layers|trains scales of normalisation layers) and this model has none:"
    r" use (recall\.inner=tent or )?adapter none(, [a-z0-9-]+)* or [a-z0-9-]+"
)
PARAMETERS = {"rotta": {"side": SIDE}, "atp": {"rates": "0.01"}}


@pytest.fixture(scope="module")
def timm():
    """Import timm; a torchvision whose compiled part does not load needs two operators of it to be there."""
    library = None
    try:
        import_module("torchvision")
    except (ImportError, RuntimeError):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    yield pytest.importorskip("timm")
    del library


@cache
def make_network(create, name):
    torch.manual_seed(0)
    module = create(name, num_classes=CLASSES, **({"img_size": SIDE} if name in SIZED else {})).eval()
    return Network(module), module


def adapt_once(adapter, network, x):
    """Let one client adapt to a batch and predict it, as the engine does."""
    with torch.no_grad():
        adapter.check(network, len(x))
        client = adapter.init(network)
        if adapter.source_images:
            client = client._replace(private={**client.private, **adapter.study(network, x, len(x))})
        return adapter.predict(network, adapter.adapt(network, client, x), x)


def check(timm, name, method):
    check_on(make_network(timm.create_model, name)[0], method)


def check_on(network, method):
    x = torch.rand(BATCH, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    adapter, refusal = adapters.create(method, PARAMETERS.get(method, {})), ""
    try:
        logits = adapt_once(adapter, network, x)
    except UserError as error:
        refusal = str(error)
    if refusal:
        assert REFUSALS.fullmatch(refusal)
        assert not network.norms, "models with BatchNorm and a classifier take every adapter"
    else:
        assert logits.shape == (BATCH, CLASSES)
        assert logits.isfinite().all()


@pytest.mark.parametrize("method", sorted(adapters.classes()))
@pytest.mark.parametrize("name", FAST)
def test_every_adapter_runs_or_says_why_not(name, method, timm):
    check(timm, name, method)


def build_own(name, num_classes):
    return build(name, num_classes)


@pytest.mark.parametrize("method", ["bn", "cotta", "recall", "tent"])
def test_our_depthwise_network_adapts(method):
    check_on(make_network(build_own, "efficientnet-lite0")[0], method)


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(adapters.classes()))
def test_our_depthwise_network_takes_every_adapter(method):
    check_on(make_network(build_own, "efficientnet-lite0")[0], method)


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(adapters.classes()))
@pytest.mark.parametrize("name", [*SLOW, *SIZED])
def test_every_adapter_runs_or_says_why_not_on_more_networks(name, method, timm):
    check(timm, name, method)


@pytest.mark.parametrize("name", FAST)
def test_a_network_computes_what_the_module_computes(name, timm):
    network, module = make_network(timm.create_model, name)
    x = torch.rand(BATCH, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(network({}, x).logits, module(x), atol=1e-4, rtol=1e-4)
        if network.norms:  # the statistics of the batch, as in train mode
            for layer in module.modules():
                if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
                    layer.train()
            try:
                torch.testing.assert_close(network({}, x, refreshed()).logits, module(x), atol=1e-3, rtol=1e-3)
            finally:
                module.eval()
