"""A kernel for every client gives what a loop over clients gives, forwards and backwards."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fedctta.core import convolution
from fedctta.core.clients import Client, by_vmap, stack
from fedctta.core.convolution import NARROW, Form, convolve
from fedctta.core.network import Network
from fedctta.core.norms import training
from fedctta.models import build


def gradients(function, x, kernel):
    """Outputs and gradients of sum(sin(y))."""

    def loss(kernel, x):
        y = function(x, kernel)
        return y.sin().sum(), y

    return torch.func.grad(loss, argnums=(0, 1), has_aux=True)(kernel, x)


def compare(x, kernel, form):
    """Vmapped, with a kernel for every client, against torch's own convolution of each: as on a GPU, and on a CPU."""
    for one_by_one in (False, True):
        with patch.object(convolution, "_one_by_one", lambda x, answer=one_by_one: answer):
            compare_one_way(x, kernel, form)


def compare_one_way(x, kernel, form):
    (of_kernel, of_x), y = torch.func.vmap(lambda x, k: gradients(lambda x, k: convolve(x, k, form), x, k))(x, kernel)

    def plain(x, kernel):
        return F.conv2d(x, kernel, None, *form.window, form.groups)

    for i in range(len(x)):
        (one_kernel, one_x), one = gradients(plain, x[i], kernel[i])
        torch.testing.assert_close(y[i], one)
        torch.testing.assert_close(of_x[i], one_x)
        torch.testing.assert_close(of_kernel[i], one_kernel)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_form_of_convolution(data):
    draw = data.draw
    clients, images, groups = (draw(st.integers(1, 3)) for _ in range(3))
    kernel, stride, dilation = (draw(st.integers(1, 3)) for _ in range(3))
    padding = draw(st.integers(0, 2))
    inputs, outputs = (groups * draw(st.integers(1, 3)) for _ in range(2))
    height, width = (draw(st.integers(dilation * (kernel - 1) + 1, 9)) for _ in range(2))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    random = {"generator": generator, "dtype": torch.float64}
    x = torch.randn(clients, images, inputs, height, width, **random)
    w = torch.randn(clients, outputs, inputs // groups, kernel, kernel, **random)
    compare(x, w, Form((stride,) * 2, (padding,) * 2, (dilation,) * 2, groups))


@pytest.mark.parametrize("channels", [NARROW, NARROW + 1])
def test_narrow_and_wide_groups(channels):
    x = torch.randn(2, 2, 2 * channels, 4, 4, dtype=torch.float64)
    w = torch.randn(2, 4, channels, 3, 3, dtype=torch.float64)
    compare(x, w, Form((1, 1), (1, 1), (1, 1), 2))


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(("channels", "stride", "side"), [(64, 1, 3), (64, 2, 3), (32, 1, 3), (64, 1, 1)])
def test_groups_stay_where_tensor_cores_are_fast(channels, stride, side, rounded):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 2, channels, 4, 4, generator=generator)
    w = torch.randn(2, 64, channels, side, side, generator=generator)
    form = Form((stride,) * 2, (side // 2,) * 2, (1, 1), 1)
    with torch.backends.cudnn.flags(allow_tf32=rounded):
        assert form.multiplies(x, w) == (not rounded or channels < 64 or stride > 1 or side == 1)
        compare(x.double(), w.double(), form)
        y = torch.func.vmap(lambda x, k: convolve(x, k, form))(x, w)
    each = torch.stack([F.conv2d(a, b, None, stride, side // 2) for a, b in zip(x, w, strict=True)])
    torch.testing.assert_close(y, each, atol=1e-3, rtol=1e-4)


def test_what_clients_share_may_be_images_or_the_kernel():
    x, w = torch.randn(2, 3, 5, 5, dtype=torch.float64), torch.randn(4, 3, 1, 1, dtype=torch.float64)
    form = Form((1, 1), (0, 0), (1, 1), 1)
    kernels, batches = torch.stack([w, 2 * w]), torch.stack([x, 2 * x])
    y = F.conv2d(x, w)
    of_one_batch = torch.func.vmap(lambda k: convolve(x, k, form))(kernels)
    of_one_kernel = torch.func.vmap(lambda b: convolve(b, w, form))(batches)
    torch.testing.assert_close(of_one_batch, torch.stack([y, 2 * y]))
    torch.testing.assert_close(of_one_kernel, torch.stack([y, 2 * y]))


@pytest.mark.parametrize("form", [Form((1, 1), (1, 1), (1, 1), 1), Form((2, 2), (0, 0), (1, 1), 3)])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_gradients_of_images_with_a_kernel_that_clients_share(form, one_by_one):
    """The first and the second."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 2, 3, 6, 6, generator=generator, dtype=torch.float64)
    w = torch.randn(6, 3 // form.groups, 3, 3, generator=generator, dtype=torch.float64)

    def slope(convolution, x):
        return torch.func.grad(lambda x: convolution(x).sin().sum())(x)

    def both(convolution):
        second = torch.func.grad(lambda x: slope(convolution, x).square().sum())
        return torch.func.vmap(partial(slope, convolution))(x), torch.func.vmap(second)(x)

    with patch.object(convolution, "_one_by_one", lambda x: one_by_one):
        found = both(lambda x: convolve(x, w, form))
    torch.testing.assert_close(found, both(lambda x: F.conv2d(x, w, None, *form.window, form.groups)))


@pytest.mark.parametrize("own", [False, True])
def test_views_of_images_within_clients(own):
    """Clients over gradients over views: views share the client's kernel, or each has one."""
    form = Form((1, 1), (0, 0), (1, 1), 1)
    x = torch.randn(2, 3, 2, 4, 5, 5, dtype=torch.float64)  # clients, views, images
    w = torch.randn(2, 6, 4, 1, 1, dtype=torch.float64)
    scales = torch.tensor([1.0, 2, 3], dtype=torch.float64)

    def loss(convolution):
        def of(kernel, views):
            def view(v, scale):
                return convolution(v, kernel * scale if own else kernel).sin().sum()

            return torch.func.vmap(view)(views, scales).square().sum()

        return torch.func.vmap(torch.func.grad(of, argnums=(0, 1)))

    ours = loss(lambda x, k: convolve(x, k, form))(w, x)
    torch.testing.assert_close(ours, loss(lambda x, k: F.conv2d(x, k))(w, x))


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["resnet8-w16", "resnext29"])
def test_a_network_of_own_kernels_on_a_gpu(model):
    """A step on all weights of four clients equals that of torch's own convolutions, client by client."""
    torch.manual_seed(0)
    source = build(model, 10).eval().double()  # in double precision, since rounding may turn a ReLU on or off
    own, plain = Network(source, "cuda"), Network(source, "cuda")
    for layer in plain._module.modules():
        layer.__dict__.pop("_conv_forward", None)
    x = torch.rand(4, 8, 3, 32, 32, device="cuda", dtype=torch.float64)
    clients = stack(Client(plain.parameters), 4).own

    def gradients(network):
        return torch.func.grad(lambda own, batch: network(own, batch, training(0.1)).logits.square().mean())

    together = by_vmap(gradients(own))(clients, x)
    for i in range(4):
        alone = gradients(plain)({name: tensor[i] for name, tensor in clients.items()}, x[i])
        for name, gradient in alone.items():
            torch.testing.assert_close(together[name][i], gradient, atol=1e-9, rtol=1e-6)
