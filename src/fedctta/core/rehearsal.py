"""What a model changes while it runs, found by running it once on copies.

A pass must leave batch and model as they were: it is repeated with other weights, with gradients, and for many clients.
Some models write into their input (`x.sub_(mean)`) or into buffers of their own (a counter, a running range). From then
on each pass works on copies of what they write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedctta.core.outputs import Inputs, map_tensors, tensors_in


@dataclass(frozen=True)
class Written:
    """What a model writes: whether into its inputs, and the names of buffers."""

    inputs: bool = False
    buffers: tuple[str, ...] = ()

    def spare(self, x: Inputs) -> Inputs:
        """Return a batch that may be written into."""
        return map_tensors(Tensor.clone, x) if self.inputs else x

    def copies(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies of the buffers that are written."""
        return {name: state[name].clone() for name in self.buffers}


class Rehearsal:
    """Copies of a batch and of a model's buffers, which show after a pass what it has written."""

    def __init__(self, x: Inputs, buffers: Mapping[str, Tensor]) -> None:
        self.x = map_tensors(Tensor.clone, x)
        self.buffers = {name: tensor.clone() for name, tensor in buffers.items()}

    def written(self, after: Mapping[str, Tensor], before: Written) -> Written:
        """Return what was written in this pass or `before`; `after` has what the pass left in the buffers' places."""
        found = (n for n, t in self.buffers.items() if t._version or after[n] is not t or n in before.buffers)
        return Written(before.inputs or any(t._version for t in tensors_in(self.x)), tuple(found))
