# SPDX-License-Identifier: Apache-2.0
"""Variables, hosts, resolver: what a container is told."""

from typing import Any

import msgspec
import pytest

from agent.model.pods.pod import PodSpec
from agent.pods.runtime.environment import (
    ConfigProblem,
    EnvironmentSource,
    PodFacts,
    expand,
    field_value,
    parse_environment_file,
    resolve_environment,
)
from agent.pods.runtime.network_files import Resolver, host_name, hosts_text, parse_resolver, resolver_of
from tests.pods.pods import container, make_pod

FACTS = PodFacts(
    node="n1",
    host_ips=("192.0.2.1",),
    pod_ips=("10.0.0.2", "fd00::2"),
    cpus=4,
    memory_bytes=1 << 30,
    disk_bytes=10 << 20,
)


def source(kind: str, name: str, **data: str) -> dict[tuple[str, str, str], EnvironmentSource]:
    made = EnvironmentSource(
        kind=kind, namespace="default", name=name, data={key: value.encode() for key, value in data.items()}
    )
    return {made.key: made}


SOURCES = {**source("ConfigMap", "c", mode="fast", B="from map"), **source("Secret", "s", word="sesame")}


def resolve(env: list[Any], env_from: Any = (), facts: PodFacts = FACTS, **fields: Any) -> dict[str, str]:
    pod = make_pod([container("app", env=env, envFrom=list(env_from), **fields)])
    return dict(resolve_environment(pod, pod.containers[0], SOURCES, facts))


def test_later_wins_and_env_beats_env_from() -> None:
    """ENV-01."""
    env = [{"name": "B", "value": "own"}, {"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    found = resolve(env, [{"configMapRef": {"name": "c"}}, {"prefix": "X_", "secretRef": {"name": "s"}}])

    assert found == {"B": "own", "mode": "fast", "X_word": "sesame", "A": "2"}


def test_references_expand_to_what_stands_before_them() -> None:
    """ENV-02."""
    env = [
        {"name": "A", "value": "a"},
        {"name": "B", "value": "$(A)-$(LATER)-$$(A)-$A"},
        {"name": "LATER", "value": "x"},
    ]

    assert resolve(env)["B"] == "a-$(LATER)-$(A)-$A"


def test_results_of_references_are_not_expanded_again() -> None:
    pod = make_pod()
    labelled = PodSpec(namespace="d", name="w", uid="u", labels=(("k", "$(A)"),), spec=pod.spec)

    assert field_value("metadata.labels['k']", labelled, FACTS) == "$(A)"
    assert expand("$(A)$(B", {"A": "$(A)"}, "args[0]") == "$(A)$(B"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web"), ("metadata.namespace", "default"), ("metadata.uid", "u1"), ("spec.nodeName", "n1"),
        ("status.hostIP", "192.0.2.1"), ("status.podIP", "10.0.0.2"), ("status.podIPs", "10.0.0.2,fd00::2"),
        ("metadata.annotations['none']", ""),
    ],
)  # fmt: skip
def test_fields_of_the_pod(path: str, value: str) -> None:
    """ENV-03."""
    assert field_value(path, make_pod(), FACTS) == value


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("limits.cpu", "0", "2"), ("limits.cpu", "1m", "1500"), ("requests.memory", "1Mi", "64"),
        ("limits.memory", "1Mi", "1024"), ("requests.cpu", "0", "2"), ("limits.ephemeral-storage", "1Mi", "10"),
        ("requests.ephemeral-storage", "0", "0"),
    ],
)  # fmt: skip
def test_resources_are_rounded_up_and_default_to_the_nodes(resource: str, divisor: str, value: str) -> None:
    """ENV-04."""
    env = [{"name": "R", "valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": divisor}}}]
    given = {"limits": {"cpu": "1500m"}, "requests": {"memory": "64Mi"}}

    assert resolve(env, resources=given)["R"] == value


@pytest.mark.parametrize(
    ("kind", "reference", "text"),
    [
        ("configMapKeyRef", {"name": "c", "key": "no"}, "couldn't find key no in ConfigMap default/c"),
        ("secretKeyRef", {"name": "no", "key": "k"}, 'secret "no" not found'),
    ],
)
def test_what_is_missing_is_told_unless_it_may_be(kind: str, reference: dict, text: str) -> None:
    """ENV-05."""
    with pytest.raises(ConfigProblem, match=text):
        resolve([{"name": "A", "valueFrom": {kind: reference}}])

    assert resolve([{"name": "A", "valueFrom": {kind: {**reference, "optional": True}}}]) == {}


def test_what_is_no_text_is_no_variable() -> None:
    """ENV-05: binaryData of a ConfigMap is for volumes; a Secret may have any bytes, which a variable has as well."""
    map_ = EnvironmentSource(kind="ConfigMap", namespace="default", name="m", data={"b": b"1"}, binary=frozenset({"b"}))
    secret = EnvironmentSource(kind="Secret", namespace="default", name="x", data={"b": b"\xff"})
    sources = {map_.key: map_, secret.key: secret}
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "b"}}}]
    pod = make_pod([container("app", env=env)])
    with pytest.raises(ConfigProblem, match="couldn't find key b in ConfigMap default/m; its value is no text"):
        resolve_environment(pod, pod.containers[0], sources, FACTS)
    whole = [{"configMapRef": {"name": "m"}}, {"prefix": "S_", "secretRef": {"name": "x"}}]
    pod = make_pod([container("app", envFrom=whole)])
    ((name, value),) = resolve_environment(pod, pod.containers[0], sources, FACTS)

    assert (name, value.encode("utf-8", "surrogateescape")) == ("S_b", b"\xff")


def test_services_add_no_variables() -> None:
    """ENV-07."""
    pod = make_pod([container("app")], enableServiceLinks=True)

    assert resolve_environment(pod, pod.containers[0], SOURCES, FACTS) == ()


def test_maps_are_one_line_per_key_whatever_their_values() -> None:
    """VOL-08: quoted as every reader of downward files expects it."""
    labels = (("b", 'say "hi"'), ("a", "two\nlines\tand\x01\u00e9\\"))
    pod = PodSpec(namespace="d", name="w", uid="u", annotations=labels, spec=make_pod().spec)
    lines = field_value("metadata.annotations", pod, FACTS).splitlines()

    assert lines == ['a="two\\nlines\\tand\\x01\u00e9\\\\"', 'b="say \\"hi\\""']


class TestEnvironmentFiles:
    """ENV-06."""

    def test_the_grammar(self) -> None:
        text = "# comment\nA='1'\n\nB='two\nlines'\nC=\nD= 'x'\nA='last'\n"

        assert parse_environment_file(text) == {"A": "last", "B": "two\nlines", "C": "", "D": ""}

    @pytest.mark.parametrize("text", ["A =1", "A=1", "A='open", "just text"])
    def test_what_it_is_not(self, text: str) -> None:
        with pytest.raises(ConfigProblem):
            parse_environment_file(text)

    def test_a_missing_file_honours_optional_and_a_large_one_is_refused(self) -> None:
        env = [{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "A"}}}]
        optional = [{"name": "A", "valueFrom": {"fileKeyRef": {**env[0]["valueFrom"]["fileKeyRef"], "optional": True}}}]
        assert resolve(env, facts=facts_with(read_file=lambda _v, _p: b"A='x'"))["A"] == "x"
        assert resolve(optional) == {}
        with pytest.raises(ConfigProblem, match="couldn't find file p"):
            resolve(env)
        with pytest.raises(ConfigProblem, match="more than 65536 bytes"):
            resolve(env, facts=facts_with(read_file=lambda _v, _p: b"#" * 70000))


def facts_with(**changes: Any) -> PodFacts:
    return msgspec.structs.replace(FACTS, **changes)


class TestNetworkFiles:
    def test_the_hosts_file(self) -> None:
        """NET-01."""
        pod = make_pod(hostAliases=[{"ip": "192.0.2.9", "hostnames": ["a", "b"]}])
        text = hosts_text(pod, ["10.0.0.2"], "cluster.local", "")
        named = hosts_text(make_pod(hostname="h", subdomain="s"), ["10.0.0.2"], "cluster.local", "")

        assert text.startswith("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n")
        assert "10.0.0.2\tweb\n" in text
        assert text.endswith("192.0.2.9\ta\tb\n")
        assert "10.0.0.2\th.s.default.svc.cluster.local\th\n" in named

    def test_on_the_nodes_network_the_nodes_file_is_copied(self) -> None:
        text = hosts_text(make_pod(hostNetwork=True), [], "d", "192.0.2.7\tnode\n")

        assert text.startswith("# Kubernetes-managed hosts file (host network).\n192.0.2.7\tnode\n")

    def test_the_host_name(self) -> None:
        """LBL-08."""
        assert host_name(make_pod()) == "web"
        assert host_name(make_pod(hostNetwork=True)) == ""
        assert host_name(make_pod(hostname="x" * 62 + "-y")) == "x" * 62
        assert host_name(make_pod(hostNetwork=True, hostnameOverride="other")) == "other"

    @pytest.mark.parametrize(
        ("spec", "servers", "first_search"),
        [
            ({}, ("10.96.0.10",), "default.svc.cluster.local"),
            ({"hostNetwork": True}, ("192.0.2.53",), "example.org"),
            (
                {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"},
                ("10.96.0.10",),
                "default.svc.cluster.local",
            ),
            ({"dnsPolicy": "Default"}, ("192.0.2.53",), "example.org"),
            (
                {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.1"], "searches": ["s"]}},
                ("192.0.2.1",),
                "s",
            ),
        ],
    )
    def test_dns_policies(self, spec: dict, servers: tuple[str, ...], first_search: str) -> None:
        """NET-02."""
        node = parse_resolver("nameserver 192.0.2.53 # node\nsearch example.org\noptions rotate\n; comment\n")
        found = resolver_of(make_pod(**spec), node, ["10.96.0.10"], "cluster.local")

        assert (found.servers, found.searches[0], found.warnings) == (servers, first_search, ())

    def test_the_nodes_file_is_read_as_resolvers_read_it(self) -> None:
        """NET-02: the last search line counts, options add up, and a root at the end of a name says nothing."""
        text = "search old\nsearch a. . b.example.\noptions rotate\noptions timeout:2\nnameserver 192.0.2.1\n"

        assert parse_resolver(text) == Resolver(("192.0.2.1",), ("a", "b.example"), ("rotate", "timeout:2"))

    def test_a_search_is_there_once(self) -> None:
        node = Resolver(("192.0.2.53",), ("cluster.local", "example.org"))
        found = resolver_of(make_pod(), node, ["10.96.0.10"], "cluster.local")

        assert found.searches == ("default.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.org")
        assert found.options == ("ndots:5",)

    @pytest.mark.parametrize(
        ("spec", "reasons"),
        [({}, []), ({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": True}, ["MissingClusterDNS"])],
    )
    def test_without_a_cluster_the_nodes_resolver_is_used_and_told_to_those_who_asked(
        self, spec: dict[str, object], reasons: list[str]
    ) -> None:
        """CL-15: a pod on a node of its own that asks for nothing is no reason to warn."""
        found = resolver_of(make_pod(**spec), Resolver(("192.0.2.53",)), [], "cluster.local")

        assert (found.servers, [reason for reason, _ in found.warnings]) == (("192.0.2.53",), reasons)

    def test_options_merge_by_name_and_too_much_is_cut(self) -> None:
        """NET-03."""
        more = {"nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3"], "options": [{"name": "ndots", "value": "2"}]}
        found = resolver_of(make_pod(dnsConfig=more), Resolver(), ["10.96.0.10"], "c")

        assert (found.servers, found.options) == (("10.96.0.10", "192.0.2.1", "192.0.2.2"), ("ndots:2",))
        assert [reason for reason, _ in found.warnings] == ["DNSConfigForming"]
