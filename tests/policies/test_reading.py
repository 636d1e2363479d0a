# SPDX-License-Identifier: Apache-2.0
"""What is refused in a NetworkPolicy: each fault by its path, with the value and what would be right."""

import json
import random
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from itertools import pairwise
from typing import Any

import pytest

from agent.policies.manifest.objects import API_VERSION, KIND, IpBlock, PolicedPod, Policy
from agent.policies.manifest.reading import POLICY_READING, PolicyObjects, policies_in
from agent.policies.rules.compiling import compiled, ranges_of
from tests.objects.looks import after


def written(*specs: dict[str, Any], **more: Any) -> dict[str, bytes]:
    documents = [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": f"p{number}"},
            "spec": spec,
            **more,
        }
        for number, spec in enumerate(specs)
    ]
    return {"p.yaml": "\n---\n".join(map(json.dumps, documents)).encode()}


def looked(*looks: Mapping[str, bytes]) -> PolicyObjects:
    return policies_in(after(POLICY_READING, *looks))


def read(*specs: dict[str, Any], **more: Any) -> PolicyObjects:
    return looked(written(*specs, **more))


def peer(**given: Any) -> dict[str, Any]:
    return {"podSelector": {}, "ingress": [{"from": [given]}]}


def port(**given: Any) -> dict[str, Any]:
    return {"podSelector": {}, "egress": [{"ports": [given]}]}


@pytest.mark.parametrize(
    ("spec", "path", "words"),
    [
        (peer(ipBlock={"cidr": "10.0.0.0/33"}), "spec.ingress[0].from[0].ipBlock.cidr", "'10.0.0.0/33' is no network"),
        (peer(ipBlock={"cidr": "10.0.0.1"}), "spec.ingress[0].from[0].ipBlock.cidr", "expected one such as 10.0.0.0/8"),
        *(
            (peer(ipBlock={"cidr": text}), "spec.ingress[0].from[0].ipBlock.cidr", f"'{text}' is no network")
            for text in (
                "10.0.0.0/255.0.0.0",
                "10.0.0.0/0.0.0.255",
                "10.0.0.0/08",
                "::ffff:10.0.0.0/104",
                "010.0.0.0/8",
            )
        ),
        (
            peer(ipBlock={"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}),
            "spec.ingress[0].from[0].ipBlock.except[0]",
            "expected a smaller one inside",
        ),
        (
            peer(ipBlock={"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "fd00::/64"]}),
            "spec.ingress[0].from[0].ipBlock.except[1]",
            "'fd00::/64' is no part of 10.0.0.0/8",
        ),
        (
            peer(ipBlock={"cidr": "10.0.0.0/8"}, podSelector={}),
            "spec.ingress[0].from[0]",
            "has ipBlock and podSelector",
        ),
        (peer(), "spec.ingress[0].from[0]", "names nobody; expected podSelector"),
        (port(protocol="ICMP"), "spec.egress[0].ports[0].protocol", "expected TCP, UDP or SCTP"),
        (port(port=0), "spec.egress[0].ports[0].port", "0 is no port; expected 1 to 65535"),
        (port(port="Web_1"), "spec.egress[0].ports[0].port", "'Web_1' is no port"),
        (port(endPort=80), "spec.egress[0].ports[0].endPort", "80 stands beside no port"),
        (port(port="http", endPort=80), "spec.egress[0].ports[0].endPort", "80 stands beside port 'http'"),
        (port(port=80, endPort=79), "spec.egress[0].ports[0].endPort", "expected 80 to 65535"),
        ({"policyTypes": ["Sideways"]}, "spec.policyTypes[0]", "expected Ingress or Egress"),
        (
            {"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
            "spec.podSelector.matchExpressions[0].values",
            "needs at least one value",
        ),
        ({"podSelector": {"matchLabels": {"a b": "c"}}}, "spec.podSelector.matchLabels", "'a b' is not valid"),
        ({"podSelektor": {}}, "spec.podSelektor", 'did you mean "podSelector"?'),
    ],
)
def test_a_fault_is_told_by_its_path_with_what_would_be_right(spec: dict[str, Any], path: str, words: str) -> None:
    """POL-09."""
    found = read(spec)

    assert found.policies == {}
    assert [one.path for one in found.findings] == [path]
    assert words in str(found.findings[0])


def test_the_last_good_version_of_a_policy_stays_while_its_file_has_a_fault() -> None:
    """POL-09."""
    good = after(POLICY_READING, written({"podSelector": {}}, {"podSelector": {}}))
    in_force = after(POLICY_READING, written({"podSelector": {}}, {"policyTypes": ["x"]}), before=good)
    found = policies_in(in_force)

    assert found.policies.keys() == {"default/p0", "default/p1"}
    assert found.policies["default/p1"] is policies_in(good).policies["default/p1"]
    assert "stays in force" in str(found.findings[-1])


def test_of_two_policies_with_one_name_the_first_counts() -> None:
    text = json.dumps(
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "p"}, "spec": {}}
    ).encode()
    found = looked({"a.yaml": text, "b.yaml": text})

    assert found.places == {"default/p": "a.yaml:1"}
    assert "is already in a.yaml:1; this one is ignored" in str(found.findings[0])


def test_another_version_is_refused() -> None:
    found = read({}, apiVersion="extensions/v1beta1")

    assert str(found.findings[0]).endswith("apiVersion: must be networking.k8s.io/v1")


@pytest.mark.parametrize(
    ("spec", "limits"),
    [
        ({}, (False, True)),
        ({"egress": [{}]}, (True, True)),
        ({"egress": []}, (False, True)),
        ({"policyTypes": ["Egress"], "ingress": [{}]}, (True, False)),
    ],
)
def test_without_types_ingress_is_limited_and_egress_if_it_has_a_rule(
    spec: dict[str, Any], limits: tuple[bool, bool]
) -> None:
    """POL-01."""
    policy = read(spec).policies["default/p0"]

    assert isinstance(policy, Policy)
    assert (policy.limits("egress"), policy.limits("ingress")) == limits


def test_blocks_without_their_exceptions_are_what_the_addresses_one_by_one_say() -> None:
    """Also where exceptions overlap, touch, or reach the last address."""
    for seed in range(200):
        some = random.Random(seed)
        base = some.choice(("10.0.0.0", "255.255.255.0", "fd00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00"))
        whole = ip_network(f"{base}/{len(ip_address(base).packed) * 8 - 8}")
        parts = [
            str(
                ip_network((int(whole[0]) + some.randrange(256), whole.max_prefixlen - some.randrange(5)), strict=False)
            )
            for _ in range(some.randrange(12))
        ]
        excepted = [ip_network(one) for one in parts]
        left = [int(one) for one in whole if not any(one in part for part in excepted)]
        ranges = ranges_of([IpBlock(str(whole), tuple(parts))], "4" if whole.version == 4 else "6")

        assert [one for first, last in ranges for one in range(first, last + 1)] == left
        assert all(first[1] + 1 < second[0] for first, second in pairwise(ranges))


def many(name: str, count: int, namespace: str) -> dict[str, Any]:
    """With so many rules, each of which needs a line in the kernel."""
    rules = [{"ports": [{"port": 1 + number}]} for number in range(count)]
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": {"ingress": rules}}


def test_a_policy_that_asks_for_too_much_is_refused_with_the_value_and_the_limit() -> None:
    found = read({"ingress": [{"ports": [{"port": 1 + number}]} for number in range(501)]})

    assert found.policies == {}
    assert str(found.findings[0]).startswith(
        "p.yaml:1: spec: has 501 rules with their kinds of peers and ports; at most 500 are taken"
    )


def test_where_a_namespace_asks_for_too_much_the_newcomer_is_refused_and_no_other() -> None:
    """POL-17: also one whose file comes first, and a newer version of what is in force."""

    def text(*objects: dict[str, Any]) -> bytes:
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}).encode()

    b = text(many("one", 500, "big"), many("two", 400, "big"), many("three", 400, "other"))
    first = looked({"b.yaml": b})
    edited = text(many("one", 500, "big"), many("two", 501, "big"), many("three", 500, "other"))
    second = {"a.yaml": text(many("new", 101, "big")), "b.yaml": edited}
    found = looked({"b.yaml": b}, second)
    smaller = text(many("one", 300, "big"), many("two", 500, "big"))
    later = looked({"b.yaml": b}, second, {"a.yaml": text(many("new", 101, "big")), "b.yaml": smaller})

    assert first.findings == ()
    assert found.policies.keys() == {"big/one", "big/two", "other/three"}
    assert [len(found.policies[key].spec.ingress) for key in sorted(found.policies)] == [500, 400, 500]
    (refused,) = (str(one) for one in found.findings if "with it" in one.text)
    assert refused.startswith(
        "a.yaml:1: spec: NetworkPolicy big/new is not in force: with it the policies of namespace "
    )
    assert "big have 1001 rules with their kinds of peers and ports; at most 1000 are taken" in refused
    assert later.policies.keys() == {"big/new", "big/one", "big/two"}
    assert later.findings == ()


def test_many_exceptions_are_worked_out_in_one_sweep() -> None:
    """20 000 took minutes."""
    parts = tuple(str(ip_address(0x0B000001 + 2 * number)) + "/32" for number in range(20_000))

    assert len(ranges_of([IpBlock("11.0.0.0/8", parts)], "4")) == 20_001


def test_items_of_a_list_of_policies_need_not_say_what_they_are() -> None:
    item = {"metadata": {"name": "closed"}, "spec": {"podSelector": {}}}
    listed = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicyList", "items": [item]}
    objects = looked({"a.json": json.dumps(listed).encode()})

    assert ([*objects.policies], objects.findings) == (["default/closed"], ())


def test_namespaces_are_chosen_by_the_labels_that_they_were_made_with() -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"team": "red"}}}
    policy = written(
        {"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": "red"}}}]}]}
    )
    found = looked({**policy, "n.yaml": json.dumps(namespace).encode()})
    pods = [PolicedPod(f"uid-{name}", name, "a", ()) for name in ("shop", "bank")]
    ((_, (peer,)), _) = compiled(found.policies["default/p0"]).groups.values()
    assert [pod.namespace for pod in found.labelled(pods) if peer.selects(pod)] == ["shop"]
    assert found.namespaces == {"shop": (("team", "red"),)}
