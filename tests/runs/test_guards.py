"""Liars, robust mixing and noise in whole runs."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import fedctta
from fedctta.aggregators import aggregators
from fedctta.engine.rounds import Federation
from fedctta.errors import UserError
from fedctta.results.digests import digest
from fedctta.runs.experiment import Result
from fedctta.runs.settings import Experiment, expand

SMALL = {"clients": 4, "slots": 2, "batch": 4, "device": "cpu", "stream": "niid", "niid.clusters": 2}
COMMUNICATING = [name for name, cls in aggregators.classes().items() if cls.communicates]


@pytest.fixture
def run(tiny_module, domains):
    def go(**values):
        (record,) = fedctta.run(model=tiny_module, dataset=domains, **{**SMALL, **values})
        return record

    return go


@pytest.fixture
def run_larger(tiny_module, make_domains):
    """The same with images of 12 x 12, on which a layer has enough pixels to be shared with noise."""

    def go(**values):
        (record,) = fedctta.run(model=tiny_module, dataset=make_domains(side=12), **{**SMALL, **values})
        return record

    return go


def method(aggregator):
    """An aggregator, quick, with an adapter that suits it."""
    quick = {"fedtsa.epochs": 2} if aggregator == "fedtsa" else {}
    partner = aggregators.classes()[aggregator].partner or "bn"
    return {"aggregator": aggregator, "adapter": "grad" if aggregator == "fedbn" else partner, **quick}


def same(a, b):
    return np.array_equal(a.correct, b.correct) and np.array_equal(a.collaboration, b.collaboration)


def test_unsaid_is_none(run):
    plain = run(aggregator="fedctta")
    assert same(plain, run(aggregator="fedctta", robust="none", liars=0, min_batch=4))


def test_honest_clients_pass_the_check_unchanged(run):
    assert same(run(aggregator="fedctta"), run(aggregator="fedctta", robust="check"))


@pytest.mark.parametrize("lie", ["sign", "scale", "random", "statistics"])
@pytest.mark.parametrize("aggregator", COMMUNICATING)
def test_every_aggregator_survives_every_lie_with_clipping(aggregator, lie, run):
    way = "none" if aggregators.classes()[aggregator].guarded else "clip"
    values = {**method(aggregator), "liars": 1, "lie": lie, "robust": way}
    if lie == "statistics" and aggregator in ("fedbn", "cola"):
        with pytest.raises(UserError, match=f"lie=statistics has no effect on {aggregator}"):
            run(**values)
        return
    record = run(**values)
    assert np.isfinite(record.entropy).all()
    (liar,) = record.settings["lying"]
    assert not record.seen[:, liar].any()


@pytest.mark.parametrize("way", ["cap", "median", "trimmed"])
@pytest.mark.parametrize("aggregator", COMMUNICATING)
def test_every_aggregator_that_mixes_takes_every_way(aggregator, way, run):
    if aggregators.create(aggregator).mixes(method(aggregator)["adapter"] == "bn"):
        assert np.isfinite(run(**method(aggregator), robust=way).entropy).all()
    else:
        with pytest.raises(UserError, match=f"robust={way} has no effect on {aggregator}"):
            run(**method(aggregator), robust=way)


def test_a_server_that_clips_by_itself_says_so(run):
    for way in ("check", "clip"):
        with pytest.raises(UserError, match=f"robust={way} has no effect on recall, which .* by itself .recall.clip."):
            run(**method("recall"), robust=way)


def test_liars_may_come_to_their_senses(run):
    values = {"aggregator": "fedavg", "liars": 1, "lie": "statistics"}
    honest, always = run(aggregator="fedavg"), run(**values)
    for_a_while = run(**values, lie_until=2)
    (liar,) = for_a_while.settings["lying"]
    assert np.array_equal(for_a_while.entropy[:2], always.entropy[:2])
    assert np.array_equal(for_a_while.entropy[2:], honest.entropy[2:])  # statistics of one batch leave nothing behind
    assert for_a_while.collaboration[-1][liar, liar] < 1
    with pytest.raises(UserError, match="lie_until=2 has no effect without liars"):
        run(aggregator="fedavg", lie_until=2)


def test_ways_work_with_few_neighbours_and_late_uploads(run):
    for way in ("cap", "clip", "median", "trimmed"):
        values = {"fedctta.neighbours": 2, "stragglers": 0.4, "liars": 1, "lie": "scale"}
        assert np.isfinite(run(aggregator="fedctta", robust=way, **values).entropy).all()


def test_a_lie_counts_and_the_liar_keeps_its_model(run):
    honest, alone = run(aggregator="fedavg"), run(aggregator="local")
    lied_to = run(aggregator="fedavg", liars=1, lie="scale")
    (liar,) = lied_to.settings["lying"]
    assert np.array_equal(lied_to.entropy[:, liar], alone.entropy[:, liar])
    assert not np.array_equal(np.delete(lied_to.entropy, liar, 1), np.delete(honest.entropy, liar, 1))
    weights = lied_to.collaboration[0]
    assert weights[liar, liar] == 1
    others = np.delete(weights, liar, 0)
    assert np.allclose(others, 0.25)


def test_a_refused_lie_is_as_if_the_liar_were_not_there(run):
    checked = run(aggregator="fedavg", liars=1, lie="scale", robust="check")
    (liar,) = checked.settings["lying"]
    others = np.delete(checked.collaboration[0], liar, 0)
    assert np.allclose(others[:, liar], 0)
    assert np.allclose(np.delete(others, liar, 1), 1 / 3)


def test_what_liars_predict_counts_for_nothing(run, tmp_path):
    """Here two of four clients lie to a server that does not answer: all predict as if nobody lied."""
    record, plain = (run(aggregator="fedavg", interval=6, predict="before", **liars) for liars in ({"liars": 2}, {}))
    lying = record.settings["lying"]
    honest = [i for i in range(4) if i not in lying]
    for name in ("seen", "correct", "class_seen", "class_right", "class_predicted"):
        mine, all_ = getattr(record, name), getattr(plain, name)
        assert not mine[:, lying].any()
        assert np.array_equal(mine[:, honest], all_[:, honest])
    assert record.images.tolist() == plain.images.tolist()
    assert record.calibration[:, 0].sum() == record.seen.sum() == plain.seen.sum() / 2
    assert [np.isnan(accuracy) for accuracy in record.accuracy_by_client] == [i in lying for i in range(4)]
    assert sorted(digest(record).split("client")) == [str(i + 1) for i in honest]
    assert record.present == 4
    result = Result((record,))
    assert result.table().rows[0].cells[0].mean == pytest.approx(100 * record.accuracy)
    assert result.write_report(tmp_path).exists()


def test_noise_changes_what_is_sent_and_states_its_budget(run):
    noisy, again = (run(aggregator="fedavg", epsilon=1.0) for _ in range(2))
    assert same(noisy, again)
    assert not np.array_equal(noisy.entropy, run(aggregator="fedavg").entropy)
    privacy = noisy.settings["privacy"]
    assert privacy["epsilon"] == pytest.approx(1.0)
    assert privacy["epsilon_all_rounds"] > 2
    assert privacy["delta"] == 1e-5


def test_noise_states_its_budget_for_the_delta_asked_for(run):
    usual, smaller = (run(aggregator="fedavg", noise=1.0, delta=d).settings["privacy"] for d in (1e-5, 1e-9))
    assert (usual["delta"], smaller["delta"]) == (1e-5, 1e-9)
    assert smaller["epsilon"] > usual["epsilon"]


def test_noise_is_the_same_whatever_the_lifting(run):
    found = [run(aggregator="fedavg", noise=1.0, lift=lift).entropy for lift in ("vmap", "loop")]
    np.testing.assert_allclose(*found, rtol=1e-4)


def test_noise_leaves_a_client_alone_alone(tiny_module, domains, run):
    values = {**SMALL, "aggregator": ["local", "fedavg"], "epsilon": 1.0}
    alone, _ = fedctta.run(model=tiny_module, dataset=domains, **values)
    assert same(run(aggregator="local"), alone)


@pytest.mark.parametrize("key", ["epsilon", "noise"])
def test_noise_where_nothing_is_sent_is_refused(key, run):
    with pytest.raises(UserError, match=f"{key} has no effect: nothing is sent in these runs"):
        run(aggregator="local", **{key: 1.0})


RECALL = {"adapter": "recall", "aggregator": "recall"}


def test_noise_where_no_layer_could_be_shared_is_refused(run):
    with pytest.raises(UserError, match="128 pixels per image or more, and there is none on images of 8 x 8"):
        run(**RECALL, epsilon=1.0)


def test_recall_shares_with_noise_and_states_its_budget(run_larger):
    run = run_larger
    noisy, again = (run(**RECALL, epsilon=1.0) for _ in range(2))
    assert same(noisy, again)
    assert noisy.settings["privacy"]["epsilon"] == pytest.approx(1.0)
    assert "epsilon_all_rounds" not in noisy.settings["privacy"]
    cut = run(**RECALL, noise=0.0).settings["privacy"]
    assert cut == {"noise": 0.0, "delta": 1e-5}


def test_recall_with_noise_is_the_same_whatever_the_lifting(run_larger):
    found = [
        run_larger(**RECALL, noise=0.1, lift=lift, **{"recall.min_images": 8}).entropy for lift in ("vmap", "loop")
    ]
    np.testing.assert_allclose(*found, rtol=1e-4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"adapter": "tent"}, "cover the statistics of one batch only: use adapter=bn"),
        ({"bn.momentum": 0.5}, "cover the statistics of one batch only: use adapter=bn"),
        ({"aggregator": "fedtsa"}, "do not cover the indicator that fedtsa asks for: use an aggregator without"),
        ({"aggregator": "ugsa"}, "do not cover the uncertainty that ugsa asks for"),
        ({**RECALL, "recall.inner": "tent"}, "do not cover what recall.inner=tent learns"),
        ({**RECALL, "check": 2, "guard": "reset"}, "guard=reset lets images decide whether a client sends anything"),
    ],
)
def test_noise_refuses_what_it_does_not_cover(values, message, run_larger):
    with pytest.raises(UserError, match=message):
        run_larger(epsilon=1.0, **values)


def test_noise_says_who_asks_for_no_signals(run):
    with pytest.raises(UserError, match="without signals, say ") as refused:
        run(epsilon=1.0, aggregator="fedtsa")
    named = str(refused.value).partition(", say ")[2].replace(" or ", ", ").split(", ")
    assert {"fedavg", "fedctta", "pfedbbn"} <= set(named)
    assert not {"fedtsa", "ugsa", "kin", "local", "oracle", "fedbn"} & set(named)  # of bn, fedbn shares nothing
    for name in named:
        assert run(epsilon=1.0, aggregator=name).settings["privacy"]["epsilon"] == pytest.approx(1.0)


def test_small_batches_are_not_shared(run, tiny_module, domains):
    asked = SMALL | {"batch": [4, 5], "min_batch": 5}
    quiet, loud = fedctta.run(model=tiny_module, dataset=domains, aggregator="fedavg", baseline=False, **asked)
    assert quiet.bytes_up == quiet.bytes_down == 0
    assert np.array_equal(quiet.correct, run(aggregator="local").correct)
    why = "batch=4 is below min_batch=5: nobody shares anything"
    assert (why in quiet.settings["notes"], why in loud.settings["notes"]) == (True, False)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"robust": "mean"}, "unknown value for robust"),
        ({"cap": 0}, "cap=0.* must lie above 0 and up to 1"),
        ({"clip": -1}, "clip=-1.* must be above 0"),
        ({"trim": 0.5}, "trim=0.5 must be at least 0 and below 0.5"),
        ({"liars": -1}, "liars=-1 must not be negative"),
        ({"lie_until": 0}, "lie_until=0 must be at least 1"),
        ({"lie": "white"}, "unknown value for lie"),
        ({"noise": -0.1}, "noise=-0.1 must not be negative"),
        ({"epsilon": 0}, "epsilon=0.* must be at least 1e-06"),
        ({"epsilon": "1e-9"}, "epsilon=1e-09 must be at least 1e-06"),
        ({"epsilon": "inf"}, "epsilon=inf must be finite"),
        ({"noise": "inf"}, "noise=inf must be finite"),
        ({"delta": 1e-310}, "delta=1e-310 must lie between 0 and 1"),
        ({"delta": 0}, "delta=0.* must lie between 0 and 1"),
        ({"epsilon": 1, "noise": 1}, "epsilon and noise say the same thing twice: give one of them"),
        ({"min_batch": 0}, "min_batch=0 must be at least 1"),
    ],
)
def test_values_out_of_range_are_told_in_one_line(values, message):
    with pytest.raises(UserError, match=message) as told:
        expand(values)
    assert "\n" not in str(told.value)


def test_too_many_liars_are_told(run):
    with pytest.raises(UserError, match="liars=4 leaves nobody honest of 4 clients"):
        run(liars=4)


def test_new_keys_change_no_old_fingerprint():
    assert Experiment().fingerprint == Experiment(robust="none", liars=0, noise=None, min_batch=1).fingerprint


def test_an_interrupted_run_with_lies_and_noise_ends_the_same(run, tmp_path, monkeypatch):
    values = {"aggregator": "fedavg", "liars": 1, "lie": "random", "noise": 0.5, "robust": "median"}
    whole = run(**values)
    play, rounds = Federation.play, []

    def interrupted(self, state, t, *more):
        rounds.append(t)
        if t == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return play(self, state, t, *more)

    monkeypatch.setattr(Federation, "play", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path, **values)
    assert rounds == [0, 1, 2]
    monkeypatch.setattr(Federation, "play", play)
    resumed = run(out=tmp_path, resume=True, **values)
    assert same(resumed, whole)
    assert np.array_equal(resumed.entropy, whole.entropy)
