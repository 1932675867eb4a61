"""What single clients have told of a domain, kept apart, so that a few lies among them change little.

Of domain k the server keeps the moments (`statistics_memory`) of the `VOICES` clients that were heard last: for client
p the mean m_p over its n_p batches, n_p at most `horizon` / `VOICES`. The domain's moments are

    sum_p n_p c(m_p) / sum_p n_p

with c as in the server's book (`books.counting`): no longer, in source deviations, than `clip` times the median of all
domains' parts, and pulled to the median of the domain's parts, if farther away than `clip` median distances. The part
of a client that tells lies fades when it tells the truth, and makes room when it falls silent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedctta.books.counting import clip_tables, clip_to_source
from fedctta.core.network import Tensors

VOICES = 8
HEED = 0.05  # beliefs below this are not remembered
NOBODY = -1


def remember_parts(
    rows: Tensor, heed: Tensor, replaced: Tensor, scale: Tensor, memory: Tensors, clip: float, horizon: float
) -> Tensors:
    """Return parts and moments[K, D] after rows[N, D] with the weights heed[N, K]; `scale`[D] is what they are in."""
    domains, width = heed.shape[1], rows.shape[1]
    if "voices" not in memory:
        nothing = rows.new_zeros(domains, VOICES)
        nobody = nothing.new_full(nothing.shape, NOBODY, dtype=torch.int64)
        memory = {
            "voices": nobody,
            "told": nothing,
            "heard": nobody,
            "parts": nothing.new_zeros(domains, VOICES, width),
        }
    voices, told, heard, parts = (memory[name].clone() for name in ("voices", "told", "heard", "parts"))
    now = heard.max() + 1
    voices[replaced], told[replaced], heard[replaced] = NOBODY, 0, NOBODY
    for i, k in (heed > HEED).nonzero().tolist():
        mine = voices[k] == i
        place = int(mine.int().argmax()) if bool(mine.any()) else int(heard[k].argmin())
        if voices[k, place] != i:
            told[k, place] = 0
        total = (told[k, place] + heed[i, k]).clamp_max(horizon / VOICES)
        parts[k, place].lerp_(rows[i] / scale, heed[i, k] / total.maximum(heed[i, k]))
        voices[k, place], told[k, place], heard[k, place] = i, total, now
    return {"voices": voices, "told": told, "heard": heard, "parts": parts, "moments": merge(parts, told, clip) * scale}


def merge(parts: Tensor, told: Tensor, clip: float) -> Tensor:
    """Return the moments[K, D] of all domains, given parts[K, P, D] and the batches told[K, P] that they rest on."""
    there = told > 0
    means = torch.full_like(parts, torch.nan)
    means[there] = clip_to_source(parts[there], clip)
    means = clip_tables(means, there.sum(1), clip).masked_fill(~there[..., None], 0)
    share = told / told.sum(1, keepdim=True).clamp_min(1e-8)
    return (share[..., None] * means).sum(1)
