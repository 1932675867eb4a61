"""What BatchNorm statistics give away: images are rebuilt from the statistics that a client uploads.

    python benchmarks/leakage.py [--batches 1 10 64] [--steps 600] [--picture leakage.png] [--dataset cifar10]

The attacker knows the model and, of one batch, the mean and variance of every channel at every BatchNorm layer: what
adapter bn uploads. It draws noise and lets Adam change it until the statistics agree, total variation penalised.
Each true image is then compared with the rebuilt image that fits it best (one to one). Peak signal-to-noise ratio in dB
and structural similarity (8x8 windows), means over the batch, beside three yardsticks: other test images in place of
rebuilt ones, the mean of 1000 other test images, and the true batch's own mean, which no attacker is told.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from time import process_time

import numpy as np
import torch
from PIL import Image
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from fedctta.core.network import Network, Tensors
from fedctta.core.norms import refreshed
from fedctta.data.catalogue import load
from fedctta.files import whole
from fedctta.models.inputs import to_input
from fedctta.models.zoo import load_model
from fedctta.uploads.privacy import Noise

SMOOTHNESS = 2e-3
SHOWN = 10


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """-10 log10 of the mean squared error of images in [0, 1], over the last three axes."""
    return -10 * (a - b).square().mean((-3, -2, -1)).clamp_min(1e-10).log10()


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity of images[n, C, H, W] in 8x8 windows, every second one, with the usual constants."""

    def mean(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 8, 2)

    ma, mb = mean(a), mean(b)
    va, vb, cab = mean(a * a) - ma**2, mean(b * b) - mb**2, mean(a * b) - ma * mb
    c1, c2 = 0.01**2, 0.03**2
    return ((2 * ma * mb + c1) * (2 * cab + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))).mean((1, 2, 3))


def total_variation(x: Tensor) -> Tensor:
    return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()


def mismatch(found: Tensors, told: Tensors, source: Tensors) -> Tensor:
    """Mean squared difference of means and of deviations, in deviations of the source, over layers."""
    total = torch.zeros(())
    for name, target in told.items():
        if name.endswith("running_mean"):
            deviation = source[name.replace("mean", "var")].clamp_min(1e-6).sqrt()
            total = total + ((found[name] - target) / deviation).square().mean()
        else:
            deviation = source[name].clamp_min(1e-6).sqrt()
            apart = found[name].clamp_min(1e-8).sqrt() - target.clamp_min(1e-8).sqrt()
            total = total + (apart / deviation).square().mean()
    return total / len(told)


def rebuild(network: Network, told: Tensors, shape: Sequence[int], steps: int, seed: int) -> tuple[Tensor, float]:
    """Return images whose statistics are as told, and how far they still are."""
    raw = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).mul(0.3).requires_grad_()
    adam = torch.optim.Adam([raw], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for _ in range(steps):
        x = raw.sigmoid()
        miss = mismatch(network({}, x, refreshed(1.0)).statistics, told, network.statistics)
        adam.zero_grad()
        (miss + SMOOTHNESS * total_variation(x)).backward()
        adam.step()
        schedule.step()
    return raw.detach().sigmoid(), float(miss.detach())


def best_matches(true: Tensor, guesses: Tensor) -> Tensor:
    """Return the guesses in the order in which, one to one, they fit the true images best."""
    _, order = linear_sum_assignment(-psnr(true[:, None], guesses[None]).numpy())
    return guesses[torch.from_numpy(order)]


def picture(rows: Sequence[Tensor]) -> Image.Image:
    """Rows of images, enlarged: true above rebuilt."""
    side = rows[0].shape[-1]
    canvas = np.full((len(rows) * (side + 2), SHOWN * (side + 2), 3), 255, np.uint8)
    for r, images in enumerate(rows):
        for c, image in enumerate(images[:SHOWN]):
            top, left = r * (side + 2), c * (side + 2)
            canvas[top : top + side, left : left + side] = (255 * image.permute(1, 2, 0)).round().byte().numpy()
    return Image.fromarray(canvas).resize((canvas.shape[1] * 3, canvas.shape[0] * 3), Image.Resampling.NEAREST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 10, 64])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=float, help="attack statistics released with this noise (see docs/privacy.md)")
    parser.add_argument("--picture", type=Path, default=Path("leakage.png"))
    options = parser.parse_args()
    data = load(options.dataset, "test", progress=False)
    network = Network(load_model(options.model, f"{options.dataset}-c", len(data.classes), "auto"))
    order = np.random.default_rng(options.seed).permutation(len(data.images))
    images = to_input(np.asarray(data.images)[order[:2000]], network.device).contiguous()
    others, mean_image = images[1000:], images[1000:].mean(0)
    print(f"{'':7}{'rebuilt':>15}{'other images':>15}{'mean image':>15}{'batch mean':>15}{'mismatch':>11}{'CPU s':>7}")
    print(f"{'batch':7}" + f"{'PSNR':>9}{'SSIM':>6}" * 4)
    rows = []
    for batch in options.batches:
        began = process_time()
        # one image says little of the attack: small batches are several
        count = max(1, SHOWN // batch)
        scores = []
        shown: list[Tensor] = []
        for k in range(count):
            true = images[k * batch : (k + 1) * batch]
            with torch.no_grad():
                if options.noise is None:
                    told = network({}, true, refreshed(1.0)).statistics
                else:
                    told = Noise(options.noise).release(network, torch.tensor(1000 + k), true)
            found, miss = rebuild(network, told, true.shape, options.steps, options.seed + k)
            guesses = [found, others[k * batch : (k + 1) * batch], mean_image.expand_as(true)]
            guesses = [best_matches(true, guess) for guess in guesses] + [true.mean(0).expand_as(true)]
            scores.append([float(f(true, g).mean()) for g in guesses for f in (psnr, ssim)] + [miss])
            shown += [torch.stack([true, guesses[0]])]
        *values, miss = np.mean(scores, 0)
        cells = [f"{values[k]:9.2f}{values[k + 1]:6.2f}" for k in range(0, len(values), 2)]
        if batch == 1:  # the mean of one image is that image
            cells[-1] = f"{'-':>9}{'-':>6}"
        print(f"{batch:<7}" + "".join(cells) + f"{miss:11.1e}{process_time() - began:7.0f}", flush=True)
        rows += list(torch.cat(shown, 1))
    with whole(options.picture) as part:
        picture(rows).save(part, format="png")


if __name__ == "__main__":
    main()
