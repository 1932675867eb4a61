"""Kernels of FedTSA's training on a GPU, in Triton; import this file where a tensor is on one, and nowhere else.

They compute `attention` and its gradient for many blocks: over time one program has a client of a round, over clients
a slot of a round, so that scores, masks and softmaxes stay in registers. All tensors lie without gaps; what is longer
than a tile is read tile by tile. With P = X W, values V = [X, Q_s, K_s] and gradients G of what either attention gives,

    forward     A = softmax(Q_t K_t^T / sqrt(D)), mixed = A V           S = softmax(Q K^T / sqrt(D)), output = S X^TA
    backward    dA = G V^T, dV = A^T G                                  dZ = A * (dA - sum(A * dA)) / sqrt(D)
                dQ = dZ K, dK = dZ^T Q                                  likewise over clients
"""

from __future__ import annotations

import math
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

RAW, BERNOULLI, GIVEN = range(3)  # without masks; also with the paper's masks; with masks that are given, alone
PRECISION = "ieee"  # of products: factors are not rounded


class Tiling(NamedTuple):
    """How many numbers of an indicator a program has at a time, and by how many warps."""

    chunk: int
    warps: int


TILINGS = dict.fromkeys(("time_forward", "time_backward", "clients_forward", "clients_backward"), Tiling(32, 4))


@triton.jit
def _softmax(scores, seen):
    """Return rows of softmaxed scores, zeros where no key is seen."""
    scores = tl.where(seen, scores, float("-inf"))
    power = tl.exp(scores - tl.max(scores, 1)[:, None])
    return tl.where(seen, power / tl.sum(power, 1)[:, None], 0.0)


@triton.jit
def _softmax_gradient(weights, slope, scale):
    return weights * (slope - tl.sum(weights * slope, 1)[:, None]) * scale


@triton.jit
def _load_layer(projected, bias, at, d, there, inside):
    """Load a tile of X W + b."""
    layer = tl.load(projected + at, mask=there, other=0.0)
    return layer + tl.load(bias + d, mask=inside, other=0.0)[None, :]


@triton.jit
def _load_value(x, projected, bias, at, wide, d, there, inside, PART: tl.constexpr, D: tl.constexpr):
    """Load a tile of X, Q_s or K_s."""
    if PART == 0:
        value = tl.load(x + at, mask=there, other=0.0)
    else:
        value = _load_layer(projected + (PART + 1) * D, bias + (PART + 1) * D, wide, d, there, inside)
    return value


@triton.jit
def _time_forward(
    projected, block, x, known, noise, keep, raw, masked, mixed, mixed_masked, clients, slots, scale,
    D: tl.constexpr, T: tl.constexpr, CHUNK: tl.constexpr, MODE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(0).to(tl.int64)
    one, n = client // clients, client % clients
    bias = block + (one * (D + 1) + D) * (4 * D)
    t = tl.arange(0, T)
    row = t < slots
    first = client * slots + t
    scores = tl.zeros([T, T], tl.float32)
    for begin in range(0, D, CHUNK):
        d = begin + tl.arange(0, CHUNK)
        there = row[:, None] & (d < D)[None, :]
        wide = first[:, None] * (4 * D) + d[None, :]
        q = _load_layer(projected, bias, wide, d, there, d < D)
        k = _load_layer(projected + D, bias + D, wide, d, there, d < D)
        scores = tl.dot(q, tl.trans(k), scores, input_precision=PRECISION)
    scores *= scale
    arrived = tl.load(known + first, mask=row, other=0) != 0
    inside = row[:, None] & row[None, :]
    seen = inside & (arrived[None, :] | (t[:, None] == t[None, :]))
    pair = first[:, None] * slots + t[None, :]
    if MODE != 2:
        a = _softmax(scores, seen)
        tl.store(raw + pair, a, mask=inside)
    if MODE == 1:
        chosen = tl.load(noise + pair, mask=inside, other=1.0) < a
        tl.store(keep + pair, chosen.to(tl.uint8), mask=inside)
        b = _softmax(tl.where(chosen, scores, 0.0), seen)
    if MODE == 2:
        b = _softmax(scores, seen & (tl.load(keep + pair, mask=inside, other=0) != 0))
    if MODE != 0:
        tl.store(masked + pair, b, mask=inside)
    to = ((one * slots + t) * clients + n) * (3 * D)
    for begin in range(0, D, CHUNK):
        d = begin + tl.arange(0, CHUNK)
        there = row[:, None] & (d < D)[None, :]
        at = first[:, None] * D + d[None, :]
        wide = first[:, None] * (4 * D) + d[None, :]
        for part in tl.static_range(3):
            value = _load_value(x, projected, bias, at, wide, d, there, d < D, part, D)
            place = to[:, None] + part * D + d[None, :]
            if MODE != 2:
                tl.store(mixed + place, tl.dot(a, value, input_precision=PRECISION), mask=there)
            if MODE != 0:
                tl.store(mixed_masked + place, tl.dot(b, value, input_precision=PRECISION), mask=there)


@triton.jit
def _time_backward(
    projected, block, x, keep, raw, masked, slope, slope_masked, of_projected, clients, slots, scale,
    D: tl.constexpr, T: tl.constexpr, CHUNK: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(0).to(tl.int64)
    one, n = client // clients, client % clients
    bias = block + (one * (D + 1) + D) * (4 * D)
    t = tl.arange(0, T)
    row = t < slots
    first = client * slots + t
    inside = row[:, None] & row[None, :]
    pair = first[:, None] * slots + t[None, :]
    a = tl.load(raw + pair, mask=inside, other=0.0)
    of_a = tl.zeros([T, T], tl.float32)
    if MASKED:
        b = tl.load(masked + pair, mask=inside, other=0.0)
        of_b = tl.zeros([T, T], tl.float32)
    of = ((one * slots + t) * clients + n) * (3 * D)
    for begin in range(0, D, CHUNK):
        d = begin + tl.arange(0, CHUNK)
        there = row[:, None] & (d < D)[None, :]
        at = first[:, None] * D + d[None, :]
        wide = first[:, None] * (4 * D) + d[None, :]
        for part in tl.static_range(3):
            value = _load_value(x, projected, bias, at, wide, d, there, d < D, part, D)
            place = of[:, None] + part * D + d[None, :]
            g = tl.load(slope + place, mask=there, other=0.0)
            of_a = tl.dot(g, tl.trans(value), of_a, input_precision=PRECISION)
            if MASKED:
                h = tl.load(slope_masked + place, mask=there, other=0.0)
                of_b = tl.dot(h, tl.trans(value), of_b, input_precision=PRECISION)
            if part != 0:
                of_value = tl.dot(tl.trans(a), g, input_precision=PRECISION)
                if MASKED:
                    of_value = tl.dot(tl.trans(b), h, of_value, input_precision=PRECISION)
                tl.store(of_projected + (part + 1) * D + wide, of_value, mask=there)
    of_scores = _softmax_gradient(a, of_a, scale)
    if MASKED:
        kept = tl.load(keep + pair, mask=inside, other=0) != 0
        of_scores += tl.where(kept, _softmax_gradient(b, of_b, scale), 0.0)
    for begin in range(0, D, CHUNK):
        d = begin + tl.arange(0, CHUNK)
        there = row[:, None] & (d < D)[None, :]
        wide = first[:, None] * (4 * D) + d[None, :]
        q = _load_layer(projected, bias, wide, d, there, d < D)
        k = _load_layer(projected + D, bias + D, wide, d, there, d < D)
        tl.store(of_projected + wide, tl.dot(of_scores, k, input_precision=PRECISION), mask=there)
        tl.store(of_projected + D + wide, tl.dot(tl.trans(of_scores), q, input_precision=PRECISION), mask=there)


@triton.jit
def _score_clients(
    mixed, first, row, D: tl.constexpr, N: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    scores = tl.zeros([N, N], tl.float32)
    for begin in range(0, D, CHUNK):
        d = begin + tl.arange(0, CHUNK)
        there = row[:, None] & (d < D)[None, :]
        at = first[:, None] * (3 * D) + d[None, :]
        q = tl.load(mixed + D + at, mask=there, other=0.0)
        k = tl.load(mixed + 2 * D + at, mask=there, other=0.0)
        scores = tl.dot(q, tl.trans(k), scores, input_precision=PRECISION)
    return scores


@triton.jit
def _clients_forward(
    mixed, mixed_masked, x, known, noise, keep, raw, masked, squares, squares_masked, clients, slots, scale,
    D: tl.constexpr, N: tl.constexpr, CHUNK: tl.constexpr, MODE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    one, t = slot // slots, slot % slots
    n = tl.arange(0, N)
    row = n < clients
    first = slot * clients + n
    source = (one * clients + n) * slots + t
    arrived = tl.load(known + source, mask=row, other=0) != 0
    inside = row[:, None] & row[None, :]
    seen = inside & (arrived[None, :] | (n[:, None] == n[None, :]))
    pair = first[:, None] * clients + n[None, :]
    if MODE != 2:
        scores = _score_clients(mixed, first, row, D, N, CHUNK, PRECISION) * scale
        a = _softmax(scores, seen)
        tl.store(raw + pair, a, mask=inside)
    else:
        a = tl.load(raw + pair, mask=inside, other=0.0)
    if MODE != 0:
        scores = _score_clients(mixed_masked, first, row, D, N, CHUNK, PRECISION) * scale
        if MODE == 1:
            chosen = (tl.load(noise + pair, mask=inside, other=1.0) < a) | (n[:, None] == n[None, :])
            tl.store(keep + pair, chosen.to(tl.uint8), mask=inside)
            b = _softmax(tl.where(chosen, scores, 0.0), seen)
        else:
            shared = (one * clients + n)[:, None] * clients + n[None, :]
            b = _softmax(scores, seen & (tl.load(keep + shared, mask=inside, other=0) != 0))
        tl.store(masked + pair, b, mask=inside)
    square = tl.zeros([N], tl.float32)
    square_masked = tl.zeros([N], tl.float32)
    for begin in range(0, D, CHUNK):
        d = begin + tl.arange(0, CHUNK)
        there = row[:, None] & (d < D)[None, :]
        at = first[:, None] * (3 * D) + d[None, :]
        output = tl.dot(a, tl.load(mixed + at, mask=there, other=0.0), input_precision=PRECISION)
        if MODE != 2:
            apart = output - tl.load(x + source[:, None] * D + d[None, :], mask=there, other=0.0)
            square += tl.sum(apart * apart, 1)
        if MODE != 0:
            apart = output - tl.dot(b, tl.load(mixed_masked + at, mask=there, other=0.0), input_precision=PRECISION)
            square_masked += tl.sum(apart * apart, 1)
    if MODE != 2:
        tl.store(squares + slot, tl.sum(tl.where(arrived, square, 0.0), 0))
    if MODE != 0:
        tl.store(squares_masked + slot, tl.sum(tl.where(arrived, square_masked, 0.0), 0))


@triton.jit
def _clients_backward(
    mixed, mixed_masked, x, known, keep, raw, masked, factors, factors_masked, slope, slope_masked,
    clients, slots, scale,
    D: tl.constexpr, N: tl.constexpr, CHUNK: tl.constexpr, MODE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    one, t = slot // slots, slot % slots
    n = tl.arange(0, N)
    row = n < clients
    first = slot * clients + n
    source = (one * clients + n) * slots + t
    arrived = tl.load(known + source, mask=row, other=0) != 0
    inside = row[:, None] & row[None, :]
    pair = first[:, None] * clients + n[None, :]
    a = tl.load(raw + pair, mask=inside, other=0.0)
    of_a = tl.zeros([N, N], tl.float32)
    factor = tl.load(factors + one)
    if MODE != 0:
        b = tl.load(masked + pair, mask=inside, other=0.0)
        of_b = tl.zeros([N, N], tl.float32)
        factor_masked = tl.load(factors_masked + one)
    for begin in range(0, D, CHUNK):
        d = begin + tl.arange(0, CHUNK)
        there = row[:, None] & (d < D)[None, :]
        counts = there & arrived[:, None]
        at = first[:, None] * (3 * D) + d[None, :]
        value = tl.load(mixed + at, mask=there, other=0.0)
        output = tl.dot(a, value, input_precision=PRECISION)
        g = (output - tl.load(x + source[:, None] * D + d[None, :], mask=there, other=0.0)) * factor
        if MODE != 0:
            value_masked = tl.load(mixed_masked + at, mask=there, other=0.0)
            h = (output - tl.dot(b, value_masked, input_precision=PRECISION)) * factor_masked
            h = tl.where(counts, h, 0.0)
            g += h
            of_b = tl.dot(-h, tl.trans(value_masked), of_b, input_precision=PRECISION)
            tl.store(slope_masked + at, tl.dot(tl.trans(b), -h, input_precision=PRECISION), mask=there)
        g = tl.where(counts, g, 0.0)
        of_a = tl.dot(g, tl.trans(value), of_a, input_precision=PRECISION)
        tl.store(slope + at, tl.dot(tl.trans(a), g, input_precision=PRECISION), mask=there)
    of_scores = _softmax_gradient(a, of_a, scale)
    if MODE != 0:
        of_masked = _softmax_gradient(b, of_b, scale)
        if MODE == 1:  # a masked score is 0, whatever it was; where keys are excluded, b is 0 already
            of_masked = tl.where(tl.load(keep + pair, mask=inside, other=0) != 0, of_masked, 0.0)
    for begin in range(0, D, CHUNK):
        d = begin + tl.arange(0, CHUNK)
        there = row[:, None] & (d < D)[None, :]
        at = first[:, None] * (3 * D) + d[None, :]
        q = tl.load(mixed + D + at, mask=there, other=0.0)
        k = tl.load(mixed + 2 * D + at, mask=there, other=0.0)
        tl.store(slope + D + at, tl.dot(of_scores, k, input_precision=PRECISION), mask=there)
        tl.store(slope + 2 * D + at, tl.dot(tl.trans(of_scores), q, input_precision=PRECISION), mask=there)
        if MODE != 0:
            q = tl.load(mixed_masked + D + at, mask=there, other=0.0)
            k = tl.load(mixed_masked + 2 * D + at, mask=there, other=0.0)
            tl.store(slope_masked + D + at, tl.dot(of_masked, k, input_precision=PRECISION), mask=there)
            tl.store(slope_masked + 2 * D + at, tl.dot(tl.trans(of_masked), q, input_precision=PRECISION), mask=there)


class Pass(NamedTuple):
    """What a pass through many blocks leaves: softmaxed scores over time [R, N, T, T] and over clients [R, T, N, N].

    Mixed[R, T, N, 3 D] is X^TA and its Q and K over clients, squares[R, T] of what the loss compares.
    """

    temporal: Tensor
    spatial: Tensor
    mixed: Tensor
    squares: Tensor


class Kept(NamedTuple):
    """Masks as bytes, [R, N, T, T] and [R, T, N, N], or [R, 1, N, N] if they are given."""

    temporal: Tensor
    spatial: Tensor


def forward(
    mode: int,
    block: Tensor,
    projected: Tensor,
    x: Tensor,
    known: Tensor,
    noise: tuple[Tensor, Tensor],
    keep: Kept,
    raw: Pass,
    masked: Pass,
) -> None:
    """Write one pass through blocks[R, D + 1, 4 D] or both, for projected[R, N T, 4 D] = X W without biases."""
    many, clients, slots, dim = x.shape
    sizes = clients, slots, 1 / math.sqrt(dim)
    chunk, warps = _tile("time_forward", dim)
    _time_forward[(many * clients,)](
        *(projected, block, x, known, noise[0], keep.temporal, raw.temporal, masked.temporal, raw.mixed, masked.mixed),
        *sizes, D=dim, T=_cover(slots), CHUNK=chunk, MODE=mode, PRECISION=PRECISION, num_warps=warps,
    )  # fmt: skip
    chunk, warps = _tile("clients_forward", dim)
    _clients_forward[(many * slots,)](
        *(raw.mixed, masked.mixed, x, known, noise[1], keep.spatial, raw.spatial, masked.spatial),
        *(raw.squares, masked.squares, *sizes),
        D=dim, N=_cover(clients), CHUNK=chunk, MODE=mode, PRECISION=PRECISION, num_warps=warps,
    )  # fmt: skip


def backward(
    mode: int,
    block: Tensor,
    projected: Tensor,
    x: Tensor,
    known: Tensor,
    keep: Kept,
    raw: Pass,
    masked: Pass,
    factors: tuple[Tensor, Tensor],
) -> Tensor:
    """Return the gradient of projected[R, N T, 4 D].

    Factors[R] times the differences between raw output and X, and between both outputs, are the loss's slopes.
    """
    many, clients, slots, dim = x.shape
    sizes = clients, slots, 1 / math.sqrt(dim)
    slope, of_projected = raw.mixed.new_empty(raw.mixed.shape), projected.new_empty(projected.shape)
    slope_masked = slope if mode == RAW else raw.mixed.new_empty(raw.mixed.shape)
    chunk, warps = _tile("clients_backward", dim)
    _clients_backward[(many * slots,)](
        *(raw.mixed, masked.mixed, x, known, keep.spatial, raw.spatial, masked.spatial),
        *(*factors, slope, slope_masked, *sizes),
        D=dim, N=_cover(clients), CHUNK=chunk, MODE=mode, PRECISION=PRECISION, num_warps=warps,
    )  # fmt: skip
    chunk, warps = _tile("time_backward", dim)
    _time_backward[(many * clients,)](
        *(projected, block, x, keep.temporal, raw.temporal, masked.temporal, slope, slope_masked, of_projected),
        *sizes, D=dim, T=_cover(slots), CHUNK=chunk, MASKED=mode != RAW, PRECISION=PRECISION, num_warps=warps,
    )  # fmt: skip
    return of_projected


def _tile(kernel: str, dim: int) -> Tiling:
    """Return the tiling of a kernel, not wider than an indicator."""
    return TILINGS[kernel]._replace(chunk=min(TILINGS[kernel].chunk, _cover(dim)))


def _cover(count: int) -> int:
    """Return the side of a tile that holds as many; products have sides of 16 at least."""
    return max(16, int(triton.next_power_of_2(count)))
