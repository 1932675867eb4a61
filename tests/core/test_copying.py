"""What kinds of models can be copied, and what is said of those that cannot."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fedctta import adapt
from fedctta.core.copying import copy_model
from fedctta.core.network import Network
from fedctta.errors import UserError


def plain():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2))


def built():
    module = plain()
    module(torch.rand(2, 3, 6, 6))
    return module


class Keeping(nn.Module):
    """Keeps what its last pass gave."""

    def __init__(self):
        super().__init__()
        self.body = built()

    def forward(self, x):
        self.last = self.body(x)
        return self.last


def kept():
    module = Keeping()
    module(torch.rand(2, 3, 6, 6))
    return module


def locked():
    module = built()
    module.lock = threading.Lock()
    return module


def trained(norm):
    """Return a model with weights that a hook computes, after a step of training."""
    module = built()
    module[0] = norm(module[0])
    steps = torch.optim.SGD(module.parameters(), 0.1)
    module(torch.rand(2, 3, 6, 6)).sum().backward()
    steps.step()
    return module


def half_there():
    module = built()
    module[3].to("meta")
    return module


@pytest.mark.filterwarnings("ignore:.*(deprecated|Deprecated).*")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (plain, "layer '3' knows no shape of its tensors yet: run the model on one batch first"),
        (half_there, "layer '3' is on the meta device, without values: build the model on a CPU"),
        (lambda: torch.jit.script(built()), "the model is a TorchScript module, .*: give the Python module it is of"),
        (lambda: nn.Sequential(torch.jit.script(built())), "layer '0' is a TorchScript module, .*in its place"),
        (lambda: nn.DataParallel(built()), "the model is wrapped in DataParallel, .*: give model.module"),
        (kept, "the model keeps the tensor 'last' .*: run the model on one batch under torch.no_grad.* first"),
        (lambda: trained(nn.utils.weight_norm), "layer '0' keeps the tensor 'weight' .* under torch.no_grad.* first"),
        (lambda: trained(nn.utils.spectral_norm), "layer '0' keeps the tensor 'weight' .* under torch.no_grad.* first"),
        (locked, "the model cannot be copied .TypeError: cannot pickle '_thread.lock' object.: take out .* locks"),
    ],
)
def test_what_has_no_copy_is_refused_in_one_line(make, said):
    with pytest.raises(UserError, match=f"^{said}[^\n]*$"):
        Network(make())


@pytest.mark.filterwarnings("ignore:.*(deprecated|Deprecated).*")
@pytest.mark.parametrize("make", [kept, lambda: trained(nn.utils.weight_norm)])
def test_a_pass_without_gradients_is_the_remedy_for_kept_tensors(make):
    module, x = make().eval(), torch.rand(2, 3, 6, 6)
    with torch.no_grad():
        expected = module(x)
    torch.testing.assert_close(Network(module)({}, x).logits, expected)


def test_a_copy_is_in_evaluation_mode_and_the_model_stays_as_it_was():
    module = built()
    copied = copy_model(module)
    assert not copied.training
    assert not any(parameter.requires_grad for parameter in copied.parameters())
    assert module.training
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_norms_that_share_their_statistics_are_refused():
    module = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3))
    module[1].running_mean = module[0].running_mean
    with pytest.raises(UserError, match=r"^layer '1' has the statistics of another one: give"):
        Network(module)


class Checkpointing(nn.Module):
    """Computes its body's activations a second time for gradients, as timm's models do when asked to."""

    def __init__(self, name):
        super().__init__()
        self.body = built()
        setattr(self, name, True)
        self.name = name

    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=False) if getattr(self, self.name) else self.body(x)


def compiled_within():
    module = built()
    module[0] = torch.compile(module[0], backend="eager")
    module[1].compile(backend="eager")
    return module


@pytest.mark.parametrize(
    "make",
    [
        partial(Checkpointing, "grad_checkpointing"),
        partial(Checkpointing, "use_checkpoint"),
        lambda: torch.compile(built(), backend="eager"),
        compiled_within,
    ],
)
def test_a_copy_computes_without_checkpoints_and_without_compiling(make):
    torch.manual_seed(0)
    module, x = make().eval(), torch.rand(4, 3, 6, 6)
    names = list(module.state_dict())
    model = adapt(module, "tent")
    torch.testing.assert_close(adapt(module, "none")(x), module(x))
    model(x)
    assert model.health.weights_distance > 0
    assert list(model.state_dict()) == names
    assert all(layer._compiled_call_impl is None for layer in model.adaptation.network.module.modules())
    assert not hasattr(module, "name") or getattr(module, module.name)
