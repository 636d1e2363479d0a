# SPDX-License-Identifier: Apache-2.0
"""SVN-34: where source ranges hold is told by `explain route` and `trace`, with both backends, whatever they say."""

import msgspec
import pytest

from agent.model.kube_objects import Service
from agent.model.services.service import ServiceKey
from agent.services.objects.reading_service import read_service
from agent.services.run.iptables_ruleset import IptablesRuleset
from agent.services.run.iptables_view import IptablesRulesView
from agent.services.run.nft_view import NftRulesView
from agent.services.run.view import ServicesView
from tests.services.making import make_slice
from tests.services.run.test_metrics import Node

WEB = ServiceKey("shop", "web")
NODE, OUTSIDE, FRIEND = "192.168.0.10", "203.0.113.50", "192.0.2.9"
EXTERNAL = "198.51.100.7"
CLOSED = "closed: none of its source ranges can be used"


async def view_of(backend: str, *, ranges: list[str], is_strict: bool, everywhere: str) -> ServicesView:
    node = Node(backend)
    item = {
        "metadata": {
            "name": "web",
            "namespace": "shop",
            "annotations": {"kepd.dev/source-ranges-everywhere": everywhere},
        },
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": "10.96.0.10",
            "externalIPs": [EXTERNAL],
            "loadBalancerSourceRanges": ranges,
            "ports": [{"name": "http", "port": 80, "nodePort": 30080}],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.8"}]}},
    }
    node.intake.put_service(read_service(msgspec.convert(item, Service), is_strict=is_strict))
    node.intake.put_slice(make_slice(["10.1.0.1"]))
    await node.sync()
    rules = node.plane.families["IPv4"].rules
    own = IptablesRulesView("IPv4", rules) if isinstance(rules, IptablesRuleset) else NftRulesView("IPv4", node.nft)

    async def addresses() -> tuple[bytes, ...]:
        return ()

    return ServicesView(node.plane, {"IPv4": own}, addresses)


async def verdicts(view: ServicesView, source: str) -> list[str]:
    """Of the external IP and the node port."""
    packets = ((EXTERNAL, 80), (NODE, 30080))
    return [(await view.trace(source, target, "TCP", port, in_kernel=False)).verdict for target, port in packets]


@pytest.fixture(params=["nftables", "iptables"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


async def test_ranges_are_named_where_they_hold(backend: str) -> None:
    view = await view_of(backend, ranges=["192.0.2.0/24"], is_strict=False, everywhere="true")
    lines = [one for one in view.route(WEB) if "only from 192.0.2.0/24" in one]

    assert [one.split()[0] for one in lines] == ["externalIP", "loadBalancer", "nodePort"]
    assert await verdicts(view, FRIEND) == ["dnat", "dnat"]
    assert await verdicts(view, OUTSIDE) == ["drop", "drop"]


async def test_without_the_annotation_others_stay_open(backend: str) -> None:
    view = await view_of(backend, ranges=["192.0.2.0/24"], is_strict=False, everywhere="false")
    lines = [one for one in view.route(WEB) if "only from" in one]

    assert [one.split()[0] for one in lines] == ["loadBalancer"]
    assert await verdicts(view, OUTSIDE) == ["dnat", "dnat"]


@pytest.mark.parametrize("ranges", [["garbage"], ["300.0.0.0/8", " "]])
async def test_garbage_counts_as_no_range(backend: str, ranges: list[str]) -> None:
    view = await view_of(backend, ranges=ranges, is_strict=False, everywhere="true")

    assert not [one for one in view.route(WEB) if CLOSED in one]
    assert [one for one in view.service(WEB).findings if "loadBalancerSourceRanges" in one]
    assert await verdicts(view, OUTSIDE) == ["dnat", "dnat"]


async def test_garbage_closes_a_service_on_a_strict_node(backend: str) -> None:
    view = await view_of(backend, ranges=["garbage"], is_strict=True, everywhere="true")

    assert len([one for one in view.route(WEB) if CLOSED in one]) == 3
    assert await verdicts(view, OUTSIDE) == ["drop", "drop"]


async def test_no_range_closes_nothing(backend: str) -> None:
    for ranges in ([], ["0.0.0.0/0"]):
        view = await view_of(backend, ranges=ranges, is_strict=True, everywhere="true")
        assert await verdicts(view, OUTSIDE) == ["dnat", "dnat"]
