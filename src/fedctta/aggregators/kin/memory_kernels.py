"""Triton kernels of kin's server that remember and answer: domains' statistics and looks, W, and what is sent.

The equations are those of `statistics_memory` and `common.groups`. Clients are i, domains k, channels of statistics c.
A block that is longer than what it holds is masked. The grid of a kernel may have several parts, which do different
work side by side.
"""

import triton
import triton.language as tl


@triton.jit
def _add_up(sums, which: tl.constexpr, blocks, K: tl.constexpr, B: tl.constexpr):
    """Return one of the three sums over all clients, given those over blocks of clients."""
    total = tl.zeros([K], tl.float32)
    for begin in range(0, blocks, B):
        block = begin + tl.arange(0, B)
        at = block[:, None] * (3 * K) + which * K + tl.arange(0, K)[None, :]
        total += tl.sum(tl.load(sums + at, mask=(block < blocks)[:, None], other=0.0), 0)
    return total


@triton.jit
def _grow(came, old, replaced, domains, horizon, fade, TINY: tl.constexpr, K: tl.constexpr):
    """Return n[K] after this round's batches, what to divide their weights by, and the part that is old."""
    k = tl.arange(0, K)
    real = k < domains
    gone = tl.load(replaced + k, mask=real, other=1) != 0
    total = tl.minimum(came + fade * tl.where(gone, 0.0, tl.load(old + k, mask=real, other=0.0)), horizon)
    whole = tl.maximum(tl.maximum(total, came), TINY)
    return total, whole, 1 - came / whole


@triton.jit
def remember_kernel(
    rows, centre, heed, new, takes, replaced, sums, looks,
    old_weight, old_look, old_spread, old_batches, old_moments,
    gives, weight, centres, widths, batches, moments, parts,
    n, domains, channels, blocks, columns, splits, span, horizon, fade,
    D: tl.constexpr, TINY: tl.constexpr, N: tl.constexpr, K: tl.constexpr, C: tl.constexpr, G: tl.constexpr,
    L: tl.constexpr, B: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Add this round's batches to what is remembered: of C channels per program, of looks, and W's columns.

    With many clients several programs, each with `span` of them, share C channels, and `gather_kernel` adds them up.
    """
    pid = tl.program_id(0)
    if pid < columns * splits:
        _remember_statistics(
            pid, rows, centre, heed, new, takes, replaced, sums, old_batches, old_moments, batches, moments, parts,
            n, domains, channels, blocks, columns, span, horizon, fade, TINY, N, K, C, B, WHOLE,
        )  # fmt: skip
    elif pid == columns * splits:
        _remember_looks(
            replaced, sums, looks, old_weight, old_look, old_spread, weight, centres, widths,
            domains, blocks, horizon, fade, D, TINY, K, L, B,
        )  # fmt: skip
    else:
        _share(pid - columns * splits - 1, takes, sums, gives, n, domains, blocks, TINY, K, G, B)


@triton.jit
def _remember_statistics(
    pid, rows, centre, heed, new, takes, replaced, sums, old_batches, old_moments, batches, moments, parts,
    n, domains, channels, blocks, columns, span, horizon, fade,
    TINY: tl.constexpr, N: tl.constexpr, K: tl.constexpr, C: tl.constexpr, B: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    column, split = pid % columns, pid // columns
    k, c = tl.arange(0, K), column * C + tl.arange(0, C)
    real, there = k < domains, c < channels
    middle = tl.load(centre + c, mask=there, other=0.0)
    first = tl.zeros([K, C], tl.float32)
    second = tl.zeros([K, C], tl.float32)
    for begin in range(split * span, tl.minimum(split * span + span, n), N):
        i = begin + tl.arange(0, N)
        inside = i < n
        part = tl.load(takes + i[None, :] * domains + k[:, None], mask=inside[None, :] & real[:, None], other=0.0)
        trusted = tl.load(heed + i, mask=inside, other=0.0) * tl.load(new + i, mask=inside, other=0.0)
        part = part * trusted[None, :]
        own = inside[:, None] & there[None, :]
        place = rows + i.to(tl.int64)[:, None] * (2 * channels) + c[None, :]
        mean = tl.load(place, mask=own, other=0.0) - middle[None, :]
        square = tl.load(place + channels, mask=own, other=0.0) + mean * mean
        mean = tl.where(tl.abs(mean) < float("inf"), mean, 0.0)
        square = tl.where(tl.abs(square) < float("inf"), square, 0.0)
        first += tl.dot(part, mean, input_precision="ieee")
        second += tl.dot(part, square, input_precision="ieee")
    at = k[:, None] * (2 * channels) + c[None, :]
    both = real[:, None] & there[None, :]
    if WHOLE:
        came = _add_up(sums, 2, blocks, K, B)
        total, whole, kept = _grow(came, old_batches, replaced, domains, horizon, fade, TINY, K)
        first = tl.load(old_moments + at, mask=both, other=0.0) * kept[:, None] + first / whole[:, None]
        second = tl.load(old_moments + at + channels, mask=both, other=0.0) * kept[:, None] + second / whole[:, None]
        tl.store(moments + at, first, mask=both)
        tl.store(moments + at + channels, second, mask=both)
        if pid == 0:
            tl.store(batches + k, total, mask=real)
    else:
        mine = parts + split * domains * (2 * channels) + at
        tl.store(mine, first, mask=both)
        tl.store(mine + channels, second, mask=both)


@triton.jit
def _remember_looks(
    replaced, sums, looks, old_weight, old_look, old_spread, weight, centres, widths,
    domains, blocks, horizon, fade,
    D: tl.constexpr, TINY: tl.constexpr, K: tl.constexpr, L: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    k, d = tl.arange(0, K), tl.arange(0, L)
    came = _add_up(sums, 1, blocks, K, B)
    total, whole, kept = _grow(came, old_weight, replaced, domains, horizon, fade, TINY, K)
    first = tl.zeros([K, L], tl.float32)
    second = tl.zeros([K, L], tl.float32)
    for block in range(blocks):
        place = looks + block * (2 * K * L) + k[:, None] * L + d[None, :]
        first += tl.load(place)
        second += tl.load(place + K * L)
    at = k[:, None] * D + d[None, :]
    both = (k < domains)[:, None] & (d < D)[None, :]
    first = tl.load(old_look + at, mask=both, other=0.0) * kept[:, None] + first / whole[:, None]
    second = tl.load(old_spread + at, mask=both, other=0.0) * kept[:, None] + second / whole[:, None]
    tl.store(centres + at, first, mask=both)
    tl.store(widths + at, second, mask=both)
    tl.store(weight + k, total, mask=k < domains)


@triton.jit
def _share(
    pid, takes, sums, gives, n, domains, blocks, TINY: tl.constexpr, K: tl.constexpr, G: tl.constexpr, B: tl.constexpr
):  # fmt: skip
    k, i = tl.arange(0, K), pid * G + tl.arange(0, G)
    came = tl.maximum(_add_up(sums, 0, blocks, K, B), TINY)
    both = (k < domains)[:, None] & (i < n)[None, :]
    part = tl.load(takes + i[None, :] * domains + k[:, None], mask=both, other=0.0)
    tl.store(gives + k[:, None] * n + i[None, :], part / came[:, None], mask=both)


@triton.jit
def gather_kernel(
    replaced, sums, parts, old_batches, old_moments,
    batches, moments,
    domains, channels, blocks, splits, horizon, fade,
    TINY: tl.constexpr, K: tl.constexpr, C: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Add up what the programs of `remember_kernel` leave of C columns."""
    pid = tl.program_id(0)
    k = tl.arange(0, K)
    real = k < domains
    came = _add_up(sums, 2, blocks, K, B)
    total, whole, kept = _grow(came, old_batches, replaced, domains, horizon, fade, TINY, K)
    c = pid * C + tl.arange(0, C)
    at = k[:, None] * (2 * channels) + c[None, :]
    both = real[:, None] & (c < 2 * channels)[None, :]
    found = tl.zeros([K, C], tl.float32)
    for split in range(splits):
        found += tl.load(parts + split * domains * (2 * channels) + at, mask=both, other=0.0)
    found = tl.load(old_moments + at, mask=both, other=0.0) * kept[:, None] + found / whole[:, None]
    tl.store(moments + at, found, mask=both)
    if pid == 0:
        tl.store(batches + k, total, mask=real)


@triton.jit
def restrict_kernel(
    takes, gives, alone, receive, trust,
    took, gave, left,
    n, domains,
    N: tl.constexpr, K: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Weight the columns of W by trust, and renormalise its rows; those who do not receive keep their model."""
    k, i = tl.arange(0, K), tl.program_id(0) * N + tl.arange(0, N)
    real, inside = k < domains, i < n
    given = tl.zeros([K], tl.float32)
    for begin in range(0, n, M):
        j = begin + tl.arange(0, M)
        theirs = tl.load(gives + k[:, None] * n + j[None, :], mask=real[:, None] & (j < n)[None, :], other=0.0)
        given += tl.sum(theirs * tl.load(trust + j, mask=j < n, other=0).to(tl.float32)[None, :], 1)
    weight = tl.load(trust + i, mask=inside, other=0).to(tl.float32)
    place, both = k[:, None] * n + i[None, :], real[:, None] & inside[None, :]
    tl.store(gave + place, tl.load(gives + place, mask=both, other=0.0) * weight[None, :], mask=both)
    at, own = i[:, None] * domains + k[None, :], inside[:, None] & real[None, :]
    mine = tl.load(takes + at, mask=own, other=0.0)
    rest = tl.load(alone + i, mask=inside, other=0.0) * weight
    total = rest + tl.sum(mine * given[None, :], 1)
    mixes = (tl.load(receive + i, mask=inside, other=0) != 0) & (total > 0)
    share = tl.where(mixes, 1 / tl.maximum(total, 1e-12), 0.0)
    tl.store(took + at, mine * share[:, None], mask=own)
    tl.store(left + i, tl.where(mixes, rest * share, 1.0), mask=inside)


@triton.jit
def recall_kernel(
    belief, batches, moments, centre, fresh, receive, mixed, places,
    sent,
    n, domains, channels, width,
    N: tl.constexpr, K: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Find the statistics to send: of N clients and C channels per program.

    `mixed` has rows of `width`, and what is sent in column c lies in its column places[c].
    """
    i = tl.program_id(0) * N + tl.arange(0, N)
    c = tl.program_id(1) * C + tl.arange(0, C)
    k = tl.arange(0, K)
    inside, real, there = i < n, k < domains, c < channels
    own, held, both = inside[:, None] & real[None, :], real[:, None] & there[None, :], inside[:, None] & there[None, :]
    row = i.to(tl.int64)[:, None]
    mean_place = tl.load(places + c, mask=there, other=0)
    var_place = tl.load(places + channels + c, mask=there, other=0)
    known = tl.load(belief + i[:, None] * (domains + 1) + k[None, :], mask=own, other=0.0)
    at = k[:, None] * (2 * channels) + c[None, :]
    first = tl.load(moments + at, mask=held, other=0.0)
    second = tl.load(moments + at + channels, mask=held, other=0.0)
    mean = tl.load(mixed + row * width + mean_place[None, :], mask=both, other=0.0)
    var = tl.load(mixed + row * width + var_place[None, :], mask=both, other=0.0)
    answers = (tl.load(fresh + i, mask=inside, other=0.0) == 1) & (tl.load(receive + i, mask=inside, other=0) != 0)
    remembered = tl.load(batches + k, mask=real, other=0.0) > 0
    known = tl.where(answers[:, None] & remembered[None, :], known, 0.0)
    rest = 1 - tl.sum(known, 1)
    second = tl.maximum(second - first * first, 0.0)
    first = first + tl.load(centre + c, mask=there, other=0.0)[None, :]
    at = row * (2 * channels) + c[None, :]
    tl.store(sent + at, tl.dot(known, first, input_precision="ieee") + rest[:, None] * mean, mask=both)
    tl.store(sent + at + channels, tl.dot(known, second, input_precision="ieee") + rest[:, None] * var, mask=both)
