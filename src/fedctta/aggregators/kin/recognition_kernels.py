"""Triton kernels of kin's server that recognise domains: which uploads count, and what clients believe.

The equations are those of `belief`. Clients are i, domains k, numbers of a look d. A block that is longer than what it
holds is masked. Where a kernel needs a sum over all clients, the one before it leaves sums over its blocks.
"""

import triton
import triton.language as tl


@triton.jit
def hear_kernel(
    look, spread, images, trust, rows, centre, fresh,
    heed, new, usual, typical,
    n, channels, tolerance,
    D: tl.constexpr, TINY: tl.constexpr, BLOCK: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Find the weight of each upload, whose statistics are new, the usual variance[D], and the typical error.

    Programs 0 to D - 1 find the median of one number each, bit by bit: numbers above 0 are ordered as their bits are.
    All others look at R clients' statistics each.
    """
    pid = tl.program_id(0)
    if pid < D:
        i = tl.arange(0, BLOCK)
        inside = i < n
        size = tl.zeros([BLOCK], tl.float32)
        for d in tl.static_range(D):
            size += tl.abs(tl.load(look + i * D + d, mask=inside, other=0.0))
            size += tl.sqrt(tl.load(spread + i * D + d, mask=inside, other=0.0))
        count = tl.load(images + i, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(trust + i, mask=inside, other=0).to(tl.float32)
        heard = inside & (size < float("inf")) & (count >= 1) & (weight > 0)
        mine = tl.load(spread + i * D + pid, mask=heard, other=0.0)
        bits = tl.where(mine > 0, mine, 0.0).to(tl.int32, bitcast=True)
        voices = tl.sum(heard.to(tl.int32), 0)
        below = (voices - 1) // 2
        found = 0 * voices
        for step in range(31):
            tried = found | (1 << (30 - step))
            less = tl.sum((heard & (bits < tried)).to(tl.int32), 0)
            found = tl.where(less <= below, tried, found)
        tl.store(usual + pid, tl.where(voices > 0, found.to(tl.float32, bitcast=True), 1.0))
        if pid == 0:
            weight = tl.where(heard, weight, 0.0)
            error = 1.0 / tl.where(heard, count, 1.0) + tolerance
            tl.store(heed + i, weight, mask=inside)
            total = tl.maximum(tl.sum(weight, 0), TINY)
            tl.store(typical, tl.sum(weight * error, 0) / total)
    else:
        j = (pid - D) * R + tl.arange(0, R)
        there = j < n
        total = tl.zeros([R], tl.float32)
        for begin in range(0, channels, C):
            c = begin + tl.arange(0, C)
            both = there[:, None] & (c < channels)[None, :]
            at = rows + j.to(tl.int64)[:, None] * (2 * channels) + c[None, :]
            mean = tl.load(at, mask=both, other=0.0)
            mean -= tl.load(centre + c, mask=c < channels, other=0.0)[None, :]
            mean = tl.where(both, mean, 0.0)
            var = tl.load(at + channels, mask=both, other=0.0)
            total += tl.sum(mean + (var + mean * mean), 1)
        now = tl.load(fresh + j, mask=there, other=0.0) == 1
        tl.store(new + j, (now & (tl.abs(total) < float("inf"))).to(tl.float32), mask=there)


@triton.jit
def believe_kernel(
    look, images, heed, usual, old, weight, centres, widths,
    belief, unknown,
    n, domains, tolerance, hazard, surprise,
    D: tl.constexpr, TINY: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Find b[N, K + 1] before a domain is founded, and b_i(0) of those who are heard."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    inside, real = i < n, k < domains
    heard = tl.load(heed + i, mask=inside, other=0.0) > 0
    held = tl.load(weight + k, mask=real, other=0.0)
    count = tl.where(heard, tl.load(images + i, mask=inside, other=1.0), 1.0)
    recent = 1.0 / (held + 1)
    apart = tl.zeros([N, K], tl.float64)
    wider = tl.zeros([K], tl.float32)
    for d in tl.static_range(D):
        typical = tl.load(usual + d)
        own = tl.load(widths + k * D + d, mask=real, other=1.0)
        width = tl.where(recent < 0.5, own + recent * (typical - own), typical - (typical - own) * (1 - recent)) + TINY
        wider += tl.log(width / (typical + TINY))
        said = tl.where(heard, tl.load(look + i * D + d, mask=inside, other=0.0), 0.0)
        centre = tl.load(centres + k * D + d, mask=real, other=0.0)
        away = said[:, None].to(tl.float64) - centre[None, :].to(tl.float64)
        apart += away * away * (1.0 / width.to(tl.float64))[None, :]
    single = 1.0 / count + tolerance
    error = single[:, None] + (single - tolerance)[:, None] / tl.maximum(held, 1.0)[None, :]
    misfit = wider[None, :] + apart.to(tl.float32) / error + D * tl.log(error)
    met = (held > 0) & real
    anew = hazard / (tl.sum(met.to(tl.float32), 0) + 1)
    at = i * (domains + 1)
    both = inside[:, None] & real[None, :]
    before = tl.load(old + at[:, None] + k[None, :], mask=both, other=0.0)
    prior = (1 - hazard) * before + tl.where(met, anew, 0.0)[None, :]
    score = tl.where(both & (prior > 0), tl.log(tl.where(prior > 0, prior, 1.0)) - 0.5 * misfit, float("-inf"))
    strange = tl.log((1 - hazard) * tl.load(old + at + domains, mask=inside, other=1.0) + anew) - surprise
    top = tl.maximum(tl.max(score, 1), strange)
    score = tl.exp(score - top[:, None])
    strange = tl.exp(strange - top)
    total = tl.sum(score, 1) + strange
    tl.store(belief + at[:, None] + k[None, :], score / total[:, None], mask=both)
    strange = strange / total
    tl.store(belief + at + domains, strange, mask=inside)
    tl.store(unknown + i, tl.where(heard, strange, 0.0), mask=inside)


@triton.jit
def compare_kernel(
    look, heed, unknown, usual, typical,
    score,
    n, strange,
    D: tl.constexpr, TINY: tl.constexpr, BLOCK: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Find b_i(0) sum_j a_ij b_j(0): how many peers a client in an unknown domain has.

    Where no client is rather in an unknown domain than in any, none founds one, and nothing is compared.
    """
    i = tl.program_id(0) * N + tl.arange(0, N)
    inside = i < n
    every = tl.arange(0, BLOCK)
    strangest = tl.max(tl.load(unknown + every, mask=every < n, other=0.0), 0)
    peers = tl.zeros([N], tl.float32)
    if strangest > 0.5:
        heard = tl.load(heed + i, mask=inside, other=0.0) > 0
        mean = tl.load(typical)
        odds = 0.5 * D * tl.log(strange / mean)
        for begin in range(0, n, M):
            j = begin + tl.arange(0, M)
            others = tl.load(heed + j, mask=j < n, other=0.0) > 0
            doubt = tl.load(unknown + j, mask=j < n, other=0.0)
            apart = tl.zeros([N, M], tl.float32)
            for d in tl.static_range(D):
                mine = tl.where(heard, tl.load(look + i * D + d, mask=inside, other=0.0), 0.0)
                theirs = tl.where(others, tl.load(look + j * D + d, mask=j < n, other=0.0), 0.0)
                away = mine[:, None] - theirs[None, :]
                apart += away * away * (1.0 / (2 * mean * tl.load(usual + d) + TINY))
            like = 1 / (1 + tl.exp(0.5 * apart - odds))
            peers += tl.sum(like * doubt[None, :], 1)
        peers = peers * tl.load(unknown + i, mask=inside, other=0.0)
    tl.store(score + i, peers, mask=inside)


@triton.jit
def found_kernel(
    look, spread, heed, new, unknown, usual, typical, score, belief, old, weight,
    after, takes, alone, replaced, sums, looks,
    n, domains, strange,
    D: tl.constexpr, TINY: tl.constexpr, BLOCK: tl.constexpr, N: tl.constexpr, K: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Let the client with most peers found a domain; leave sums over N clients of beliefs, and of looks with them."""
    pid = tl.program_id(0)
    every = tl.arange(0, BLOCK)
    best = tl.load(score + every, mask=every < n, other=-1.0)
    leader = tl.min(tl.where(best == tl.max(best, 0), every, n - 1), 0)
    needed = tl.load(unknown + leader) > 0.5
    k = tl.arange(0, K)
    real = k < domains
    held = tl.load(weight + k, mask=real, other=float("inf"))
    place = tl.min(tl.where((held == tl.min(held, 0)) & real, k, K), 0)
    here = k == tl.where(needed, place, -1)

    i = pid * N + tl.arange(0, N)
    inside = i < n
    trust = tl.load(heed + i, mask=inside, other=0.0)
    heard = trust > 0
    mean = tl.load(typical)
    follows = tl.load(heed + leader) > 0
    apart = tl.zeros([N], tl.float32)
    for d in tl.static_range(D):
        lead = tl.where(follows, tl.load(look + leader * D + d), 0.0)
        away = tl.where(heard, tl.load(look + i * D + d, mask=inside, other=0.0), 0.0) - lead
        apart += away * away * (1.0 / (2 * mean * tl.load(usual + d) + TINY))
    like = 0.5 * D * tl.log(strange / mean) > 0.5 * apart
    members = tl.where(like, tl.load(unknown + i, mask=inside, other=0.0), 0.0) * needed.to(tl.float32)

    at = i * (domains + 1)
    both = inside[:, None] & real[None, :]
    known = tl.load(belief + at[:, None] + k[None, :], mask=both, other=0.0)
    known = tl.where(here[None, :], members[:, None], known)
    rest = tl.load(belief + at + domains, mask=inside, other=1.0) - members
    total = tl.maximum(tl.sum(known, 1) + rest, TINY)
    known, rest = known / total[:, None], rest / total
    before = tl.load(old + at[:, None] + k[None, :], mask=both, other=0.0)
    kept = tl.where(heard[:, None] | here[None, :], known, before)
    tl.store(after + at[:, None] + k[None, :], kept, mask=both)
    tl.store(
        after + at + domains, tl.where(heard, rest, tl.load(old + at + domains, mask=inside, other=1.0)), mask=inside
    )
    known = tl.where(heard[:, None] & both, known, 0.0)
    tl.store(takes + i[:, None] * domains + k[None, :], known, mask=both)
    tl.store(alone + i, 1 - tl.sum(known, 1), mask=inside)
    tl.store(sums + pid * (3 * K) + k, tl.sum(known, 0))
    known = known * trust[:, None]
    tl.store(sums + pid * (3 * K) + K + k, tl.sum(known, 0))
    d = tl.arange(0, L)
    both = heard[:, None] & (d < D)[None, :]
    at = looks + pid * (2 * K * L) + k[:, None] * L + d[None, :]
    said = tl.load(look + i[:, None] * D + d[None, :], mask=both, other=0.0)
    tl.store(at, tl.dot(tl.trans(known), said, input_precision="ieee"))
    said = tl.load(spread + i[:, None] * D + d[None, :], mask=both, other=0.0)
    tl.store(at + K * L, tl.dot(tl.trans(known), said, input_precision="ieee"))
    known = known * tl.load(new + i, mask=inside, other=0.0)[:, None]
    tl.store(sums + pid * (3 * K) + 2 * K + k, tl.sum(known, 0))
    if pid == 0:
        tl.store(replaced + k, here.to(tl.int8), mask=real)
