"""Back-off: growth, the maximum, and the range of the jitter."""

from itertools import islice

import pytest
from mnemesh_kit.retries import Backoff


def test_delays_grow_by_the_factor_up_to_the_maximum() -> None:
    backoff = Backoff(first=0.5, maximum=5.0, factor=3.0, jitter=0.0)
    assert list(islice(backoff.delays(), 5)) == [0.5, 1.5, 4.5, 5.0, 5.0]
    assert backoff.delay(1_000_000) == 5.0


@pytest.mark.parametrize(("jitter", "shortest"), [(0.25, 1.5), (1.0, 0.0)])
def test_jitter_only_shortens_a_delay(jitter: float, shortest: float) -> None:
    backoff = Backoff(first=2.0, maximum=2.0, jitter=jitter)
    delays = [backoff.delay(1) for _ in range(500)]
    assert min(delays) >= shortest
    assert max(delays) <= 2.0
    assert len(set(delays)) > 400
