# SPDX-License-Identifier: Apache-2.0
"""What a server adds to objects: ports of the node, statuses that clients write, slices, and the owners of pods."""

from typing import Any

import pytest

from agent.kinds.registry import BY_API
from kepd_door.run.kinds.endpoints import all_endpoints
from kepd_door.run.kinds.slices import by_address, empty_slices, is_of_another, mirrored, with_targets, written_slices
from kepd_door.shape.allocating import PORTS, with_node_ports
from kepd_door.shape.defaults import filled
from kepd_door.shape.dressing import dressed
from kepd_door.shape.resources import BY_PLACE
from kepd_door.shape.stamps import changed, new
from kepd_door.shape.statuses import Failure
from kepd_door.shape.targets import target_of
from kepd_door.shape.told_status import told_status, with_told

Object = dict[str, Any]


def service(kind: str = "NodePort", *ports: Object, **spec: Any) -> Object:
    return {"kind": "Service", "metadata": {"name": "s"}, "spec": {"type": kind, "ports": list(ports), **spec}}


def test_a_service_keeps_the_ports_that_were_chosen_for_it() -> None:
    taken = service("NodePort", {"port": 1, "nodePort": 30000})
    made = with_node_ports(service("NodePort", {"port": 80}, {"port": 80, "protocol": "UDP"}), None, [taken])
    chosen = [port["nodePort"] for port in made["spec"]["ports"]]
    assert chosen[0] == chosen[1] in PORTS
    assert chosen[0] != 30000
    again = with_node_ports(service("NodePort", {"port": 80}), made, [taken])
    assert again["spec"]["ports"][0]["nodePort"] == chosen[0]
    inner = with_node_ports(service("ClusterIP", {"port": 80, "nodePort": chosen[0]}), made, [])
    assert "nodePort" not in inner["spec"]["ports"][0]
    outside = with_node_ports(service("LoadBalancer", {"port": 80}, externalTrafficPolicy="Local"), None, [])
    assert outside["spec"]["healthCheckNodePort"] in PORTS


def test_no_port_is_chosen_where_all_are_taken() -> None:
    others = [service("NodePort", *({"port": 1, "nodePort": port} for port in PORTS))]
    with pytest.raises(Failure, match="are taken"):
        with_node_ports(service("NodePort", {"port": 80}), None, others)


def test_a_service_says_its_families_and_one_that_only_names_a_host_does_not() -> None:
    given = {"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00::7"]}
    both = filled("Service", service("LoadBalancer", {"port": 80}, **given))["spec"]
    assert (both["ipFamilies"], both["ipFamilyPolicy"]) == (["IPv4", "IPv6"], "RequireDualStack")
    assert both["externalTrafficPolicy"] == "Cluster"
    named = filled("Service", service("ExternalName", externalName="a.example", **given))["spec"]
    assert "ipFamilies" not in named
    assert "clusterIP" not in named


def test_a_status_of_a_client_gives_way_to_what_the_node_tells_anew() -> None:
    def made(**status: Any) -> Object:
        return {"metadata": {"uid": "u"}, "status": status}

    ready = {"type": "Ready", "status": "True"}
    own = {"type": "example.org/a", "status": "False"}
    told = told_status("u", {"replicas": 1, "conditions": [ready]}, {"replicas": 5, "conditions": [ready, own]}, None)
    assert with_told(made(replicas=1, conditions=[ready]), told)["status"] == {
        "replicas": 5, "conditions": [ready, own],
    }  # fmt: skip
    assert with_told(made(replicas=2, conditions=[ready]), told)["status"]["replicas"] == 2
    assert with_told({**made(replicas=1), "metadata": {"uid": "other"}}, told)["status"] == {"replicas": 1}


def test_stamps_stay_over_changes_and_each_change_of_the_spec_counts() -> None:
    first = new({"metadata": {"generateName": "x" * 70}, "spec": {}})
    assert len(first["metadata"]["name"]) == 63
    assert changed({"metadata": {"name": "a"}, "spec": {"b": 1}}, first)["metadata"]["generation"] == 2
    same = changed({"metadata": {"name": "a"}, "spec": {}}, {**first, "status": {"phase": "Terminating"}})
    assert (same["metadata"]["uid"], same["status"]) == (first["metadata"]["uid"], {"phase": "Terminating"})


def test_slices_name_the_pods_behind_addresses_and_a_service_without_any_has_an_empty_one() -> None:
    pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "status": {"podIP": "10.0.0.7"}}
    made = {
        "metadata": {"name": "s-ipv4", "namespace": "n", "labels": {"kubernetes.io/service-name": "s"}},
        "endpoints": [{"addresses": ["10.0.0.7"]}, {"addresses": ["10.0.0.8"]}],
    }
    shown = with_targets(made, by_address([pod]))["endpoints"]
    assert [each.get("targetRef", {}).get("name") for each in shown] == ["p", None]
    foreign = {**made, "metadata": {**made["metadata"], "namespace": "other"}}
    assert with_targets(foreign, by_address([pod])) == foreign
    idle = {"metadata": {"name": "idle", "namespace": "n"}, "spec": {"selector": {"a": "b"}}}
    busy = {"metadata": {"name": "s", "namespace": "n"}, "spec": {"selector": {"a": "b"}}}
    bare = {"metadata": {"name": "bare", "namespace": "n"}, "spec": {}}
    assert [each["metadata"]["name"] for each in empty_slices([idle, busy, bare], [made])] == ["idle-ipv4"]


def test_a_slice_that_is_written_is_shown_in_the_place_of_what_is_made_of_it() -> None:
    labels = {"kubernetes.io/service-name": "s"}
    written = [{"metadata": {"name": "own", "namespace": "n", "labels": labels}}, {"metadata": {"name": "bare"}}]
    made = {"metadata": {"name": "s-ipv4", "namespace": "n", "labels": labels}}
    assert is_of_another(made, written)
    assert not is_of_another({**made, "metadata": {**made["metadata"], "namespace": "m"}}, written)
    assert [each["metadata"]["name"] for each in written_slices(written)] == ["own", "bare"]


def test_a_pod_of_a_deployment_is_owned_by_the_template_that_is_shown() -> None:
    pods, sets = BY_PLACE["", "v1", "pods"], BY_PLACE["apps", "v1", "replicasets"]
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "0" * 32, "controller": True}
    metadata = {"name": "web-1", "namespace": "n", "labels": {"pod-template-hash": "abc"}, "ownerReferences": [owner]}
    shown = dressed(pods, {"metadata": metadata, "spec": {}}, 1)["metadata"]["ownerReferences"][0]
    replica_set = dressed(sets, {"metadata": {"name": "web-abc", "namespace": "n"}, "spec": {}}, 1)
    assert (shown["kind"], shown["name"]) == ("ReplicaSet", "web-abc")
    assert shown["uid"] == replica_set["metadata"]["uid"]


def test_templates_have_defaults_and_what_only_pods_get_they_have_not() -> None:
    spec = {"template": {"spec": {"containers": [{"name": "a", "image": "i:1"}]}}}
    made = filled("Deployment", {"spec": spec})["spec"]
    assert made["template"]["spec"]["terminationGracePeriodSeconds"] == 30
    assert "serviceAccountName" not in made["template"]["spec"]
    assert made["strategy"]["rollingUpdate"] == {"maxSurge": "25%", "maxUnavailable": "25%"}
    assert filled("Deployment", {"spec": {**spec, "strategy": {"type": "Recreate"}}})["spec"]["strategy"] == {
        "type": "Recreate"
    }


def test_paths_of_a_proxy_and_of_a_namespace_itself_are_understood() -> None:
    proxied = target_of("/api/v1/namespaces/n/pods/https:p:8443/proxy/a/b/c")
    assert proxied is not None
    assert (proxied.name, proxied.part) == ("https:p:8443", "proxy")
    own = target_of("/api/v1/namespaces/n/status")
    assert own is not None
    assert (own.resource.name, own.name, own.part) == ("namespaces", "n", "status")
    assert target_of("/api/v1/namespaces/n/configmaps/c/proxy/a") is None
    assert BY_API["Namespace"].has_namespace is False


def test_endpoints_that_somebody_wrote_are_slices_too() -> None:
    subset = {"ports": [{"port": 80}], "addresses": [{"ip": "10.1.2.3"}]}
    own = {"metadata": {"name": "own", "namespace": "n"}, "subsets": [subset]}
    (made,) = mirrored([own], [])
    assert made["endpoints"] == [{"addresses": ["10.1.2.3"], "conditions": {"ready": True}}]
    assert not list(mirrored([own], [made]))


def test_endpoints_are_those_of_slices_but_where_somebody_wrote_them() -> None:
    labels = {"kubernetes.io/service-name": "s"}
    made = {
        "metadata": {"name": "s-ipv4", "namespace": "n", "labels": labels}, "ports": [{"name": "", "port": 80}],
        "endpoints": [
            {"addresses": ["10.0.0.7"], "conditions": {"ready": True}, "nodeName": "n1"},
            {"addresses": ["10.0.0.8"], "conditions": {"ready": False}},
        ],
    }  # fmt: skip
    services = [
        {"metadata": {"name": name, "namespace": "n"}, "spec": {"selector": {"a": "b"}}}
        for name in ("s", "own", "idle")
    ]
    own = {"metadata": {"name": "own", "namespace": "n"}, "subsets": []}
    found = dict(all_endpoints([own], services, [made]))
    assert found["n", "own"] == own
    assert "subsets" not in found["n", "idle"]
    (subset,) = found["n", "s"]["subsets"]
    assert (subset["addresses"], subset["notReadyAddresses"]) == (
        [{"ip": "10.0.0.7", "nodeName": "n1"}], [{"ip": "10.0.0.8"}],
    )  # fmt: skip
    assert subset["ports"] == [{"port": 80}]
