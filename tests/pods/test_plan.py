# SPDX-License-Identifier: Apache-2.0
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from agent.model.pod import ContainerSpec, PodSpec, content_hash, static_uid
from agent.pods.plan import (
    CreateContainer,
    MakeSandbox,
    RemoveSandbox,
    SeenContainer,
    SeenSandbox,
    Stage,
    StartContainer,
    StopContainer,
    after,
    kept_sandbox,
    plan_pod,
)


def pod(uid: str, *names: str, version: str = "1") -> PodSpec:
    containers = tuple(ContainerSpec(name=name, image="i") for name in names)
    return PodSpec(namespace="default", name="web", uid=uid, hash=version, containers=containers, file="/m/web.yaml")


def sandbox(sandbox_id: str, *containers: SeenContainer, uid: str = "web", **more: object) -> SeenSandbox:
    given_more = {"hash": "1", "file": "/m/web.yaml", **more}
    return SeenSandbox(id=sandbox_id, namespace="default", name="web", uid=uid, containers=containers, **given_more)  # type: ignore[arg-type]


WEB = pod("web", "a", "b")
RUNNING_A = SeenContainer("1", "a", Stage.RUNNING, grace_s=5)
RUNNING_B = SeenContainer("2", "b", Stage.RUNNING)
ENDED_A = SeenContainer("1", "a", Stage.ENDED)


def test_nothing_to_do_is_an_empty_plan() -> None:
    """STY-02."""
    assert plan_pod(WEB, [sandbox("s", RUNNING_A, RUNNING_B)]) == ()
    assert plan_pod(WEB, [sandbox("s", ENDED_A, RUNNING_B)]) == (), "each container is started once"
    assert plan_pod(None, []) == ()


def test_each_look_gives_the_next_step() -> None:
    a, b = WEB.containers
    created = sandbox("s", SeenContainer("1", "a", Stage.CREATED))

    assert plan_pod(WEB, []) == (MakeSandbox(WEB),)
    assert plan_pod(WEB, [sandbox("s")]) == (CreateContainer(WEB, a, "s"),)
    assert plan_pod(WEB, [created]) == (StartContainer(WEB, a, "1"),)
    assert plan_pod(WEB, [sandbox("s", RUNNING_A)]) == (CreateContainer(WEB, b, "s"),)


def test_what_runs_is_stopped_before_its_sandbox_all_at_once() -> None:
    both = sandbox("s", RUNNING_A, RUNNING_B)
    half = sandbox("s", ENDED_A, RUNNING_B)
    ended = sandbox("s", ENDED_A, SeenContainer("2", "b", Stage.CREATED))

    assert plan_pod(None, [both]) == (StopContainer(RUNNING_A, both), StopContainer(RUNNING_B, both))
    assert plan_pod(None, [half]) == (StopContainer(RUNNING_B, half),)
    assert plan_pod(None, [ended]) == (RemoveSandbox(ended, has_heir=False),)


def test_what_is_dead_double_or_of_another_version_goes_before_anything_is_made() -> None:
    dead = sandbox("dead", is_ready=False)
    other = sandbox("other", uid="old")
    changed = sandbox("changed", hash="2")
    ending = sandbox("ending", is_ending=True)
    kept = sandbox("kept")

    for gone in (dead, changed, ending):
        assert plan_pod(WEB, [gone]) == (RemoveSandbox(gone, has_heir=True),)
    assert plan_pod(WEB, [other]) == (RemoveSandbox(other, has_heir=False),)
    assert plan_pod(WEB, [kept, sandbox("twin")]) == (RemoveSandbox(sandbox("twin"), has_heir=True),)


def test_what_comes_from_a_file_that_nobody_could_read_stays_unless_its_name_is_wanted_or_its_end_has_begun() -> None:
    """MAN-08."""
    held = sandbox("s", RUNNING_A)
    ending = sandbox("s", ENDED_A, is_ending=True)

    assert plan_pod(None, [held], lambda file: file == "/m/web.yaml") == ()
    assert plan_pod(None, [held], lambda file: file == "/m/other.yaml") == (StopContainer(RUNNING_A, held),)
    assert plan_pod(None, [ending], lambda _: True) == (RemoveSandbox(ending, has_heir=False),)
    assert plan_pod(pod("new", "a"), [held], lambda _: True) == (StopContainer(RUNNING_A, held),)


STAGES = st.sampled_from(Stage)
CONTAINERS = st.lists(st.sampled_from("abc"), unique=True, max_size=3).flatmap(
    lambda names: st.tuples(*[st.builds(SeenContainer, st.just(f"c-{name}"), st.just(name), STAGES) for name in names])
)
SANDBOXES = st.lists(
    st.tuples(
        st.sampled_from(["web", "old"]), st.sampled_from(["1", "2", ""]), st.booleans(), st.booleans(), CONTAINERS
    ),
    max_size=3,
).map(
    lambda rows: tuple(
        sandbox(
            f"s{number}",
            *[SeenContainer(f"{number}{one.id}", one.name, one.stage) for one in containers],
            uid=uid, hash=version, is_ready=is_ready, is_ending=is_ending,
        )
        for number, (uid, version, is_ready, is_ending, containers) in enumerate(rows)
    )
)  # fmt: skip
WANTED = st.sampled_from([None, WEB, pod("web", "a"), pod("web", "c", version="2"), pod("new", "a", "b")])


@given(WANTED, WANTED, SANDBOXES, st.data())
def test_any_start_leads_to_what_is_wanted_whatever_is_interrupted_or_changed_on_the_way(
    first: PodSpec | None, wanted: PodSpec | None, seen: tuple[SeenSandbox, ...], data: st.DataObject
) -> None:
    """STY-03: each look may find only some of the steps done, and the manifest may change in between."""
    ids = count()
    stages = {one.id: one.stage for sandbox in seen for one in sandbox.containers}
    for look in range(60):
        actions = plan_pod(first if look < 3 else wanted, seen)
        for action in data.draw(st.lists(st.sampled_from(actions), unique=True, min_size=1)) if actions else ():
            if isinstance(action, RemoveSandbox):
                assert all(one.stage is not Stage.RUNNING for one in action.sandbox.containers)
            if isinstance(action, MakeSandbox):
                assert not seen, "never two at once under one name"
            seen = after(seen, action, f"new{next(ids)}")
        if look >= 3 and not actions:
            break
    kept = kept_sandbox(wanted, seen)

    assert plan_pod(wanted, seen) == ()
    if wanted is None:
        assert seen == ()
    else:
        assert kept is not None
        assert seen == (kept,)
        assert {one.name for one in wanted.containers} <= {one.name for one in kept.containers}
        assert all(
            one.stage is not Stage.CREATED for one in kept.containers if one.name in {c.name for c in wanted.containers}
        )
        assert all(stages.get(one.id) is not Stage.ENDED or one.stage is Stage.ENDED for one in kept.containers)


def test_a_plan_reads_as_one_line_per_step() -> None:
    seen = sandbox("0123456789abcdef", RUNNING_A)
    lines = [
        str(step)
        for step in (
            MakeSandbox(WEB), CreateContainer(WEB, WEB.containers[0], "s"), StartContainer(WEB, WEB.containers[0], "1"),
            StopContainer(RUNNING_A, seen), RemoveSandbox(seen, has_heir=False),
        )
    ]  # fmt: skip

    assert lines == [
        "make sandbox of web_default(web)",
        "create a of web_default(web) from i",
        "start a of web_default(web)",
        "stop a of default/web within 5 s",
        "remove sandbox 0123456789ab of default/web",
    ]


def test_the_identity_of_a_file_pod_is_stable_and_depends_on_content_node_and_path() -> None:
    """IDN-02: a golden value, because a new version must not restart pods."""
    assert static_uid("x", "n", "p") == "1e01eace8f89f8a3afef77c8923d98f1"
    assert (
        len({static_uid(*given) for given in [("x", "n", "p"), ("y", "n", "p"), ("x", "m", "p"), ("x", "n", "q")]}) == 4
    )


def test_a_path_that_is_no_utf8_has_an_identity_of_its_own() -> None:
    assert len({static_uid("x", "n", path) for path in ("\udcff", "\udcfe", "?", "ÿ")}) == 4


def test_what_a_sandbox_remembers_of_its_manifest_is_stable() -> None:
    """ADO-02: golden, for the same reason."""
    assert content_hash("x") == "2d711642b726b04401627ca9fbac32f5"
