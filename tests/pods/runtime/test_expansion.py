# SPDX-License-Identifier: Apache-2.0
"""What a short text may grow to: a manifest of 4 KB asks for no more than a kernel takes, and costs little memory."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.config.strict_yaml import UnreadableYaml, parse_documents
from agent.model.pods.pod import PodSpec
from agent.model.refused import Refused
from agent.model.text.jsonpath import MOST_SIGNS, render
from agent.pods.runtime.environment import (
    MOST_PROGRAM_BYTES,
    MOST_STRING_BYTES,
    ConfigProblem,
    EnvironmentSource,
    PodFacts,
    ProgramRoom,
    expand,
    expand_all,
    resolve_environment,
)
from agent.pods.runtime.volume_plan import MOST_CONTENT_BYTES, plan_volumes
from kepd_devices.cel.program import program
from kepd_devices.cel.values import Device, Domains, EvaluationFailed
from tests.pods.pods import container, make_pod

MOST_INPUT = 4 << 10
MOST_MEMORY = 16 << 20
DEVICE = Device(driver="gpu.example.com", attributes=Domains(), capacity=Domains())


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= MOST_MEMORY


def doubled(lines: int) -> list[dict[str, str]]:
    """Each variable is twice the one before."""
    return [{"name": f"A{i}", "value": f"$(A{i - 1})$(A{i - 1})" if i else "x" * 10} for i in range(lines)]


def program_of(pod: PodSpec) -> list[str]:
    """Every string that the kernel would get, for the first container of a pod."""
    first, room = pod.by_name["app"], ProgramRoom()
    environment = resolve_environment(pod, first, {}, PodFacts(), room)
    values = dict(environment)
    arguments = [
        *expand_all(first.fields.command, values, "command", room), *expand_all(first.fields.args, values, "args", room)
    ]  # fmt: skip
    return [*arguments, *(f"{name}={value}" for name, value in environment)]


def test_variables_that_double_each_other_end_in_an_error_with_their_path() -> None:
    """NP-1."""
    pod = make_pod([container("app", env=doubled(40))], inits=["+side"])

    with little_memory(), pytest.raises(ConfigProblem, match=r"spec\.containers\[0\]\.env\[14\]\.value: ") as caught:
        program_of(pod)

    assert caught.value.reason == "CreateContainerConfigError"
    assert str(MOST_STRING_BYTES) in str(caught.value)
    assert "xxxx" not in str(caught.value)


def test_arguments_with_large_values_end_in_an_error_with_their_path() -> None:
    """NP-1."""
    env = [{"name": "A", "value": "x" * 60_000}]
    one = make_pod([container("app", env=env, args=["ok", "$(A)$(A)$(A)"])])
    many = make_pod([container("app", env=env, args=["$(A)"] * 100)])

    with pytest.raises(ConfigProblem, match=r"args\[1\]: has at least 180000 bytes"):
        program_of(one)
    with little_memory(), pytest.raises(ConfigProblem, match=rf"args\[\d+\]: .* at most {MOST_PROGRAM_BYTES}"):
        program_of(many)


def test_a_value_from_elsewhere_is_bounded_like_one_that_is_written_out() -> None:
    """NP-1."""
    data = {"long": b"x" * MOST_STRING_BYTES, **{f"K{i}": b"y" * 100_000 for i in range(30)}}
    source = EnvironmentSource(kind="ConfigMap", namespace="default", name="c", data=data)
    sources = {source.key: source}
    reference = {"configMapKeyRef": {"name": "c", "key": "long"}}
    one = make_pod([container("app", env=[{"name": "A", "valueFrom": reference}])])
    all_keys = make_pod([container("app", envFrom=[{"configMapRef": {"name": "c"}}])])

    with pytest.raises(ConfigProblem, match=r"env\[0\]\.valueFrom"):
        resolve_environment(one, one.containers[0], sources, PodFacts())
    with pytest.raises(ConfigProblem, match=r"envFrom\[0\], key K"):
        resolve_environment(all_keys, all_keys.containers[0], sources, PodFacts())


def test_a_variable_that_is_given_again_takes_its_room_once() -> None:
    env = [{"name": "A", "value": "x" * 100_000}] * 40
    pod = make_pod([container("app", env=env)])

    assert len(program_of(pod)) == 1


def test_a_path_that_no_kernel_takes_is_an_error() -> None:
    """NP-1: subPathExpr."""
    with pytest.raises(ConfigProblem, match=r"subPathExpr: has at least 6000 bytes .* expected at most 4096"):
        expand("$(A)$(A)", {"A": "x" * 3000}, "subPathExpr", 4096)


references = st.integers(0, 9).map(lambda i: f"$(V{i})")
pieces = st.lists(st.one_of(references, st.text("ab$()é😀", max_size=40)), max_size=40).map("".join)


@settings(max_examples=200, deadline=None)
@given(st.lists(pieces, max_size=60), st.lists(pieces, max_size=10))
def test_whatever_a_manifest_says_a_program_gets_what_a_kernel_takes(values: list[str], args: list[str]) -> None:
    """NP-1: 4 KB in."""
    env: list[Any] = [{"name": f"V{i % 10}", "value": value} for i, value in enumerate(values)]
    while len(str(env)) + len(str(args)) > MOST_INPUT and env:
        env.pop()
    pod = make_pod([container("app", env=env, args=args[: 40 if env else 1])])
    try:
        found = program_of(pod)
    except ConfigProblem:
        return
    sizes = [len(one.encode()) + 1 for one in found]

    assert max(sizes, default=0) <= MOST_STRING_BYTES
    assert sum(sizes) <= MOST_PROGRAM_BYTES


def many_paths() -> None:
    """One key under many paths."""
    source = EnvironmentSource(kind="ConfigMap", namespace="default", name="c", data={"k": b"x" * (1 << 20)})
    items = [{"key": "k", "path": f"p{i}"} for i in range(90)]
    pod = make_pod(volumes=[{"name": "v", "configMap": {"name": "c", "items": items}}])
    plan_volumes(pod, {source.key: source}, PodFacts())


def many_fields() -> None:
    """All annotations under many paths."""
    items = [{"path": f"p{i}", "fieldRef": {"fieldPath": "metadata.annotations"}} for i in range(40)]
    pod = make_pod(volumes=[{"name": "v", "downwardAPI": {"items": items}}])
    plan_volumes(PodSpec(**{**fields_of(pod), "annotations": (("a", "\x01" * 2000),)}), {}, PodFacts())


def fields_of(pod: PodSpec) -> dict[str, Any]:
    return {name: getattr(pod, name) for name in ("namespace", "name", "uid", "hash", "spec")}


@pytest.mark.parametrize("plan", [many_paths, many_fields])
def test_the_files_of_volumes_have_a_bound(plan: Callable[[], None]) -> None:
    """NP-1: what one item says may be large and stand under many paths."""
    with little_memory():
        try:
            plan()
        except ConfigProblem as problem:
            assert (problem.reason, str(MOST_CONTENT_BYTES) in str(problem)) == ("FailedMount", True)
        else:
            assert plan is many_fields


BOUND = "cel.bind(v0, '😀', " + "".join(f"cel.bind(v{n}, v{n - 1} + v{n - 1}, " for n in range(1, 40))
LISTS = "[1,2,3,4,5,6,7,8,9].map(a, " * 6 + "[a]" + ")" * 6
EIGHT = "a+a+a+a+a+a+a+a"


@pytest.mark.parametrize(
    "text",
    [
        BOUND + "v39 == ''" + ")" * 40,
        f"{LISTS} == []",
        "['x']" + f".map(a, {EIGHT})" * 10 + "[0].size() > 0",
        "[{'a': 1}]" + ".map(a, [a, a, a, a, a, a, a, a]).flatten()" * 10 + " == []",
        "'é'" + ".replace('é', 'ééééééééé')" * 20 + " == ''",
        "'a,'" + ".replace(',', ',a,a,a,a,a,a,aa,')" * 8 + ".split(',') == []",
    ],
)
def test_an_expression_makes_little_of_little(text: str) -> None:
    """NP-1: CEL strings and lists."""
    with little_memory(), pytest.raises(EvaluationFailed, match=r"more than|longer than"):
        program(text).is_true_of(DEVICE)


@pytest.mark.parametrize(
    "template",
    [
        "{range .items[*]}" * 9 + "x" + "{end}" * 9,
        "{" + ".items" + "['a','a','a','a','a','a','a','a']" * 8 + "}",
        "{" + "..a" + "..*" * 40 + "}",
        "{range .items['a','a','a','a','a','a','a','a']['a','a','a','a','a','a','a','a']}" * 1
        + "{range ['a','a','a','a','a','a','a','a']['a','a','a','a','a','a','a','a']}" * 3 + "x" + "{end}" * 4,
    ],
)  # fmt: skip
def test_a_template_writes_little_of_little(template: str) -> None:
    """NP-1: jsonpath."""
    data: Any = {"items": 0}
    for _ in range(12):
        data = {"a": data, "items": data, "b": data}
    listed = {"items": [{"items": [{"items": [1] * 20}] * 20}] * 20}
    deep = {"items": data}
    with little_memory():
        for one in (listed, deep):
            try:
                assert len(render(template, one)) <= MOST_SIGNS
            except Refused as failed:
                assert "more than" in str(failed)


def test_an_alias_costs_what_it_stands_for() -> None:
    """NP-1: a document is written out again, for its hash, with each alias as its text."""
    text = "a: &a " + "x" * 100_000 + "\nb: [" + "*a, " * 5000 + "]\n"

    with little_memory(), pytest.raises(UnreadableYaml):
        parse_documents(text, "m.yaml")
    assert msgspec.json.encode(parse_documents("a: &a x\nb: [*a, *a]\n", "m.yaml")[0][0])
