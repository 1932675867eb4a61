"""One client's tensors are told from those of several."""

from __future__ import annotations

import torch

from fedctta.core.lone import is_lone


def test_a_client_is_alone_outside_of_vmap():
    asked = []
    torch.func.vmap(lambda x: asked.append(is_lone(x)) or x)(torch.ones(2))
    assert [is_lone(torch.ones(2)), *asked] == [True, False]
