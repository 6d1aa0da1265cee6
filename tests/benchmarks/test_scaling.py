"""The arithmetic of many workers, and that the page shows what was measured."""

import json
from pathlib import Path

import pytest
from benchmarks.scaling import NETWORKS, SYSTEMS, Network, System, exchange_seconds, predict, table

ROOT = Path(__file__).resolve().parents[2]
FOUND = json.loads((ROOT / "results" / "scaling" / "scaling.json").read_text())
MEASURED = [System(**system) for system in FOUND["measured"]["systems"]]
UNIT = System("unit", "", 4, 25, 100, 0, 1.0, None, 0.5, 0, 0.0)


def test_a_ring_sends_everything_twice():
    """At no latency 2 (W - 1) / W of the bytes pass every link; at no bytes only messages count."""
    fast, slow = Network("no latency", 100.0, 0.0), Network("no bytes", float("inf"), 1.0)
    assert exchange_seconds(UNIT, 1, fast, 4) == 0.0
    assert exchange_seconds(UNIT, 4, fast, 4) == pytest.approx(2 * 3 / 4)
    assert exchange_seconds(UNIT, 4, slow, 4) == 2 * 3 + 2 * 2 * 2
    statistics = System("unit", "", 4, 25, 0, 10, 1.0, None, 0.5, 0, 0.0)
    assert exchange_seconds(statistics, 4, fast, 8) == pytest.approx(10 * 8 * 3 / 4 / 100)


def test_the_busiest_worker_decides():
    free = Network("free", float("inf"), 0.0)
    assert [predict(UNIT, workers, free, 4)["step_seconds"] for workers in (1, 2, 3, 4, 8)] == [4.5, 2.5, 2.5, 1.5, 1.5]
    assert predict(UNIT, 4, free, 4)["speed_up"] == 3.0
    assert predict(UNIT, 1, NETWORKS[0], 4)["efficiency"] == 1.0


def test_what_is_kept_follows_from_what_was_measured():
    networks = {network.name: network for network in NETWORKS}
    systems = {system.name: system for system in MEASURED}
    assert systems.keys() == SYSTEMS.keys()
    for row in FOUND["computed"]:
        again = predict(systems[row["system"]], row["workers"], networks[row["network"]], row["tasks"])
        assert again == pytest.approx(row)


def test_the_page_shows_these_numbers():
    page = (ROOT / "docs" / "how_to" / "many_machines.md").read_text()
    assert table(MEASURED) in page
    for system in MEASURED:
        assert f"| {system.name} | {system.trained_parameters:,} | {system.gradient_bytes:,} |" in page


def test_gradients_have_the_bytes_of_the_published_systems():
    maml, mtl, _ = MEASURED
    assert maml.trained_parameters == 32_901 + 2 * (4 * 64 + 12) + 2 * 5  # 4CONV, two LSTMs over 64 inputs, alpha', v'
    assert mtl.trained_parameters == 1_625_728 + 2 * (4 * 1280 + 12) + 2 * 100  # scale, shift, BatchNorm; no theta
