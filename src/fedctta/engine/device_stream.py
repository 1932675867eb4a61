"""A stream's images on the GPU: bytes, uploaded once, gathered there.

`slot` reads a round as a function of a round number that is itself on the device, so that a captured round reads its
own data and the host has nothing to do. The images of the data set used last stay for the next run that shares them.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedctta.data.domains import Domains
from fedctta.models.inputs import as_tensor, read_batch
from fedctta.streams import ABSENT, Stream

SHARE = 0.25  # of the device's free memory that images may take


class Batches(NamedTuple):
    """What a round reads: x[A, B, ...] of the A active clients, labels[A, B] for metrics only, domain[N]."""

    x: Tensor
    labels: Tensor
    domain: Tensor


class DeviceStream:
    """A stream, with one label per image, whose images are on the device."""

    def __init__(self, stream: Stream, data: Domains, device: torch.device) -> None:
        domain, client, visit = np.broadcast_arrays(stream.domain.clip(0), np.arange(stream.clients), stream.visit)
        starts = np.cumsum([0, *data.sizes])[:-1]
        places = starts[domain][..., None] + stream.samples[stream.place(domain, client, visit.clip(0))]
        self._images = _upload(data, device)
        self._places = torch.from_numpy(places.astype(np.int32)).to(device)  # [T, N, B], among all domains' images
        # labels [n] that all domains share, or those of every batch, [T, N, B]
        alike = data.shared and stream.counted is None
        labels = data.labels_of(data.names[0]) if alike else stream.truth(domain, client, visit.clip(0))
        self._labels = torch.from_numpy(labels).to(device)
        self._domain = torch.from_numpy(stream.domain).to(device)
        self._absent = stream.domain == ABSENT

    def slot(self, when: Tensor) -> Batches:
        """Read round when[1], in which all clients are present."""
        labels = self._labels if self._labels.ndim == 1 else self._labels.index_select(0, when)[0]
        return self._read(self._places.index_select(0, when)[0], labels, self._domain.index_select(0, when)[0])

    def read(self, t: int) -> Batches:
        """Read round t."""
        places, labels = self._places[t], self._labels if self._labels.ndim == 1 else self._labels[t]
        if self._absent[t].any():
            there = torch.from_numpy(np.flatnonzero(~self._absent[t])).to(places.device)
            places, labels = places[there], labels if labels.ndim == 1 else labels[there]
        return self._read(places, labels, self._domain[t])

    def _read(self, places: Tensor, labels: Tensor, domain: Tensor) -> Batches:
        images = self._images.index_select(0, places.flatten())
        if labels.ndim == 1:
            labels = labels.index_select(0, places.flatten() % len(labels))
        return Batches(read_batch(images.view(*places.shape, *images.shape[1:])), labels.view_as(places), domain)


def put_on_device(stream: Stream, device: torch.device) -> DeviceStream | None:
    """Upload a stream's images to a GPU, if there is one, they fit, and every image has one label."""
    data = stream.data
    if device.type != "cuda" or not isinstance(data, Domains):
        return None
    size = 12 * stream.visit.size * stream.batch
    if _find_kept(data, device) is None:
        _forget()  # before free memory is looked at
        size += sum(data.images[name].nbytes for name in data.names)
    return DeviceStream(stream, data, device) if size <= SHARE * torch.cuda.mem_get_info(device)[0] else None


class _Kept(NamedTuple):
    data: weakref.ref[Domains]
    images: Tensor


_kept: list[_Kept] = []


def _upload(data: Domains, device: torch.device) -> Tensor:
    """Images[sum of n_d, ...] of all domains, one after another; those of the same data set are used again."""
    if (known := _find_kept(data, device)) is not None:
        return known
    _forget()
    images = torch.cat([as_tensor(np.asarray(data.images[name])).to(device) for name in data.names])
    _kept.append(_Kept(weakref.ref(data, lambda _: _kept.clear()), images))
    return images


def _find_kept(data: Domains, device: torch.device) -> Tensor | None:
    """Return the images of a data set that are on the device already."""
    return next((kept.images for kept in _kept if kept.data() is data and kept.images.device == device), None)


def _forget() -> None:
    """Free the images of the data set before."""
    if _kept:
        _kept.clear()
        torch.cuda.empty_cache()
