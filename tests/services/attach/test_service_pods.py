# SPDX-License-Identifier: Apache-2.0
"""Services that choose pods of this node by labels."""

from agent.services.attach.pods import LocalPod, PodChoice, pod_choice, slices_of_pods

CHOICE = PodChoice(namespace="shop", name="web", selector={"app": "web"}, targets=(("http", "TCP", 8080),))


def pod(name: str, ip: str = "10.1.0.1", **fields: object) -> LocalPod:
    values = {
        "namespace": "shop",
        "labels": {"app": "web", "tier": "a"},
        "is_ready": True,
        "is_terminating": False,
        "ports": {},
    }
    return LocalPod(name=name, ip=ip, **{**values, **fields})  # type: ignore[arg-type]


def endpoints(*pods: LocalPod, choice: PodChoice = CHOICE) -> list[tuple[str, bool | None, bool | None]]:
    return [
        ((one.addresses or ("",))[0], one.conditions.ready, one.conditions.terminating)
        for piece in slices_of_pods([choice], pods, "node-a").values()
        for one in piece.endpoints or ()
        if one.conditions is not None
    ]


def test_pods_with_all_the_labels_are_endpoints() -> None:
    other = pod("c", "10.1.0.3", labels={"app": "db"})
    foreign = pod("d", "10.1.0.4", namespace="zoo")

    assert endpoints(pod("b", "10.1.0.2"), pod("a"), other, foreign) == [
        ("10.1.0.1", True, False),
        ("10.1.0.2", True, False),
    ]


def test_conditions_are_those_an_endpoint_controller_writes() -> None:
    """IN-8: a terminating pod that is ready serves as the last resort."""
    assert endpoints(pod("a", is_ready=False)) == [("10.1.0.1", False, False)]
    assert endpoints(pod("a", is_terminating=True)) == [("10.1.0.1", False, True)]
    wishing = PodChoice(
        namespace="shop", name="web", selector={"app": "web"}, targets=CHOICE.targets, takes_unready=True
    )
    assert endpoints(pod("a", is_ready=False, is_terminating=True), choice=wishing) == [("10.1.0.1", True, True)]


def test_families_have_slices_of_their_own() -> None:
    found = slices_of_pods([CHOICE], [pod("a"), pod("b", "fd00::1")], "node-a")

    assert {name: piece.address_type for name, piece in found.items()} == {
        "shop/web-local-ipv4-0": "IPv4",
        "shop/web-local-ipv6-0": "IPv6",
    }


def test_a_named_port_may_have_another_number_in_each_pod() -> None:
    choice = PodChoice(namespace="shop", name="web", selector={"app": "web"}, targets=(("http", "TCP", "web"),))
    old = pod("a", ports={("web", "TCP"): 80})
    new = pod("b", "10.1.0.2", ports={("web", "TCP"): 8080})
    lacking = pod("c", "10.1.0.3")
    found = slices_of_pods([choice], [old, new, lacking], "node-a").values()

    assert sorted((piece.ports[0].port, len(piece.endpoints or ())) for piece in found if piece.ports) == [
        (80, 1),
        (8080, 1),
    ]


def test_a_service_without_selector_makes_no_choice() -> None:
    """Its target is the port itself unless another is named."""
    assert pod_choice("shop", "web", {"spec": {"ports": [{"port": 80}]}}) is None
    ports = [{"port": 80}, {"port": 81, "targetPort": "h"}]
    found = pod_choice("shop", "web", {"spec": {"selector": {"app": "x"}, "ports": ports}})
    assert found is not None
    assert [target for _, _, target in found.targets] == [80, "h"]
