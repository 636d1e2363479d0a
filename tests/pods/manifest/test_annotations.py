# SPDX-License-Identifier: Apache-2.0
"""What annotations ask of a pod, in both forms, and what cannot be used."""

from dataclasses import replace

import pytest

from agent.model.pods.pod import ContainerKind
from agent.pods.manifest.annotations import annotations_of, read_annotations
from agent.pods.plan.order import Dependency, Member
from tests.pods.pods import container, make_pod

MEMBERS = [Member(name=name, kind=ContainerKind.MAIN) for name in ("app", "db")]
WITH_SIDECAR = [Member(name="net", kind=ContainerKind.SIDECAR), *MEMBERS]


def wishes(**notes: str):  # the fields are what is looked at
    return read_annotations({f"kepd.dev/{key.replace('_', '-')}": value for key, value in notes.items()}, MEMBERS)


def test_both_forms_say_the_same() -> None:
    """The container stands in the key, or in the value."""
    single = read_annotations({"kepd.dev/grace.app": "5s", "kepd.dev/grace.db": "1m30s"}, MEMBERS)

    assert single.graces_s == {"app": 5.0, "db": 90.0}
    assert wishes(grace="app=5s,db=1m30s").graces_s == single.graces_s
    assert single.faults == ()


def test_white_space_in_a_list_does_not_count() -> None:
    """FP-28: what the proxy understood was a container `' db'` here."""
    found = wishes(grace="app=5s, db = 1m30s")

    assert (found.graces_s, found.faults) == ({"app": 5.0, "db": 90.0}, ())


def test_needs_are_read_with_their_conditions() -> None:
    """BEY-03, BEY-05."""
    found = read_annotations({"kepd.dev/depends-on.app": "db=ready"}, MEMBERS)

    assert found.needs == {"app": (Dependency("db", "ready"),)}


def test_the_rest() -> None:
    found = wishes(sidecar_reserve="10s", prestop_at_turn="true", keystone="app", max_restarts="3")

    assert (found.reserve_s, found.is_hook_at_turn, found.keystone, found.most_restarts) == (10.0, True, "app", 3)
    windowed = wishes(max_restarts="3/10m")
    assert (windowed.most_restarts, windowed.restart_window_s, found.restart_window_s) == (3, 600.0, 0.0)


@pytest.mark.parametrize(
    ("notes", "fault"),
    [
        ({"kepd.dev/grace.app": "soon"}, "is not a duration"),
        ({"kepd.dev/grace.none": "5s"}, "there is no container 'none'"),
        ({"kepd.dev/grace.app": "5s", "kepd.dev/grace": "app=6s"}, "'app' is given more than once"),
        ({"kepd.dev/depends-on.app": "db=up"}, "'up' is none of started, ready, completed"),
        ({"kepd.dev/depends-on.app": "app"}, "there is no other container 'app'"),
        ({"kepd.dev/depends-on.app": "db", "kepd.dev/depends-on.db": "app"}, "is a cycle: app → db → app"),
        ({"kepd.dev/keystone": "none"}, "'none' is none of app, db"),
        ({"kepd.dev/max-restarts": "many"}, "is not a number of restarts"),
        ({"kepd.dev/max-restarts": "3/soon"}, "is not a duration"),
        ({"kepd.dev/max-restarts": "9" * 5000}, "is not a number of restarts"),
        ({"kepd.dev/max-restarts": "3/0s"}, "has a window without time"),
        ({"kepd.dev/prestop-at-turn": "yes"}, "'yes' is none of true, false"),
    ],
)
def test_a_wrong_value_is_told_and_ignored(notes: dict[str, str], fault: str) -> None:
    found = read_annotations(notes, MEMBERS)

    assert fault in "; ".join(text for _, text in found.faults)
    assert (found.keystone, found.most_restarts, found.is_hook_at_turn) == ("", None, False)


def test_no_container_can_wait_for_a_sidecar_to_complete() -> None:
    """FP-12: it would wait for ever."""
    found = read_annotations({"kepd.dev/depends-on.app": "net=completed"}, WITH_SIDECAR)

    assert (found.needs["app"], [text for _, text in found.faults]) == (
        (), ["'net' is a sidecar, which never completes; expected started or ready"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "cpu", "pod_cpu", "burst_us", "fault"),
    [
        ("50ms", "500m", "", 50_000, ""),
        ("0s", "", "", 0, ""),
        ("20ms", "", "200m", 20_000, ""),
        ("51ms", "500m", "", None, "'51ms' is too much for 'app'; expected at most 50ms, its quota of 100ms"),
        ("1ms", "", "", None, "'1ms' is too much for 'app'; expected a CPU limit, which it lacks"),
        ("50", "500m", "", None, "'50' is not a duration such as 5s, 1m30s or 500ms"),
        ("-5ms", "500m", "", None, "'-5ms' is not a duration such as 5s, 1m30s or 500ms"),
    ],
)
def test_a_burst_is_at_most_what_the_limit_gives(
    text: str, cpu: str, pod_cpu: str, burst_us: int | None, fault: str
) -> None:
    """RES-07, RES-06: the limit of the pod is that of a container without one."""
    app = container("app", resources={"limits": {"cpu": cpu}} if cpu else {})
    pod = make_pod([app], resources={"limits": {"cpu": pod_cpu}} if pod_cpu else {})
    found = annotations_of(replace(pod, annotations=(("kepd.dev/cpu-burst.app", text),)))

    assert found.bursts_us == ({} if burst_us is None else {"app": burst_us})
    assert [text for _, text in found.faults] == ([fault] if fault else [])


def test_a_kernel_without_bursts_is_told_of() -> None:
    """RES-07."""
    pod = make_pod([container("app", resources={"limits": {"cpu": "1"}})])
    found = annotations_of(replace(pod, annotations=(("kepd.dev/cpu-burst", "app=5ms"),)), has_cpu_burst=False)

    text = "has no effect: this kernel has no bursts; expected Linux 5.14 or newer"
    assert (found.bursts_us, found.faults) == ({}, (("kepd.dev/cpu-burst", text),))
