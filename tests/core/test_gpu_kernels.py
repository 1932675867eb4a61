"""Where kernels are used, and how arguments of vmapped functions are brought into one form."""

from __future__ import annotations

import sys

import pytest
import torch

from fedctta.core.gpu_kernels import KernelFunction, bring_to_front, can_fuse, find_obstacle, has_kernels

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_a_cpu_has_no_use_for_kernels():
    assert not can_fuse(torch.zeros(2))


@pytest.fixture
def untried():
    """Let kernels be tried anew, now and after the test."""
    find_obstacle.cache_clear()
    yield
    find_obstacle.cache_clear()


def test_the_obstacle_is_told_in_one_line(untried, monkeypatch):
    monkeypatch.setitem(sys.modules, "fedctta.core.norm_kernels", None)
    assert "norm_kernels" in find_obstacle()
    assert not has_kernels()


@pytest.mark.triton
def test_kernels_are_tried_inside_a_gradient_too(untried):
    found = []

    def loss(x):
        found.append(has_kernels())
        return x.sum()

    torch.func.vmap(torch.func.grad(loss))(torch.ones(2, 3, device=DEVICE))
    assert found == [True]


@pytest.mark.triton
def test_kernels_serve_full_precision():
    assert can_fuse(torch.zeros(2, device=DEVICE))
    assert not can_fuse(torch.zeros(2, device=DEVICE, dtype=torch.bfloat16))


@pytest.mark.gpu
def test_kernels_serve_a_gpu_and_no_cpu():
    assert can_fuse(torch.zeros(2, device="cuda"))
    assert not can_fuse(torch.zeros(2))


def test_clients_come_first_and_what_they_share_is_repeated():
    class Info:
        batch_size = 3

    own, shared = torch.rand(2, 3), torch.rand(4)
    first, second, third = bring_to_front(Info, (1, None, None), (own, shared, None))
    assert torch.equal(first, own.T)
    assert second.shape == (3, 4)
    assert third is None


class Scale(KernelFunction):
    @staticmethod
    def forward(x, by, power):
        assert x.shape == by.shape, "clients' axes are in front of both"
        return x * by**power, x.sum(-1)


def test_a_function_of_kernels_has_all_axes_in_front():
    x, by = torch.rand(4, 3, 2), torch.rand(4)
    scaled, sums = torch.func.vmap(torch.func.vmap(lambda a, b: Scale.apply(a, b.expand_as(a), 2), (0, None)), (1, 0))(
        x.transpose(0, 1), by
    )
    torch.testing.assert_close(scaled, x * by[:, None, None] ** 2)
    torch.testing.assert_close(sums, x.sum(-1))
