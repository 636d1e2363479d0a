# SPDX-License-Identifier: Apache-2.0
"""Keys that this version would not act on are refused, so that nobody relies on them."""

from dataclasses import replace
from typing import Any

import pytest

from agent.config.document import Configuration
from agent.host.plane_checks import PLANE_CHECKS

PLAIN = Configuration()


def found(**sections: Any) -> list[str]:
    changed = replace(PLAIN, **sections)
    return [str(finding) for check in PLANE_CHECKS for finding in check(changed, frozenset())]


def test_the_defaults_are_in_order() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        (
            {"services": replace(PLAIN.services, counters=replace(PLAIN.services.counters, export=True))},
            "services.counters.export",
        ),
    ],
)
def test_what_would_have_no_effect_is_a_finding(sections: dict[str, Any], key: str) -> None:
    (finding,) = found(**sections)

    assert key in finding


def test_connections_by_service_need_series_by_service() -> None:
    services = replace(PLAIN.services, counters=replace(PLAIN.services.counters, export=True))

    assert found(services=services, telemetry=replace(PLAIN.telemetry, per_service=True)) == []
