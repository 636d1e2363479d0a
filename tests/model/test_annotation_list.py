# SPDX-License-Identifier: Apache-2.0
"""The one grammar of `kepd.dev/` annotations, through both planes that read them."""

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.annotation_list import AnnotationFault, AnnotationReader, one_of, parse_duration, parts_of
from agent.model.pods.pod import ContainerKind
from agent.pods.manifest import annotations as of_pods
from agent.pods.plan.order import Member
from agent.proxy.gates import annotations as of_proxy

MEMBERS = [Member(name=name, kind=ContainerKind.MAIN) for name in ("a", "b")]
Read = Callable[[Mapping[str, str]], tuple[dict[str, float], tuple[tuple[str, str], ...]]]


def in_pods(notes: Mapping[str, str]) -> tuple[dict[str, float], tuple[tuple[str, str], ...]]:
    found = of_pods.read_annotations(notes, MEMBERS)
    return found.graces_s, found.faults


def in_proxy(notes: Mapping[str, str]) -> tuple[dict[str, float], tuple[tuple[str, str], ...]]:
    found = of_proxy.read_annotations({note.replace("grace", "prestop-sleep"): text for note, text in notes.items()})
    faults = tuple((note.replace("prestop-sleep", "grace"), text) for note, text in found.faults)
    return dict(found.sleeps_s), faults


BOTH = pytest.mark.parametrize("read", [in_pods, in_proxy])


@BOTH
@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ({"grace": "a=5s,b=3s"}, {"a": 5.0, "b": 3.0}),
        ({"grace": "a=5s, b=3s"}, {"a": 5.0, "b": 3.0}),
        ({"grace": " a = 5s ,\n b = 3s , "}, {"a": 5.0, "b": 3.0}),
        ({"grace.a": "5s", "grace": "b=3s"}, {"a": 5.0, "b": 3.0}),
        ({"grace.a": " 1h2m3.5s4ms "}, {"a": 3723.504}),
        ({"grace": ""}, {}),
    ],
)
def test_both_planes_understand_the_same(read: Read, notes: dict[str, str], expected: dict[str, float]) -> None:
    """FP-28."""
    found, faults = read({f"kepd.dev/{key}": text for key, text in notes.items()})

    assert (found, faults) == (expected, ())


@BOTH
@pytest.mark.parametrize(
    ("notes", "annotation", "fault"),
    [
        ({"grace": "a"}, "grace", "'' is not a duration"),
        ({"grace": "a=5"}, "grace", "'5' is not a duration"),
        ({"grace": "a=b=5s"}, "grace", "'b=5s' is not a duration"),
        ({"grace.a": "soon"}, "grace.a", "'soon' is not a duration"),
        ({"grace.a": "-5s"}, "grace.a", "is not a duration"),
        ({"grace.a": "٥s"}, "grace.a", "is not a duration"),
        ({"grace.a": "9" * 400 + "s"}, "grace.a", "is longer than a year"),
        ({"grace": "A=5s"}, "grace", "'A'"),
        ({"grace": "=5s"}, "grace", "''"),
        ({"grace": "a=5s,a=6s"}, "grace", "'a' is given more than once"),
        ({"grace": "a=5s", "grace.a": "6s"}, "grace.a", "'a' is given more than once"),
        ({"grace": "a=5s", "grace.a": "6s"}, "grace", "'a' is given more than once"),
    ],
)
def test_both_planes_refuse_the_same_and_keep_the_rest(
    read: Read, notes: dict[str, str], annotation: str, fault: str
) -> None:
    """FP-28: a value that cannot be used costs its own annotation alone."""
    found, faults = read({**{f"kepd.dev/{key}": text for key, text in notes.items()}, "kepd.dev/grace.b": "3s"})

    assert found == {"b": 3.0}
    assert any(key == f"kepd.dev/{annotation}" and fault in text for key, text in faults), faults


@BOTH
def test_what_is_wrong_with_one_pod_stays_readable(read: Read) -> None:
    """Each fault becomes an event: a tenant gets a few of them, however long the annotation is."""
    _, faults = read({"kepd.dev/grace": ",".join(f"NO{number}={'9' * 500}" for number in range(1000))})

    assert (len(faults), max(len(text) for _, text in faults) < 500) == (20, True)


def test_a_plane_that_knows_the_containers_names_them() -> None:
    _, faults = in_pods({"kepd.dev/grace": "c=5s"})

    assert faults == (("kepd.dev/grace", "there is no container 'c'; expected one of a, b"),)


def test_a_comma_between_brackets_belongs_to_its_value() -> None:
    assert parts_of('a=exec:["x", "y"], b=started,,c') == ('a=exec:["x", "y"]', "b=started", "c")


def test_a_value_out_of_a_few_and_a_default() -> None:
    reader = AnnotationReader({"kepd.dev/x": "no", "kepd.dev/y": "on"})

    assert [reader.value(key, one_of("on", "off"), "off") for key in ("x", "y", "z")] == ["off", "on", "off"]
    assert reader.faults == [("kepd.dev/x", "'no' is none of on, off")]


def test_a_command_that_is_nested_beyond_reason_is_a_fault() -> None:
    """The reader of JSON raises no ValueError there."""
    found = of_proxy.read_annotations({"kepd.dev/ready.a": "exec:" + "[" * 100_000})

    assert [annotation for annotation, _ in found.faults] == ["kepd.dev/ready.a"]


@given(
    st.dictionaries(
        st.sampled_from(["grace", "grace.a", "depends-on.a", "max-restarts", "keystone", "prestop-at-turn"]),
        st.text(st.sampled_from("ab=,/[]5smh \n²٥")),
    )
)
def test_no_text_breaks_the_reading(notes: dict[str, str]) -> None:
    of_pods.read_annotations({f"kepd.dev/{key}": text for key, text in notes.items()}, MEMBERS)
    with_reader = AnnotationReader({f"kepd.dev/{key}": text for key, text in notes.items()})
    with_reader.by_container("grace", lambda _name, text: parse_duration(text))

    assert all(isinstance(text, str) for _, text in with_reader.faults)
    for text in notes.values():
        try:
            assert parse_duration(text) >= 0
        except AnnotationFault:
            continue


def test_a_reader_that_fails_otherwise_costs_its_annotation_alone() -> None:
    """FP-28: a ValueError of a library is no reason to leave other pods without their plane."""
    reader = AnnotationReader({"kepd.dev/number": "9" * 5000, "kepd.dev/number.a": "9" * 5000})

    assert reader.value("number", int, 7) == 7
    assert reader.by_container("number", lambda _name, text: int(text), has_list=False) == {}
    assert all(text.startswith("cannot be read: ") for _, text in reader.faults)
