# SPDX-License-Identifier: Apache-2.0
"""What `kepd setup` would do, from facts: a step for what is missing and none for what is there."""

import json
from ipaddress import ip_network

import pytest
from msgspec.structs import replace

from agent.host.setup.contents import OF_SERVICES, free_service_range, free_subnet
from agent.host.setup.plan import (
    CNI_LIST,
    CONFIGURATION,
    DROP_IN,
    FOLDERS,
    LOCKS,
    PLACES,
    UNIT_FOLDER,
    NodeFound,
    Plan,
    RunProgram,
    SetupFindings,
    WriteFile,
    plan_setup,
    starts,
)

FRAGMENTS = {"pods.conf": b"pods\n", "services.conf": b"services\n"}
BARE = NodeFound(
    has_group=False, has_overlay=False, has_bridge_filter=False, is_forwarding=False, fragments=FRAGMENTS,
    addresses=("192.0.2.7", "2001:db8::7"), networks=("0.0.0.0/0", "192.0.2.0/24"),
)  # fmt: skip


def written(plan: Plan) -> dict[str, WriteFile]:
    return {step.path: step for step in plan.steps if isinstance(step, WriteFile)}


def run(plan: Plan) -> list[str]:
    return [step.words[0] for step in plan.steps if isinstance(step, RunProgram)]


def after(facts: NodeFound) -> NodeFound:
    """The facts of a node on which the plan was carried out."""
    files = {path: SetupFindings("file", step.content) for path, step in written(plan_setup(facts)).items()}
    folders = {path: SetupFindings("folder") for path, *_ in FOLDERS} | {LOCKS: SetupFindings("folder")}
    subnet = free_subnet(facts.networks)
    return replace(
        facts, found={**facts.found, **folders, **files}, has_group=True, has_overlay=True, has_bridge_filter=True,
        is_forwarding=True, cni_names=facts.cni_names or ("10-kepd.conflist",),
        cni_subnets=facts.cni_subnets if facts.cni_names or subnet is None else (subnet,),
    )  # fmt: skip


def test_a_bare_node_gets_everything_in_its_order() -> None:
    plan = plan_setup(BARE)

    assert not plan.obstacles
    assert list(written(plan)) == [
        CNI_LIST, CONFIGURATION, DROP_IN, f"{UNIT_FOLDER}/pods.conf", f"{UNIT_FOLDER}/services.conf",
    ]  # fmt: skip
    assert run(plan) == ["systemd-sysusers", "systemd-tmpfiles", "modprobe", "modprobe", "sysctl"]
    # The group before what belongs to it.
    assert plan.steps[0] == RunProgram(words=("systemd-sysusers", "kepd.conf"), why="group kepd may read the API")
    text = written(plan)[DROP_IN].content.decode()
    # kepd finds them by itself, and follows them.
    assert "addresses:" not in text
    assert 'serviceCIDRs: ["10.96.0.0/16"]' in text
    assert 'clusterCIDRs: ["10.85.0.0/16"]' in text
    assert [step.words[0] for step in plan.steps if isinstance(step, RunProgram) and step.is_replacing] == ["sysctl"]
    assert not [step for step in written(plan).values() if step.is_replacing]


def test_a_node_that_is_set_up_needs_nothing() -> None:
    assert plan_setup(after(BARE)) == Plan()


@pytest.mark.parametrize("count", range(12))
def test_a_setup_that_ended_between_two_steps_is_completed(count: int) -> None:
    """Whichever files are there already, the rest is as it would have been."""
    whole = plan_setup(BARE)
    done = dict(list(written(whole).items())[:count])
    facts = replace(
        BARE, found={path: SetupFindings("file", step.content) for path, step in done.items()},
        cni_names=("10-kepd.conflist",) if CNI_LIST in done else (),
        cni_subnets=("10.85.0.0/16",) if CNI_LIST in done else (),
    )  # fmt: skip

    rest = written(plan_setup(facts))

    assert {**done, **rest} == written(whole)
    assert not set(done) & set(rest)


def test_a_new_group_gets_what_was_there_before_it() -> None:
    assert run(plan_setup(replace(after(BARE), has_group=False))) == ["systemd-sysusers", "systemd-tmpfiles"]


def test_the_network_of_pods_is_one_that_others_read() -> None:
    plugins = json.loads(written(plan_setup(BARE))[CNI_LIST].content)["plugins"]

    assert [one["type"] for one in plugins] == ["bridge", "portmap"]
    assert plugins[0]["hairpinMode"] is True
    assert plugins[0]["ipam"]["type"] == "host-local"


def test_another_list_of_cni_stays_and_its_subnet_counts() -> None:
    plan = plan_setup(replace(BARE, cni_names=("05-other.conflist",), cni_subnets=("10.9.0.0/16",)))

    assert CNI_LIST not in written(plan)
    assert b'clusterCIDRs: ["10.9.0.0/16"]' in written(plan)[DROP_IN].content


def test_a_list_without_a_subnet_leaves_the_source_of_traffic_open() -> None:
    plan = plan_setup(replace(BARE, cni_names=("05-cilium.conflist",)))

    assert b"clusterCIDRs" not in written(plan)[DROP_IN].content


SUBNETS = {
    "nothing": ((), "10.85.0.0/16"),
    "only a default route": (("0.0.0.0/0", "::/0"), "10.85.0.0/16"),
    "the first range": (("10.85.3.0/24",), "10.86.0.0/16"),
    "a name server in it": (("10.85.0.53",), "10.86.0.0/16"),
    "all up to Services": (("10.80.0.0/12",), "10.112.0.0/16"),
    "all of 10": (("10.0.0.0/8",), "172.16.0.0/16"),
    "all of 10 and 172.16": (("10.0.0.0/8", "172.16.0.0/12"), "192.168.0.0/24"),
    "everything": (("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"), None),
    "both halves of a tunnel": (("0.0.0.0/1", "128.0.0.0/1"), None),
}


@pytest.mark.parametrize("case", SUBNETS)
def test_pods_get_a_range_that_no_route_covers(case: str) -> None:
    networks, wanted = SUBNETS[case]

    found = free_subnet(networks)

    assert found == wanted
    assert found is None or not ip_network(found).overlaps(ip_network(OF_SERVICES))


def test_a_node_without_a_free_range_is_told_so() -> None:
    plan = plan_setup(replace(BARE, networks=("0.0.0.0/1", "128.0.0.0/1")))

    assert not plan.steps
    assert "a subnet of your own" in plan.obstacles[0]


GIVEN: dict[str, tuple[dict[str, object], str]] = {
    "the Services' network": ({"services.serviceCIDRs": True}, "serviceCIDRs"),
    "a cluster": ({"kubernetes.kubeconfig": "/etc/kepd/kubeconfig"}, "serviceCIDRs"),
    "the pods' network": ({"services.detectLocal.clusterCIDRs": True}, "clusterCIDRs"),
    "no Services": ({"services.enabled": False}, "clusterCIDRs"),
    "pods": ({"pods.enabled": True}, "pods:"),
}


@pytest.mark.parametrize("case", GIVEN)
def test_what_the_configuration_says_elsewhere_is_left_out(case: str) -> None:
    given, word = GIVEN[case]

    text = written(plan_setup(replace(BARE, given=given)))[DROP_IN].content.decode()

    assert word not in text.partition("apiVersion")[2]


def test_without_pods_the_unit_keeps_its_protection() -> None:
    plan = plan_setup(replace(BARE, given={"pods.enabled": False}))

    assert not [path for path in written(plan) if path.startswith(UNIT_FOLDER)]
    assert ["modprobe", "overlay"] not in [list(step.words) for step in plan.steps if isinstance(step, RunProgram)]


def test_nothing_to_say_is_no_file() -> None:
    given: dict[str, object] = {"services.enabled": False, "pods.enabled": True}

    assert DROP_IN not in written(plan_setup(replace(BARE, given=given)))


@pytest.mark.parametrize("path", [DROP_IN, f"{UNIT_FOLDER}/pods.conf"])
def test_what_exists_otherwise_is_replaced_and_says_so(path: str) -> None:
    facts = after(BARE)
    plan = plan_setup(replace(facts, found={**facts.found, path: SetupFindings("file", b"mine\n")}))

    assert [(step.path, step.is_replacing) for step in written(plan).values()] == [(path, True)]


def test_a_new_address_of_the_node_changes_nothing() -> None:
    assert plan_setup(replace(after(BARE), addresses=("192.0.2.8",))) == Plan()


RANGES = {
    "nothing": ((), "10.96.0.0/16"),
    "a name server in it": (("10.96.0.53",), "10.97.0.0/16"),
    "all that clusters have": ((OF_SERVICES,), "10.85.0.0/16"),
    "that, and pods in what comes next": ((OF_SERVICES, "10.85.0.0/16"), "10.86.0.0/16"),
    "all of 10": (("10.0.0.0/8",), "172.16.0.0/16"),
    "everything": (("0.0.0.0/1", "128.0.0.0/1"), None),
}


@pytest.mark.parametrize("case", RANGES)
def test_services_get_a_range_that_no_route_covers(case: str) -> None:
    networks, wanted = RANGES[case]

    assert free_service_range(networks) == wanted


def test_a_range_of_services_that_was_chosen_once_stays() -> None:
    facts = replace(after(BARE), service_ranges=("10.96.0.0/16",), networks=("10.0.0.0/8",))

    assert plan_setup(facts) == Plan()


def test_another_list_of_cni_keeps_its_subnet_from_services() -> None:
    plan = plan_setup(replace(BARE, cni_names=("05-other.conflist",), cni_subnets=("10.96.0.0/15",)))

    assert b'serviceCIDRs: ["10.98.0.0/16"]' in written(plan)[DROP_IN].content


@pytest.mark.parametrize(("facts", "verb"), [(BARE, "restart"), (after(BARE), "start")])
def test_a_kepd_that_runs_sees_what_was_changed(facts: NodeFound, verb: str) -> None:
    words = [" ".join(step.words) for step in starts(plan_setup(facts))]

    assert words == [
        "systemctl daemon-reload", "systemctl enable kepd.socket kepd", "systemctl start kepd.socket",
        f"systemctl {verb} kepd",
    ]  # fmt: skip


@pytest.mark.parametrize("path", PLACES)
@pytest.mark.parametrize("kind", ["obstacle", "other"])
def test_what_stands_in_the_way_stops_all_of_it(path: str, kind: str) -> None:
    is_folder = path in (*(folder for folder, *_ in FOLDERS), LOCKS)
    other = SetupFindings("file") if is_folder else SetupFindings("folder")
    found = SetupFindings("obstacle", what=f"{path} is a symbolic link") if kind == "obstacle" else other

    plan = plan_setup(replace(BARE, found={path: found}))

    assert not plan.steps
    assert path in plan.obstacles[0]


def test_a_kubelet_or_a_faulty_configuration_stops_it() -> None:
    plan = plan_setup(replace(BARE, kubelet="/etc/kubernetes/kubelet.conf", configuration_faults=("x: wrong",)))

    assert not plan.steps
    assert ["kubelet" in plan.obstacles[0], "x: wrong" in plan.obstacles[1]] == [True, True]


def test_what_setup_cannot_do_is_noted() -> None:
    plan = plan_setup(
        replace(BARE, addresses=(), fragments={}, missing_plugins=("bridge",), cni_faults=("without portmap",))
    )

    assert [word for word in ("portmap", "bridge", "default route", "pods.conf") if word in " ".join(plan.notes)] == [
        "portmap", "bridge", "default route", "pods.conf",
    ]  # fmt: skip


def test_drop_ins_of_the_unit_that_are_there_need_no_source() -> None:
    assert plan_setup(replace(after(BARE), fragments={})) == Plan()
