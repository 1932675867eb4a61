"""A model as a pure function, checked against torch's own modules."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fedctta
from fedctta.adapters import adapters
from fedctta.adapters.common.balanced import balanced, source_buffers
from fedctta.core.network import Network
from fedctta.core.norm_layers import scale_and_shift
from fedctta.core.norms import batch_statistics, refreshed, training
from fedctta.errors import UserError
from fedctta.uploads.privacy import Noise


def images(count=6, side=8, seed=1):
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def test_own_tensors_are_laid_over_the_source(tiny_module):
    x, network = images(), Network(tiny_module)
    own = {"5.bias": torch.tensor([10.0, 0.0, 0.0])}
    shifted = network(own, x).logits - network({}, x).logits
    torch.testing.assert_close(shifted, (own["5.bias"] - tiny_module[5].bias).expand_as(shifted))


def test_a_pass_changes_neither_the_network_nor_the_users_module(tiny_module):
    before = {name: tensor.clone() for name, tensor in tiny_module.state_dict().items()}
    network = Network(tiny_module)
    source = {name: tensor.clone() for name, tensor in network.state.items()}
    network({}, images(), training(0.5))
    for name, tensor in tiny_module.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
    for name, tensor in network.state.items():
        torch.testing.assert_close(tensor, source[name], rtol=0, atol=0)
    assert isinstance(tiny_module[1], nn.BatchNorm2d)


def test_features_are_the_input_of_the_last_linear_layer(tiny_module):
    x = images()
    output = Network(tiny_module)({}, x)
    torch.testing.assert_close(output.features @ tiny_module[5].weight.T + tiny_module[5].bias, output.logits)


def test_the_extractor_is_all_but_the_classifier(tiny_module):
    network = Network(tiny_module)
    assert [*network.extractor, "5.weight", "5.bias"] == list(network.parameters)


def test_one_dimensional_norms_and_norms_without_affine_work():
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5, affine=False), nn.Linear(5, 3)).eval()
    x = torch.rand(4, 3, 2, 2)
    torch.testing.assert_close(Network(module)({}, x).logits, module(x))


def test_a_model_that_is_itself_a_norm_works():
    norm = nn.BatchNorm2d(3).eval()
    x = images()
    torch.testing.assert_close(Network(norm)({}, x).logits, norm(x))


def test_a_convolution_of_which_the_mean_over_pixels_gives_the_logits_is_no_classifier():
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    with pytest.raises(UserError, match=r"adapter 't3a' needs a model that ends in nn\.Linear"):
        fedctta.adapt(module, "t3a")(images())


def test_a_linear_layer_that_does_not_give_the_logits_is_no_classifier():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Conv2d(3, 5, 1)
            self.gate = nn.Linear(3, 3)

        def forward(self, x):
            pooled = x.mean((2, 3))
            return self.head((pooled * self.gate(pooled).sigmoid())[:, :, None, None]).flatten(1)

    network = Network(Gated())
    out = network({}, images())
    assert not network.has_features
    torch.testing.assert_close(out.features, out.logits)


def test_a_model_without_norms_or_linear_says_so():
    network = Network(nn.Sequential(nn.Conv2d(3, 3, 8), nn.Flatten()))
    assert not network.has_features
    with pytest.raises(UserError, match="'bn' needs BatchNorm"):
        adapters.create("bn").check(network, 4)


def scattered(module):
    """Give a module's parameters and statistics values of their own."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return module.eval()


class Volumes(nn.Module):
    """Sees an image as a volume of two slices."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv3d(3, 4, 3, padding=1), nn.BatchNorm3d(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(torch.stack([x, x.flip(-1)], 2)))).mean((2, 3, 4)))


def test_kernels_of_five_axes_work_beside_those_of_four():
    module = scattered(nn.Sequential(nn.Conv2d(3, 3, 3), Volumes()))
    x, network = images(), Network(module)
    torch.testing.assert_close(network({}, x).logits, module(x))
    assert network.state["1.conv.weight"].is_contiguous()
    pointwise, plain = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3)
    for kernel in (pointwise, plain):
        strides = copy.deepcopy(kernel).to(memory_format=torch.channels_last).weight.stride()
        assert Network(nn.Sequential(kernel)).state["0.weight"].stride() == strides


class TwoNames(nn.Module):
    """Has one norm under two names."""

    def __init__(self):
        super().__init__()
        self.one = self.other = nn.BatchNorm2d(3)
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.other(torch.relu(self.one(x)) + x).mean((2, 3)))


class Twice(nn.Module):
    """Calls one norm twice."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(3), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.norm(torch.relu(self.norm(x)) + x).mean((2, 3)))


@pytest.mark.parametrize(("kind", "name"), [(TwoNames, "one"), (Twice, "norm")])
def test_a_norm_called_twice_normalises_each_call_and_keeps_the_mean_of_both(kind, name):
    module, x = scattered(kind()), images()
    network = Network(module)
    norm = getattr(module, name)
    assert network.norms == (name,)
    torch.testing.assert_close(network({}, x).logits, module(x))

    seen = []
    norm.register_forward_pre_hook(lambda layer, inputs: seen.append(batch_statistics(inputs[0])))
    old, expected = {n: t.clone() for n, t in norm.state_dict().items()}, module.train()(x)
    for rule, share in ((refreshed(), 1.0), (training(0.3), 0.3)):
        output = network({}, x, rule)
        torch.testing.assert_close(output.logits, expected)
        mean = (1 - share) * old["running_mean"] + share * (seen[0].mean + seen[1].mean) / 2
        torch.testing.assert_close(output.statistics[f"{name}.running_mean"], mean)
    var = (seen[0].var + seen[1].var) / 2
    torch.testing.assert_close(network({}, x, refreshed()).statistics[f"{name}.running_var"], var)

    kept = network({}, x, refreshed()).statistics
    norm.load_state_dict({**old, "running_mean": kept[f"{name}.running_mean"], "running_var": var})
    torch.testing.assert_close(network(kept, x).logits, module.eval()(x))


@pytest.mark.parametrize("kind", [TwoNames, Twice])
def test_methods_that_count_a_layer_once_refuse_one_called_twice(kind):
    network, x = Network(scattered(kind())), images(4)
    labels = torch.eye(3)[[0, 1, 2, 0]]
    with pytest.raises(UserError, match="called twice"):
        network({}, x, balanced(source_buffers(network, 3), {}, labels, 0.1))
    with pytest.raises(UserError, match="called twice"):
        Noise(1.0).release(network, torch.tensor(0), x)


def test_scales_that_two_norms_share_are_named_once():
    one, other = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    other.weight = one.weight
    module = scattered(nn.Sequential(one, other))
    network, x = Network(module), torch.rand(4, 3)
    assert network.affine == ("0.weight", "0.bias", "1.bias")
    with torch.no_grad():
        one.weight *= 2
    torch.testing.assert_close(network({"0.weight": one.weight}, x).logits, module(x))


class Shortcut(nn.Module):
    """Keeps a stem, and a second name for a layer of it."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.norm, self.head = self.stem[1], nn.Linear(4, 4)

    def forward(self, x):
        return self.head(self.stem(x).mean((2, 3)))


class Tied(nn.Module):
    """Has one linear layer under two names, whose matrix a third shares."""

    def __init__(self):
        super().__init__()
        self.one = self.other = nn.Linear(3, 3)
        self.third = nn.Linear(3, 3)
        self.third.weight = self.one.weight

    def forward(self, x):
        return self.third(self.other(torch.relu(self.one(x.mean((2, 3))))))


@pytest.mark.parametrize("vmapped", [False, True])
@pytest.mark.parametrize("kind", [Shortcut, TwoNames, Tied])
def test_shared_layers_are_the_sources_again_after_a_pass_with_own_tensors(kind, vmapped):
    module, x = scattered(kind()), images()
    network = Network(module)
    source = network({}, x).logits
    own = {name: tensor + 1 for name, tensor in network.state.items()}
    if vmapped:
        both = torch.stack([x, x])
        each = {name: torch.stack([network.state[name], tensor]) for name, tensor in own.items()}
        clients = torch.func.vmap(lambda own, x: network(own, x).logits)(each, both)
        torch.testing.assert_close(clients[0], source)
        changed = clients[1]
    else:
        changed = network(own, x).logits
    assert torch.equal(network({}, x).logits, source)
    with torch.no_grad():
        for parameter in {id(p): p for p in (*module.parameters(), *module.buffers())}.values():
            parameter += 1
    torch.testing.assert_close(changed, module(x))


def test_a_last_layer_whose_matrix_is_another_layers_is_no_classifier():
    module = scattered(Tied())
    network, x = Network(module), images()
    torch.testing.assert_close(network({}, x).logits, module(x))
    assert (network.classifier, network.has_features) == ("", False)


class Spare(nn.Sequential):
    """Has a norm that it does not call, as auxiliary heads are not called outside training."""

    def __init__(self):
        super().__init__(nn.BatchNorm1d(3))
        self.spare = nn.BatchNorm1d(2)

    def forward(self, x):
        return self[0](x)


def test_a_norm_that_is_not_called_keeps_its_statistics():
    network = Network(scattered(Spare()))
    own = {**network.statistics, "spare.running_mean": torch.tensor([5.0, 6.0])}
    kept = network(own, torch.rand(4, 3), refreshed()).statistics
    assert kept.keys() == network.statistics.keys()
    assert kept["spare.running_mean"].tolist() == [5, 6]


@pytest.mark.gpu
def test_short_passes_give_nearly_the_same(tiny_module):
    x = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0)).cuda()
    full, short = (Network(tiny_module, "cuda", bf16=short)({}, x, refreshed()) for short in (False, True))
    assert short.logits.dtype == short.features.dtype == torch.float32
    assert not torch.equal(short.logits, full.logits)
    torch.testing.assert_close(short.logits, full.logits, atol=0.05, rtol=0.05)
    torch.testing.assert_close(short.statistics, full.statistics, atol=0.02, rtol=0.02)


def test_stored_statistics_of_all_layers_are_folded_at_once():
    """Layers with another eps, or without scales, are of another group."""
    module = nn.Sequential(
        *(nn.BatchNorm2d(3), nn.BatchNorm2d(3, eps=0.1), nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2, affine=False)),
        *(nn.BatchNorm2d(2), nn.Flatten()),
    ).eval()
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            tensor.data = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(tensor.numel())) + 0.5
    network = Network(module)
    own = {name: tensor + 1 for name, tensor in network.statistics.items()}
    folded = network._fold(own)
    module.load_state_dict(own, strict=False)
    assert folded.keys() == {"0", "1", "3", "4"}
    for name, (scale, shift) in folded.items():
        layer, x = module.get_submodule(name), torch.rand(5, len(scale), 4, 4)
        torch.testing.assert_close(scale_and_shift(x, scale, shift), layer(x))


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten()), nn.Linear(144, 2)

    def forward(self, x):
        with torch.no_grad():
            features = self.body(x)
        return self.head(features)


class Checkpointed(Detached):
    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=False))


def quantised():
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.ao.quantization.quantize_dynamic(body, {nn.Linear}, dtype=torch.qint8)


@pytest.mark.filterwarnings("ignore")  # of torch, about quantised layers
@pytest.mark.parametrize("make", [Detached, Checkpointed, quantised])
def test_steps_along_gradients_that_there_are_none_of_are_refused(make):
    torch.manual_seed(0)
    x = images()
    with pytest.raises(UserError, match=r"adapter 'tent' takes steps along gradients .*: use adapter none, bn"):
        fedctta.adapt(make(), "tent")(x)
    fedctta.adapt(make(), "bn")(x)
    data = fedctta.Domains(("a",), {"a": x.numpy()}, {}, ("x", "y"))
    with pytest.raises(UserError, match="adapter 'tent' takes steps along gradients"):
        fedctta.run(dataset=data, model=make(), adapter="tent", aggregator="fedavg", clients=1, batch=2, stream="iid")


def test_a_model_without_weights_gives_no_gradients():
    assert not Network(nn.Flatten()).differentiable
    assert Network(nn.Linear(2, 2)).differentiable


def test_steps_are_of_real_numbers():
    class Odd(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.turn = nn.Parameter(torch.ones(2, dtype=torch.complex64))
            self.order = nn.Parameter(torch.arange(2), requires_grad=False)

    network = Network(Odd())
    assert list(network.parameters) == ["weight", "bias"]
    assert {"turn", "order"} <= network.state.keys()
