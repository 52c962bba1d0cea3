"""Counters, gauges and histograms, as the exposition shows them."""

from threading import Thread

import pytest
from mnemesh_kit.metrics import Counter, Gauge, Histogram, Metric, Metrics
from prometheus_client import generate_latest


def exposed(*metrics: Metric) -> list[str]:
    text = generate_latest(Metrics(metrics).registry).decode()
    return [line for line in text.splitlines() if line.startswith("mnemesh_test")]


def test_counter_counts_each_combination_of_labels() -> None:
    counter = Counter("mnemesh_test_tokens", "Tokens.", ["model", "kind"])
    counter.inc("a", "prompt", by=3)
    counter.inc("a", "prompt")
    counter.inc("b", "prompt")
    assert counter.value("a", "prompt") == 4
    assert counter.value("c", "prompt") == 0
    assert exposed(counter) == [
        'mnemesh_test_tokens_total{kind="prompt",model="a"} 4.0',
        'mnemesh_test_tokens_total{kind="prompt",model="b"} 1.0',
    ]


def test_counter_without_labels_starts_at_zero() -> None:
    assert exposed(Counter("mnemesh_test_things", "Things.")) == ["mnemesh_test_things_total 0.0"]


def test_counter_loses_nothing_to_concurrent_threads() -> None:
    counter = Counter("mnemesh_test_things", "Things.", ["kind"])
    threads = [Thread(target=lambda: [counter.inc("x") for _ in range(5_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.value("x") == 20_000


def test_gauge_is_read_at_each_scrape() -> None:
    numbers = iter([1.5, 2.5])
    gauge = Gauge("mnemesh_test_lag_seconds", "Lag.", lambda: next(numbers))
    assert [exposed(gauge), exposed(gauge)] == [["mnemesh_test_lag_seconds 1.5"], ["mnemesh_test_lag_seconds 2.5"]]


def test_gauge_that_fails_does_not_hide_the_other_metrics() -> None:
    def fail() -> float:
        raise ZeroDivisionError

    assert exposed(Gauge("mnemesh_test_broken", "Broken.", fail), Counter("mnemesh_test_things", "Things.")) == [
        "mnemesh_test_things_total 0.0"
    ]


def test_histogram_counts_up_to_each_bound() -> None:
    histogram = Histogram("mnemesh_test_seconds", "Seconds.", ["kind"], buckets=(0.1, 1.0))
    for number in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(number, "x")
    assert histogram.count("x") == 4
    assert exposed(histogram) == [
        'mnemesh_test_seconds_bucket{kind="x",le="0.1"} 2.0',
        'mnemesh_test_seconds_bucket{kind="x",le="1.0"} 3.0',
        'mnemesh_test_seconds_bucket{kind="x",le="+Inf"} 4.0',
        'mnemesh_test_seconds_count{kind="x"} 4.0',
        'mnemesh_test_seconds_sum{kind="x"} 7.65',
    ]


def test_missing_label_value_is_a_defect() -> None:
    with pytest.raises(ValueError, match="mnemesh_test_things"):
        Counter("mnemesh_test_things", "Things.", ["kind"]).inc()
    with pytest.raises(ValueError, match="mnemesh_test_seconds"):
        Histogram("mnemesh_test_seconds", "Seconds.").observe(1.0, "x")
