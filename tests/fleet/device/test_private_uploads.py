"""What a device's uploads cost adds up, also over restarts, and noise is of the operating system."""

from __future__ import annotations

import json

import pytest
import torch

from fedctta.errors import UserError
from fedctta.fleet.device.private_uploads import Accountant, BudgetSpent, PrivateUploads
from fedctta.uploads.privacy import Noise, noise_for
from fedctta.uploads.robust import BOUND


def test_it_adds_up_what_a_public_accountant_adds_up(tmp_path):
    """Of dp-accounting 0.6.0: PLDAccountant, 10 releases with noise 4 and 20 with noise 8 at delta 1e-5."""
    for noise, releases in ((4.0, 10), (8.0, 20)):
        accountant = Accountant(tmp_path / "privacy.json", noise, 1e-5)  # started again with other noise
        for _ in range(releases):
            accountant.spend()
    assert accountant.releases == 30
    assert accountant.epsilon == pytest.approx(4.216836, rel=1e-6)
    assert json.loads((tmp_path / "privacy.json").read_text())["epsilon"] == pytest.approx(4.216836, rel=1e-6)
    assert (tmp_path / "privacy.json").stat().st_mode & 0o777 == 0o600


def test_a_budget_ends_it_and_a_restart_does_not_help(tmp_path):
    path, noise = tmp_path / "privacy.json", noise_for(1.0, 1e-5)
    accountant = Accountant(path, noise, 1e-5, budget=2.0)
    for _ in range(3):
        accountant.spend()
    with pytest.raises(BudgetSpent, match="--budget 2 is spent after 3 uploads"):
        accountant.spend()
    assert accountant.epsilon <= 2.0
    with pytest.raises(BudgetSpent):
        Accountant(path, noise, 1e-5, budget=2.0).spend()
    Accountant(path, noise, 1e-5, budget=3.0).spend()


UNREADABLE = ("", "[]", '{"releases": 3}', '{"releases": 3, "ratio_squared": NaN}')


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_nobody_can_read_is_not_taken_for_nothing(tmp_path, text):
    (tmp_path / "privacy.json").write_text(text)
    with pytest.raises(UserError, match="nobody knows what was sent"):
        Accountant(tmp_path / "privacy.json", 1.0, 1e-5)


def test_nothing_was_sent_nothing_was_spent(tmp_path):
    assert Accountant(tmp_path / "privacy.json", 1.0, 1e-5).epsilon == 0.0
    assert not (tmp_path / "privacy.json").exists()


def test_every_batch_has_noise_of_its_own_that_no_seed_repeats(tiny_network, tmp_path):
    private = PrivateUploads(Noise(1.0), Accountant(tmp_path / "privacy.json", 1.0, 1e-5))
    x = torch.rand(50, 3, 8, 8)
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        batch = x.clone()
        released = private.release(tiny_network, batch)
        assert private.release(tiny_network, batch) is released
        found.append(torch.cat([t for name, t in released.items() if name.endswith("running_mean")]))
    assert not torch.isclose(*found).any()
    assert private.accountant.releases == 2


def test_noise_has_the_deviation_that_was_paid_for(tiny_network, tmp_path):
    """The mean at the first layer: source + s (r + noise), deviation noise sqrt(L) 2 R sqrt(2 C) / B of s."""
    private = PrivateUploads(Noise(0.5), Accountant(tmp_path / "privacy.json", 0.5, 1e-5))
    name, x = tiny_network.norms[0], torch.rand(200, 3, 8, 8)
    key = f"{name}.running_mean"
    std = tiny_network.state[f"{name}.running_var"].sqrt()
    draws = torch.stack([private.release(tiny_network, x.clone())[key] / std for _ in range(200)])
    channels = draws.shape[1]
    expected = 0.5 * len(tiny_network.norms) ** 0.5 * 2 * (2 * channels) ** 0.5 / 200
    assert float(draws.std(0).mean()) == pytest.approx(expected, rel=0.1)


def test_however_large_the_noise_a_server_can_believe_it(tiny_network, tmp_path):
    private = PrivateUploads(Noise(1e6), Accountant(tmp_path / "privacy.json", 1e6, 1e-5))
    for name, tensor in private.release(tiny_network, torch.rand(4, 3, 8, 8)).items():
        source = tiny_network.state[name]
        assert tensor.norm() <= BOUND * (source.norm() + source.numel() ** 0.5)
        assert not name.endswith("running_var") or (tensor >= 0).all()
