"""Kernels for a device's book on a GPU, in Triton; import this file where a tensor is on one, and nowhere else.

There are N clients with K domains each, whose rows of sums lie one after another. What `notebook` and `recognition`
compute of a few numbers a client takes more than a hundred operations in torch, and here one program a client. Rows are
read and written once, some columns a program.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

DOMAINS, COLUMNS = 32, 128  # of a tile of rows
CLIENTS = 4  # of a program that looks at one row each
WARPS = 4


@triton.jit
def _mix(x):
    """Compute `randomness: _hash`, of the low 32 bits."""
    bits = x.to(tl.uint32)
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x2C1B3C6D
    bits = (bits ^ (bits >> 16)) * 0x297A2D39
    return (bits ^ (bits >> 15)).to(tl.int64)


@triton.jit
def _fade(age, rate):
    return tl.exp2(tl.maximum(age, 0).to(tl.float32) * rate)


@triton.jit
def _sum_up(part, book, kept, left, k, c, there, p2, b2):
    """Return the sums of both parts of a book, of domains k and columns c."""
    own = tl.load(part + k * p2 + c, mask=there, other=0.0)
    return left * tl.load(book + k * b2 + c, mask=there, other=0.0) + kept * own


@triton.jit(do_not_specialize=["domains", "images", "short", "p1", "p2", "b1", "b2"])
def _recognise(
    looks, part, book, changed, name, held, belief, usual, last, received, time, batches, key,
    new_belief, new_usual, new_last, new_name, new_held, new_time, new_batches, shorts, part_left, book_left,
    hazard, tolerance, unknown, rate, domains, images, short, p1, p2, b1, b2,
    LATELY: tl.constexpr, FLOOR: tl.constexpr, LEAST: tl.constexpr, PULL: tl.constexpr, TINY: tl.constexpr,
    LOOK: tl.constexpr, NUMBERS: tl.constexpr, ALONE: tl.constexpr,
    K: tl.constexpr, B: tl.constexpr, D: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0)
    k, d, i = tl.arange(0, K), tl.arange(0, D), tl.arange(0, B)
    known, wanted = k < domains, d < NUMBERS
    part += n.to(tl.int64) * p1
    book += n.to(tl.int64) * b1
    now_time, now_batches = tl.load(time + n) + images, tl.load(batches + n) + 1
    tl.store(new_time + n, now_time)
    tl.store(new_batches + n, now_batches)

    # what the batch looks like, and how looks usually spread
    seen = (i < images)[:, None] & wanted[None, :]
    look = tl.load(looks + (n * images + i[:, None]) * NUMBERS + d[None, :], mask=seen, other=0.0)
    now = tl.sum(look, axis=0) / images
    if not ALONE:
        away = tl.where(seen, look - now[None, :], 0.0)
        spread = tl.sum(away * away, axis=0) / (images - 1)
        before = now_batches - 1
    else:
        away = now - tl.load(last + n * NUMBERS + d, mask=wanted, other=0.0)
        spread = away * away / 2
        before = now_batches - 2
    wide = tl.load(usual + n * NUMBERS + d, mask=wanted, other=1.0)
    share = 1.0 / tl.minimum(tl.maximum(before + 1, 1), LATELY).to(tl.float32)
    near = wide + share * (spread - wide)
    far = spread - (spread - wide) * (1.0 - share)
    wide = tl.where(before < 0, wide, tl.where(share < 0.5, near, far))
    tl.store(new_usual + n * NUMBERS + d, wide, mask=wanted)
    tl.store(new_last + n * NUMBERS + d, now, mask=wanted)
    wide = tl.where(wanted, tl.maximum(wide, LEAST), 1.0)

    # what the book knows
    holds = tl.load(held + n * domains + k, mask=known, other=0.0)
    kept = _fade(now_time - tl.load(changed + n * domains + k, mask=known, other=0), rate)
    left = _fade(now_time - tl.load(received + n), rate) * holds
    row, c, inside = k[:, None], d[None, :], known[:, None] & wanted[None, :]
    count = _sum_up(part, book, kept, left, k, 0, known, p2, b2)
    mean = _sum_up(part, book, kept[:, None], left[:, None], row, LOOK + c, inside, p2, b2)
    square = _sum_up(part, book, kept[:, None], left[:, None], row, LOOK + NUMBERS + c, inside, p2, b2)
    some = tl.maximum(count, TINY)[:, None]
    mean = mean / some
    var = square / some - mean * mean

    # which domain the batch is of
    width = (count[:, None] * var + PULL * wide[None, :]) / (count + PULL)[:, None]
    width = tl.maximum(width, FLOOR * wide[None, :])
    error = 1.0 / images + tolerance + 1.0 / tl.maximum(count, 1.0)
    away = now[None, :] - mean
    apart = tl.sum(tl.where(wanted[None, :], away * away / width, 0.0), axis=1)
    wider = tl.sum(tl.where(wanted[None, :], tl.log(width / wide[None, :]), 0.0), axis=1)
    misfit = apart / error + wider + NUMBERS * tl.log(error)
    there = known & (count > 0)
    chance = hazard / (tl.sum(there.to(tl.float32), axis=0) + 1.0)
    old = tl.load(belief + n * (domains + 1) + k, mask=known, other=0.0)
    strange = tl.log(tl.maximum((1 - hazard) * tl.load(belief + n * (domains + 1) + domains) + chance, TINY)) - unknown
    odds = tl.log(tl.maximum((1 - hazard) * old + chance, TINY)) - 0.5 * misfit
    odds = tl.where(there, odds, float("-inf"))
    most = tl.maximum(tl.max(odds, axis=0), strange)
    sure, none = tl.exp(odds - most), tl.exp(strange - most)
    total = tl.sum(sure, axis=0) + none
    sure, none = sure / total, none / total

    # a new domain in place of the least known
    begins = none > 0.5
    least = tl.argmin(tl.where(known, count, float("inf")), axis=0)
    here = (k == least) & (k < tl.where(begins, domains, 0))
    sure = tl.where(here, none, sure)
    none = tl.where(begins, 0.0, none)
    total = tl.sum(tl.where(known, sure, 0.0), axis=0) + none
    tl.store(new_belief + n * (domains + 1) + k, sure / total, mask=known)
    tl.store(new_belief + n * (domains + 1) + domains, none / total)
    secret = _mix(now_time)
    low = _mix(tl.load(key + n) + secret)
    named = tl.where(now_time > 0, ((_mix(low + secret) << 30) | (low >> 2)) + 1, 0)
    old_name = tl.load(name + n * domains + k, mask=known, other=0)
    tl.store(new_name + n * domains + k, tl.where(here, named, old_name), mask=known)
    tl.store(new_held + n * domains + k, tl.where(here, 0.0, holds), mask=known)
    kept, left = tl.where(here, 0.0, kept), tl.where(here, 0.0, left)
    tl.store(part_left + n * domains + k, kept, mask=known)
    tl.store(book_left + n * domains + k, left, mask=known)
    c = tl.arange(0, S)[None, :]
    inside = known[:, None] & (c < short)
    rows = _sum_up(part, book, kept[:, None], left[:, None], row, c, inside, p2, b2)
    tl.store(shorts + (n * domains + row) * short + c, rows, mask=inside)


@triton.jit(do_not_specialize=["domains", "size", "column", "i1", "m1", "m2", "p1", "p2", "b1", "b2"])
def _blend(
    belief, weights, measured, part_left, book_left, part, book, images, known, batch, prior,
    domains, size, column, i1, m1, m2, p1, p2, b1, b2, DOMAINS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    worth = tl.load(images + n * i1)
    total = tl.zeros([COLUMNS], tl.float32)
    covered = 0.0
    for first in range(0, domains, DOMAINS):
        k = first + tl.arange(0, DOMAINS)
        there = k < domains
        b = tl.load(belief + n * (domains + 1) + k, mask=there, other=0.0)
        a = tl.load(weights + n * (domains + 1) + k, mask=there, other=0.0)
        share = b * a / (tl.load(measured + n * m1 + k * m2, mask=there, other=0.0) + worth + prior)
        share = tl.where(there, share, 0.0)
        covered += tl.sum(share, axis=0)
        own = share * tl.load(part_left + n * domains + k, mask=there, other=0.0)
        theirs = share * tl.load(book_left + n * domains + k, mask=there, other=0.0)
        inside = (c < size)[None, :]
        at = n.to(tl.int64) * p1 + k[:, None] * p2 + column + c[None, :]
        row = tl.load(part + at, mask=(own != 0)[:, None] & inside, other=0.0)
        at = n.to(tl.int64) * b1 + k[:, None] * b2 + column + c[None, :]
        other = tl.load(book + at, mask=(theirs != 0)[:, None] & inside, other=0.0)
        total += tl.sum(own[:, None] * row + theirs[:, None] * other, axis=0)
    tl.store(known + n * size + c, total, mask=c < size)
    rest = tl.load(belief + n * (domains + 1) + domains) * tl.load(weights + n * (domains + 1) + domains)
    if tl.program_id(1) == 0:
        tl.store(batch + n, worth * (covered + rest / (worth + prior)))


@triton.jit(do_not_specialize=["domains", "size", "p1", "p2", "r1"])
def _add(
    part, row, belief, kept, changed, time, new_part, new_changed, heed, domains, size, p1, p2, r1,
    DOMAINS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0)
    k = tl.program_id(2) * DOMAINS + tl.arange(0, DOMAINS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = k < domains
    b = tl.load(belief + n * (domains + 1) + k, mask=known, other=0.0)
    there = b > heed
    left = tl.where(there, tl.load(kept + n * domains + k, mask=known, other=0.0), 1.0)
    inside = known[:, None] & (c < size)[None, :]
    old = tl.load(part + n.to(tl.int64) * p1 + k[:, None] * p2 + c[None, :], mask=inside, other=0.0)
    more = tl.load(row + n * r1 + c, mask=c < size, other=0.0)
    new = old * left[:, None] + tl.where(there, b, 0.0)[:, None] * more[None, :]
    tl.store(new_part + (n.to(tl.int64) * domains + k[:, None]) * size + c[None, :], new, mask=inside)
    if tl.program_id(1) == 0:
        since = tl.load(changed + n * domains + k, mask=known, other=0)
        tl.store(new_changed + n * domains + k, tl.where(there, tl.load(time + n), since), mask=known)


@triton.jit(do_not_specialize=["clients", "domains", "p1", "p2", "b1", "b2"])
def _lack(
    part, book, changed, held, belief, weights, received, time, batches, compare, measure,
    rate, nearly, review_rate, soon, survey, enough, clients, domains, p1, p2, b1, b2,
    GAP: tl.constexpr, IMAGES: tl.constexpr, SCORED: tl.constexpr, MEASURED: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    there = n < clients
    known = there[:, None] & (k < domains)[None, :]
    b = tl.load(belief + n[:, None] * (domains + 1) + k[None, :], mask=known, other=-1.0)
    here = tl.argmax(b, axis=1)
    now = tl.load(time + n, mask=there, other=0)
    kept = _fade(now - tl.load(changed + n * domains + here, mask=there, other=0), rate)
    left = _fade(now - tl.load(received + n, mask=there, other=0), rate)
    left = left * tl.load(held + n * domains + here, mask=there, other=0.0)
    part += n.to(tl.int64) * p1
    book += n.to(tl.int64) * b1
    images = _sum_up(part, book, kept, left, here, IMAGES, there, p2, b2)
    scored = _sum_up(part, book, kept, left, here, SCORED, there, p2, b2)
    measured = _sum_up(part, book, kept, left, here, MEASURED, there, p2, b2)
    turn = (tl.load(batches + n, mask=there, other=0) % GAP == 0) | (scored == 0)
    few = turn & (scored < review_rate * tl.log2(1 + images / 32))
    tl.store(compare + n, few, mask=there)
    rare = tl.load(weights + n * (domains + 1) + here, mask=there, other=0.0) <= nearly
    wanted = tl.maximum(tl.minimum(survey * images, enough), tl.minimum(images, soon))
    tl.store(measure + n, rare & (measured < wanted), mask=there)


def recognise(
    looks: Tensor, rows: tuple[Tensor, Tensor], small: list[Tensor], new: list[Tensor], numbers: tuple[float, ...],
    constants: dict[str, float], short: int,
) -> None:  # fmt: skip
    """Write what `fused_notebook: recognise_fused` returns to `new`; all but the rows lie without gaps."""
    part, book = rows
    clients, images, count = looks.shape
    domains = part.shape[1]
    _recognise[(clients,)](
        *(looks, *rows, *small, *new, *numbers, domains, images, short, *part.stride()[:2], *book.stride()[:2]),
        **constants, NUMBERS=count, ALONE=images == 1,
        K=max(2, triton.next_power_of_2(domains)), B=max(2, triton.next_power_of_2(images)),
        D=triton.next_power_of_2(count), S=triton.next_power_of_2(short), num_warps=WARPS,
    )  # fmt: skip


def blend(
    small: list[Tensor], measured: Tensor, rows: tuple[Tensor, Tensor], images: Tensor, prior: float, columns: slice
) -> tuple[Tensor, Tensor]:
    """Return known[N, columns] and the batch's weight[N]; `small` are belief, weights, and what is left of both."""
    (belief, weights, *left), (part, book) = small, rows
    clients, domains = part.shape[:2]
    size = columns.stop - columns.start
    known, batch = part.new_empty(clients, size), part.new_empty(clients)
    _blend[(clients, max(1, triton.cdiv(size, COLUMNS)))](
        *(belief, weights, measured, *left, part, book, images, known, batch, prior, domains, size, columns.start),
        *(images.stride(0), *measured.stride(), *part.stride()[:2], *book.stride()[:2]),
        DOMAINS=DOMAINS, COLUMNS=COLUMNS, num_warps=WARPS,
    )  # fmt: skip
    return known, batch


def add(part: Tensor, row: Tensor, small: list[Tensor], heed: float) -> tuple[Tensor, Tensor]:
    """Return the rows and when they changed; `small` are belief, what is kept, when they changed, and the time."""
    clients, domains, size = part.shape
    changed = small[2]
    new_part, new_changed = part.new_empty(part.shape), changed.new_empty(changed.shape)
    _add[(clients, triton.cdiv(size, COLUMNS), triton.cdiv(domains, DOMAINS))](
        part, row, *small, new_part, new_changed, heed, domains, size, *part.stride()[:2], row.stride(0),
        DOMAINS=DOMAINS, COLUMNS=COLUMNS, num_warps=WARPS,
    )  # fmt: skip
    return new_part, new_changed


def lack(
    rows: tuple[Tensor, Tensor], small: list[Tensor], found: Tensor, numbers: tuple[float, ...], gap: int,
    columns: tuple[int, ...],
) -> None:  # fmt: skip
    """Write whether a batch is to be compared, and whether it is to be measured, to found[2, N]."""
    part, book = rows
    clients, domains = part.shape[:2]
    of = dict(zip(("IMAGES", "SCORED", "MEASURED"), columns, strict=True))
    _lack[(triton.cdiv(clients, CLIENTS),)](
        *(part, book, *small, *found.unbind(), *numbers, clients, domains, *part.stride()[:2], *book.stride()[:2]),
        GAP=gap, **of, N=CLIENTS, K=max(2, triton.next_power_of_2(domains)), num_warps=1,
    )  # fmt: skip
