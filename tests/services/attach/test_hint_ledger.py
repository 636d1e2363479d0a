# SPDX-License-Identifier: Apache-2.0
"""States of hints from manifests: one line per transition, and figures (TOP-51)."""

from structlog.testing import capture_logs

from agent.services.attach.manifests import SERVICE_READING, HintLedger, services_in
from agent.topology.hints.standalone import HintOptions
from tests.objects.looks import after
from tests.services.attach.test_service_manifests import NODES, SERVICE, slices


def taken(ledger: HintLedger, endpoints: int, mode: str = "compute") -> list[str]:
    """What is logged at a reading with so many endpoints."""
    files = {"a.yaml": SERVICE, "b.yaml": slices(endpoints), "c.yaml": NODES}
    found = services_in(
        after(SERVICE_READING, {name: text.encode() for name, text in files.items()}), HintOptions(mode=mode)
    )  # type: ignore[arg-type]
    with capture_logs() as lines:
        ledger.take(found.hints)
    return [line["change"] for line in lines if line["event"] == "service_hints_changed"]


def shown(ledger: HintLedger, *, has_services: bool = True) -> dict[str, dict[tuple[str, ...], float]]:
    families = ledger.families(has_services=has_services)
    return {one.name: {tuple(s.labels.values()): s.value for s in one.samples} for one in families}


def test_each_transition_is_told_once_and_counted() -> None:
    ledger = HintLedger()

    assert taken(ledger, 4) == ["active"]
    assert taken(ledger, 4) == []
    assert shown(ledger)["kepd_services_hints"] == {("active", "IPv4"): 1}
    assert shown(ledger)["kepd_service_hints_active"] == {("default", "web", "IPv4"): 1}

    assert taken(ledger, 1) == ["active -> refused (too-few-endpoints)"]
    assert shown(ledger)["kepd_services_hints"] == {("refused", "IPv4"): 1}
    assert shown(ledger)["kepd_services_hints_refusals"] == {("too-few-endpoints",): 1}
    assert shown(ledger)["kepd_service_hints_active"] == {("default", "web", "IPv4"): 0}

    assert taken(ledger, 1, "off") == ["refused (too-few-endpoints) -> off"]
    assert "kepd_service_hints_active" not in shown(ledger, has_services=False)


def test_a_service_that_never_asked_for_hints_is_no_news() -> None:
    ledger = HintLedger()

    assert taken(ledger, 4, "off") == []
    assert shown(ledger)["kepd_services_hints"] == {("off", "IPv4"): 1}
