# SPDX-License-Identifier: Apache-2.0
"""When a family is synced next."""

from dataclasses import replace

import pytest

from agent.config.document import Configuration
from agent.services.attach.settings import periods
from agent.services.run.pace import SyncPace


@pytest.mark.parametrize(
    ("backend", "took_s", "pause_s"),
    [
        ("nftables", 0.002, 0.05),
        ("nftables", 0.1, 0.2),
        ("iptables", 0.002, 0.05),
        ("iptables", 0.01, 0.2),
        ("iptables", 0.5, 0.8),
        ("nftables", 0.5, 0.6),
    ],
)
def test_a_burst_becomes_few_syncs_where_each_costs_much(backend: str, took_s: float, pause_s: float) -> None:
    """SY-2, FS-27: a lone change waits for nothing."""
    configuration = Configuration()
    asked = periods(replace(configuration, services=replace(configuration.services, backend=backend)))

    assert SyncPace().succeeded(100.0, took_s, was_full=False).earliest_s(asked) == pytest.approx(100.0 + pause_s)
    assert SyncPace().succeeded(100.0, 0.3, was_full=True).earliest_s(asked) == pytest.approx(100.6)
    assert SyncPace().earliest_s(asked) < 0
