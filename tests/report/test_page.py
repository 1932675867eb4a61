from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedctta.report import results_table
from fedctta.report.page import page
from fedctta.results.records import Record

Fake = Callable[..., Record]
EVIL = "</script><script>alert('{{data}}')</script>&\"http://x\""


def html(records: list[Record], published: Any = None, title: str = "A title") -> str:
    return page(records, results_table(records, published), title)


def data_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(found[1], parse_constant=refuse)


def test_the_page_asks_for_nothing(fake: Fake) -> None:
    text = html([fake()])
    assert not re.search(r"""(src|href|url|import|fetch)\s*[=(]\s*["']?\s*(https?:)?//""", text)
    assert "<link" not in text
    assert "default-src 'none'" in text
    assert "{{" not in text


def test_every_word_of_a_run_is_escaped(fake: Fake) -> None:
    text = html([fake(aggregator=EVIL, stream=EVIL, note=EVIL, domains=(EVIL, "fog"))], {EVIL: {EVIL: 1}}, EVIL)
    assert text.count("<script") == text.count("</script>") == 2
    assert "alert('" not in text.replace(json.dumps(EVIL)[1:-1].replace("<", "\\u003c"), "")
    assert "&lt;/script&gt;&lt;script&gt;alert(&#x27;{{data}}&#x27;)" in text
    assert data_of(text)["columns"][0]["name"] == EVIL


@pytest.mark.parametrize("options", [{"absent": True}, {"clients": 1}, {"rounds": 1}, {"kept": 0}])
def test_data_is_plain_json_for_every_kind_of_run(fake: Fake, options: dict[str, Any]) -> None:
    run = fake(**options)
    data = data_of(html([run]))
    column = data["columns"][0]
    assert len(column["curves"]["FedCTTA"]) == len(column["at"]) == run.seen.shape[0]
    assert bool(data["matrices"]) == (options.get("kept") != 0)
    assert "NaN" not in json.dumps(data)


def test_ten_long_runs_stay_small(fake: Fake) -> None:
    runs = [fake(rounds=750, clients=20, aggregator=f"m{k}") for k in range(10)]
    text = html(runs)
    assert len(text.encode()) < 1_500_000
    assert all(len(run["rounds"]) <= 150 for run in data_of(text)["matrices"])


def test_table_shows_best_paper_and_difference(fake: Fake) -> None:
    runs = [fake(accuracy=0.6), fake(accuracy=0.5, aggregator="local"), fake(accuracy=0.7, aggregator="oracle")]
    text = html(runs, {"FedCTTA": {"niid": 61.25}})
    assert "<strong>60.00</strong>" in text
    assert '<td class="n quiet">61.25</td><td class="n quiet">−1.25</td>' in text
    assert text.count("<strong>") == 1
    assert "FedCTTA reaches 60.00 %, 10.00 points above Local." in text


def test_a_measure_is_shown_where_there_is_something_to_show(fake: Fake) -> None:
    run = fake()
    assert ">absent classes<" not in html([run])
    assert ">forgetting<" not in html([run])
    one_more = {
        name: np.pad(getattr(run, name), ((0, 0), (0, 0), (0, 1)))
        for name in ("class_seen", "class_right", "class_predicted")
    }
    assert ">absent classes<" in html([replace(run, **one_more)])
    lost = np.where(np.arange(len(run.domains)) == run.domain[0, 0], 0.5, 0.0)[None]
    measured = replace(run, retained=np.concatenate([lost, 0 * lost]), retained_rounds=np.array([1, 29]))
    text = html([measured])
    assert ">forgetting<" in text
    assert f'<td class="n">{100 * measured.forgetting:.2f}</td></tr>' in text


def test_settings_are_all_there(fake: Fake) -> None:
    text = html([fake(seed=s, fedctta={"probe": "noise-7"}) for s in (3, 4)])
    assert "<td>fedctta.probe</td><td><code>noise-7</code></td>" in text
    assert "<td>3</td>" in text
    assert "<td>4</td>" in text
