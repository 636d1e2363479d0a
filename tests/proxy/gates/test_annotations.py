# SPDX-License-Identifier: Apache-2.0
"""Annotations: what is understood, and what is told about the rest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.proxy.gates.annotations import ProxyAnnotations, Ready, read_annotations


def read(**notes: str) -> ProxyAnnotations:
    return read_annotations(
        {f"kepd.dev/{key.replace('__', '.').replace('_', '-')}": value for key, value in notes.items()}
    )


def test_everything_that_can_be_asked_for() -> None:
    wishes = read(
        sidecars="proxy, logger",
        mains="app",
        ready__proxy="http:15021/healthz/ready",
        ready__logger='exec:["test", "-e", "/x,y"]',
        start_timeout="1m30s",
        start_policy="strict",
        prestop_sleep__app="500ms",
        job_end="any",
    )

    assert wishes == ProxyAnnotations(
        sidecars=("proxy", "logger"),
        mains=("app",),
        ready={
            "proxy": Ready("http", port=15021, path="/healthz/ready"),
            "logger": Ready("exec", command=("test", "-e", "/x,y")),
        },
        start_timeout_s=90.0,
        is_strict=True,
        sleeps_s={"app": 0.5},
        job_end="any",
    )


def test_both_forms_say_the_same() -> None:
    """Long names have no room behind a key; commas inside an exec belong to it."""
    listed = read(ready='a=tcp:80,b=exec:["x", "y"],c=started', prestop_sleep="a=1s,b=2s")

    assert dict(listed.ready) == {"a": Ready("tcp", port=80), "b": Ready("exec", command=("x", "y")), "c": Ready()}
    assert dict(listed.sleeps_s) == {"a": 1.0, "b": 2.0}
    assert listed.faults == ()


@pytest.mark.parametrize(
    ("notes", "annotation"),
    [
        ({"sidecars": "Big"}, "kepd.dev/sidecars"),
        ({"sidecars": ""}, "kepd.dev/sidecars"),
        ({"sidecars": "a,a"}, "kepd.dev/sidecars"),
        ({"sidecars": "a", "mains": "a,b"}, "kepd.dev/mains"),
        ({"sidecars": "a", "start_timeout": "soon"}, "kepd.dev/start-timeout"),
        ({"sidecars": "a", "start_policy": "maybe"}, "kepd.dev/start-policy"),
        ({"ready__a": "tcp:0"}, "kepd.dev/ready.a"),
        ({"ready__a": "tcp:http"}, "kepd.dev/ready.a"),
        ({"ready__a": "exec:ls"}, "kepd.dev/ready.a"),
        ({"ready__a": "exec:[]"}, "kepd.dev/ready.a"),
        ({"ready__a": "started:now"}, "kepd.dev/ready.a"),
        ({"ready__a": "tcp:80", "ready": "a=tcp:81"}, "kepd.dev/ready.a"),
        ({"prestop_sleep__a": "5"}, "kepd.dev/prestop-sleep.a"),
        ({"prestop_sleep": "A=5s"}, "kepd.dev/prestop-sleep"),
        ({"job_end": "success"}, "kepd.dev/job-end"),
        ({"sidecars": "a", "mains": "b", "job_end": "yes"}, "kepd.dev/job-end"),
    ],
)
def test_a_wrong_value_is_told_with_its_annotation(notes: dict[str, str], annotation: str) -> None:
    assert annotation in [name for name, _ in read(**notes).faults]


def test_a_wrong_value_leaves_the_others_in_force() -> None:
    wishes = read(sidecars="a", mains="b", start_timeout="soon", prestop_sleep__b="2s")

    assert (wishes.sidecars, wishes.mains, wishes.start_timeout_s, dict(wishes.sleeps_s)) == (
        ("a",), ("b",), 60.0, {"b": 2.0}
    )  # fmt: skip


def test_a_pod_of_others_is_empty() -> None:
    """NOH-8."""
    assert read_annotations({"example.com/sidecars": "a"}).is_empty
    assert read(topology_keys="x").is_empty


@given(
    st.dictionaries(st.sampled_from(["sidecars", "mains", "ready", "ready.a", "prestop-sleep", "job-end"]), st.text())
)
def test_no_text_breaks_the_reading(notes: dict[str, str]) -> None:
    read_annotations({f"kepd.dev/{key}": value for key, value in notes.items()})


@pytest.mark.parametrize("value", ["tcp:" + "1" * 5000, "http:" + "9" * 5000 + "/x", "tcp:٣", "tcp:65536"])
def test_no_port_of_a_pod_stops_the_proxy(value: str) -> None:
    """FP-28: the annotations of all pods are read at every start, before the kubelet has its socket."""
    wishes = read_annotations({"kepd.dev/sidecars": "p", "kepd.dev/mains": "m", "kepd.dev/ready.p": value})

    assert [key for key, _ in wishes.faults] == ["kepd.dev/ready.p"]
    assert "is not a port from 1 to 65535" in wishes.faults[0][1]
