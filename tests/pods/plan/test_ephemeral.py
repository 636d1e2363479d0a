# SPDX-License-Identifier: Apache-2.0
"""Ephemeral containers: what may be added to a pod, and that no plan for the manifest's containers counts it."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

from agent.model.pods.pod import ContainerKind
from agent.model.refused import Refused
from agent.pods.plan.ephemeral import MOST_EPHEMERAL, PROFILES, plan_ephemeral
from agent.pods.plan.order import Member, waits_for_end
from agent.pods.plan.remove_dead import dead_ephemerals
from agent.pods.plan.work import LaunchingEphemeral
from agent.pods.runtime.names import EPHEMERAL
from agent.pods.runtime.observed import Instance, SeenPod, SeenSandbox, Stage, left_container, orphan_spec
from agent.pods.view.status import Look, pod_status
from tests.pods.pods import Runs, World, container, make_pod

SANDBOX = SeenSandbox(id="s0", namespace="default", name="web", uid="u1")


def added(name: str = "look", stage: Stage = Stage.RUNNING, **more: Any) -> Instance:
    """As `kepctl debug` left it in the runtime."""
    known = {"id": f"id-{name}", "sandbox_id": "s0", "notes": {EPHEMERAL: '{"stdin":true,"tty":true}'}, **more}
    return Instance(name=name, stage=stage, image="tools", **known)


def app(stage: Stage = Stage.RUNNING) -> Instance:
    return Instance(id="id-app", name="app", sandbox_id="s0", stage=stage)


def with_added(world: World, *instances: Instance) -> World:
    sandbox_id = world.seen.sandboxes[0].id
    more = (replace(one, sandbox_id=sandbox_id) for one in instances)
    world.seen = replace(world.seen, instances=(*world.seen.instances, *more))
    return world


def test_it_joins_the_sandbox_and_the_processes_of_its_target() -> None:
    """TRM-27."""
    seen = SeenPod((SANDBOX,), (app(),))
    one, launch = plan_ephemeral(make_pod(), seen, container("look"), "general", "app")
    _, alone = plan_ephemeral(make_pod(), seen, container("look"), "general", "")

    assert (one.kind, one.name) == (ContainerKind.EPHEMERAL, "look")
    assert (launch.name, launch.attempt, launch.sandbox_id, launch.target_id) == ("look", 0, "s0", "id-app")
    assert alone.target_id == ""


def test_profiles_give_what_kubectl_gives() -> None:
    """TRM-27."""
    seen = SeenPod((SANDBOX,), (app(),))
    found = {name: plan_ephemeral(make_pod(), seen, container("look"), name, "")[0].fields for name in PROFILES}
    rights = {name: one.security_context for name, one in found.items()}

    assert rights["baseline"] is None
    general, restricted, netadmin, sysadmin = (
        rights[name] for name in ("general", "restricted", "netadmin", "sysadmin")
    )
    assert general is not None
    assert general.capabilities is not None
    assert general.capabilities.add == ("SYS_PTRACE",)
    assert netadmin is not None
    assert netadmin.capabilities is not None
    assert netadmin.capabilities.add == ("NET_ADMIN", "NET_RAW")
    assert restricted is not None
    assert restricted.capabilities is not None
    assert restricted.seccomp_profile is not None
    assert (restricted.run_as_non_root, restricted.allow_privilege_escalation) == (True, False)
    assert (restricted.capabilities.drop, restricted.seccomp_profile.type) == (("ALL",), "RuntimeDefault")
    assert sysadmin is not None
    assert [one.privileged for one in (general, restricted, netadmin, sysadmin)] == [False, False, False, True]


@pytest.mark.parametrize(
    ("fields", "profile", "target", "kind", "text"),
    [
        ({}, "root", "", "invalid", 'profile "root" is not known; expected one of general, baseline, restricted, '),
        ({"name": "app"}, "general", "", "precondition", 'has a container "app" already'),
        ({"name": "old"}, "general", "", "precondition", 'has a container "old" already'),
        ({"name": "No_Label"}, "general", "", "invalid", "name: Invalid value: "),
        ({"image": ""}, "general", "", "invalid", "image: Required value"),
        ({"image": "a:b:c"}, "general", "", "invalid", "image: Invalid value: "),
        ({}, "general", "none", "not_found", 'has no container "none"'),
        ({}, "general", "old", "precondition", "old does not run"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(
    fields: dict[str, Any], profile: str, target: str, kind: str, text: str
) -> None:
    """TRM-27."""
    seen = SeenPod((SANDBOX,), (app(), added("old", Stage.ENDED)))
    with pytest.raises(Refused, match=re.escape(text)) as refused:
        plan_ephemeral(make_pod(), seen, container(**{"name": "look", **fields}), profile, target)

    assert refused.value.kind == kind


def test_nothing_joins_a_sandbox_that_is_not_there() -> None:
    """TRM-27."""
    seen = SeenPod((replace(SANDBOX, is_ready=False),), ())
    with pytest.raises(Refused, match="no sandbox that is ready"):
        plan_ephemeral(make_pod(), seen, container("look"), "general", "")


def test_a_pod_gets_no_more_of_them_than_its_record_can_bear() -> None:
    """TRM-27."""
    others = tuple(added(f"look{number}", Stage.ENDED) for number in range(MOST_EPHEMERAL))

    assert plan_ephemeral(make_pod(), SeenPod((SANDBOX,), (app(), *others[1:])), container("look"), "general", "")
    with pytest.raises(Refused, match="has 32 ephemeral containers already"):
        plan_ephemeral(make_pod(), SeenPod((SANDBOX,), (app(), *others)), container("look"), "general", "")


def test_a_running_one_changes_nothing_of_what_is_planned() -> None:
    """TRM-27: neither an end, as of what left the manifest, nor a start of its own."""
    world = World(make_pod(("app",), ("+net",)))
    world.settle()
    before = world.plan()
    with_added(world, added(), added("done", Stage.ENDED), added("made", Stage.CREATED))

    assert world.plan() == before
    assert before.steps == ()


@pytest.mark.parametrize("policy", ["OnFailure", "Never"])
def test_a_pod_whose_mains_are_done_is_done_although_it_runs(policy: str) -> None:
    """TRM-27: it ends with the sandbox."""
    world = World(make_pod(restartPolicy=policy), {"app": [Runs(5, 0)]})
    world.settle()
    with_added(world, added()).run(6)

    assert set(world.log[-4:]) == {"5 app exits 0", "5 stop: completed", "5 look exits 143", "5 Succeeded"}


def test_one_that_ran_makes_no_pod_that_never_restarts_look_done() -> None:
    """TRM-27, SBX-05: the sandbox was lost before any container of the manifest could start."""
    world = World(make_pod(restartPolicy="Never"), fails={"app": "ErrImagePull"})
    world.settle()
    with_added(world, added(stage=Stage.ENDED))
    world.lose_sandbox()
    world.settle()

    assert world.memory.outcome is None
    assert "0 sandbox 1" in world.log


def test_a_manifest_may_take_its_name() -> None:
    """TRM-27: what ran beside the manifest is no evidence that the new container did its work."""
    world = World(make_pod(("app",), restartPolicy="OnFailure"))
    world.settle()
    with_added(world, added(stage=Stage.ENDED))
    world.pod = make_pod(("app", "look"), restartPolicy="OnFailure")
    world.settle()

    assert world.starts()[-1] == "0 start look 1"


def test_no_sidecar_waits_for_it() -> None:
    """TRM-27."""
    members = [
        Member(name=name, kind=kind)
        for name, kind in (
            ("net", ContainerKind.SIDECAR), ("app", ContainerKind.MAIN), ("look", ContainerKind.EPHEMERAL),
        )
    ]  # fmt: skip

    assert waits_for_end(members) == {"net": {"app"}, "app": frozenset(), "look": frozenset()}


def test_it_is_known_again_by_what_the_runtime_keeps_of_it() -> None:
    """TRM-27: also where neither manifest nor record is left."""
    one = left_container(added())
    spec = orphan_spec(SeenPod((SANDBOX,), (app(), added())))

    assert (one.kind, one.name, one.image) == (ContainerKind.EPHEMERAL, "look", "tools")
    assert (one.fields.stdin, one.fields.tty) == (True, True)
    assert [main.name for main in spec.containers] == ["app"]
    assert left_container(added(notes={EPHEMERAL: "?"})).kind is ContainerKind.EPHEMERAL


def test_only_those_of_no_use_go() -> None:
    """TRM-27: one that nobody waits for any more, and one that ended with an earlier sandbox."""
    seen = SeenPod(
        (replace(SANDBOX, id="s1", attempt=1), replace(SANDBOX, is_ready=False)),
        (
            added("waited-for", Stage.CREATED, sandbox_id="s1"), added("left", Stage.CREATED, sandbox_id="s1"),
            added("ended", Stage.ENDED, sandbox_id="s1"), added("runs", sandbox_id="s1"), added("old", Stage.ENDED),
        ),
    )  # fmt: skip

    assert {one.name for one in dead_ephemerals(seen, {LaunchingEphemeral("waited-for")})} == {"left", "old"}


def test_it_is_shown_and_counts_for_nothing() -> None:
    """TRM-27: listed in the pod; phase, readiness and the word for lists are those without it."""
    world = World(make_pod(("app",), ("+net",)))
    world.settle()
    look = Look(pod=world.pod, seen=world.seen, memory=world.memory)
    with_added(world, added("ended", Stage.ENDED, exit_code=3, created_s=1.0), added("runs", created_s=2.0))
    before, after = pod_status(look), pod_status(replace(look, seen=world.seen, is_restarting_all=True))

    shown = [(one.name, one.kind, one.state, one.exit_code) for one in after.containers[2:]]
    assert shown == [("ended", "ephemeral", "Terminated", 3), ("runs", "ephemeral", "Running", 0)]
    assert not any(one.is_ready for one in after.containers[2:])
    assert (after.phase, after.status) == (before.phase, before.status)
    conditions = [one for one in after.conditions if one.type != "AllContainersRestarting"]
    assert conditions == list(before.conditions)


def test_the_word_for_a_pod_that_begins_does_not_count_it() -> None:
    """TRM-27, STS-03."""
    world = World(make_pod(("app",), ("one",)))
    world.settle()
    with_added(world, added(stage=Stage.ENDED, exit_code=1))

    assert pod_status(Look(pod=world.pod, seen=world.seen, memory=world.memory)).status == "Init:0/1"
