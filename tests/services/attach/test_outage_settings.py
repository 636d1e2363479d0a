# SPDX-License-Identifier: Apache-2.0
"""SVN-125, SVN-128, SVN-129: what the configuration means for an absent API server."""

from dataclasses import replace
from typing import Any

from agent.config.document import Configuration
from agent.drivers.kube.access import Cluster, KubeAccess, Pem, Secret
from agent.drivers.kube.client import KubeClient
from agent.services.attach.outage import WEEK_S, doubts, expected, outage_settings
from agent.services.objects.bounds import Doubts
from agent.services.objects.snapshot import LONGEST_AGE_S
from agent.services.run.cluster.outage import OutageSettings
from agent.services.settings_check import services_faults
from tests.fakes.clock import FakeClock


def configured(**services: Any) -> Configuration:
    plain = Configuration()
    return replace(plain, services=replace(plain.services, source="kubernetes", **services))


def test_silence_pace_and_doubts_are_keys() -> None:
    made = configured(outage="judge", outage_after=3.0, outage_checks=7, list_shrink=0.2, list_doubt=60.0)

    assert outage_settings(made) == OutageSettings("judge", 3.0, 7.0)
    assert doubts(made) == Doubts(0.2, 60.0)
    alone = replace(made, services=replace(made.services, source="manifests"))
    assert outage_settings(alone).mode == "off"


def test_a_snapshot_lasts_an_hour_a_week_in_an_outage_or_what_is_said() -> None:
    ages = [expected(configured(**one), None).longest_age_s for one in ({}, {"outage": "keep"}, {"snapshot_age": 90.0})]

    assert ages == [LONGEST_AGE_S, WEEK_S, 90.0]
    assert expected(configured(elements_max=1000), None).most_bytes < expected(configured(), None).most_bytes


def test_it_is_refused_where_there_is_no_api_server() -> None:
    for source, count in (("manifests", 1), ("kubernetes", 0)):
        services = replace(Configuration().services, source=source, outage="judge")
        assert len(list(services_faults(services, {"services.source"}))) == count
        assert not list(services_faults(services)), "on the node the source may be another one"
    plain = replace(Configuration().services, source="manifests")

    assert not list(services_faults(plain, {"services.source"}))


def client(ca: str, *servers: str) -> KubeClient:
    pem = Pem("ca", None, Secret(ca.encode())) if ca else None
    return KubeClient(KubeAccess(source="x", cluster=Cluster(servers=servers, ca=pem)), clock=FakeClock())


def test_a_cluster_is_known_by_its_authority_else_by_its_servers() -> None:
    """SVN-128: not by the server that answers at the moment."""
    one, moved, other = client("A", "https://a"), client("A", "https://b", "https://a"), client("B", "https://a")
    bare, same, further = (
        client("", "https://a", "https://b"),
        client("", "https://b", "https://a"),
        client("", "https://c"),
    )

    assert one.cluster == moved.cluster
    assert len({found.cluster for found in (one, other, bare, further)}) == 4
    assert bare.cluster == same.cluster
    assert expected(configured(), lambda: one).cluster == one.cluster
