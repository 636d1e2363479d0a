# SPDX-License-Identifier: Apache-2.0
"""What is done with objects after they were read: admission, patches, selectors, policies."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from agent.kinds.registry import MANIFEST_KINDS
from agent.kinds.selectors import parse_selector
from agent.model.pods.pod import ContainerKind
from agent.model.text.jsonpath import render
from agent.objects import patches
from agent.objects.admitting import NOTHING, admit
from agent.objects.all_readings import _readings
from agent.objects.reading import Readings
from agent.pods.plan.order import Dependency, Member, cycle, waits_for_end
from kepd_door.shape.dressing import with_last_applied
from kepd_door.shape.selecting import Selection
from tests.price.counting import lines_of

SIZE = 200
MOST_MORE = 4000
READINGS = Readings(list(_readings(None)))
Work = Callable[[], object]


def pods(size: int, *, named: str = "p{}") -> list[dict[str, Any]]:
    spec = {"containers": [{"name": "a", "image": "r.test/i:1"}]}
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": named.format(number)}, "spec": spec}
        for number in range(size)
    ]


def one_file(size: int) -> Work:
    text = b"\n---\n".join(json.dumps(pod).encode() for pod in pods(size))
    return partial(admit, {"/m/a.yaml": text}, {}, NOTHING, READINGS, MANIFEST_KINDS)


def many_files(size: int) -> Work:
    files = {f"/m/{number}.yaml": json.dumps(pod).encode() for number, pod in enumerate(pods(size))}
    return partial(admit, files, {}, NOTHING, READINGS, MANIFEST_KINDS)


def rivals(size: int) -> Work:
    files = {f"/m/{number}.yaml": json.dumps(pod).encode() for number, pod in enumerate(pods(size, named="same"))}
    return partial(admit, files, {}, NOTHING, READINGS, MANIFEST_KINDS)


def swapped(size: int) -> Work:
    """All names go to another file at once."""
    texts = [json.dumps(pod).encode() for pod in pods(size)]
    before = admit({f"/m/{n}.yaml": text for n, text in enumerate(texts)}, {}, NOTHING, READINGS, MANIFEST_KINDS)
    files = {f"/m/{n}.yaml": text for n, text in enumerate(reversed(texts))}
    return partial(admit, files, {}, before, READINGS, MANIFEST_KINDS)


def containers(size: int) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": f"c{n}", "env": [{"name": "A", "value": f"{n}"}]} for n in range(size)]}}


def strategic(size: int) -> Work:
    order = [{"name": f"c{n}"} for n in reversed(range(size))]
    patch = {"spec": {**containers(size)["spec"], "$setElementOrder/containers": order}}
    return partial(patches.patched, containers(size), patch, "strategic")


def merge(size: int) -> Work:
    names = [str(number) for number in range(size)]
    return partial(patches.patched, {"a": dict.fromkeys(names, 1)}, {"a": dict.fromkeys(names)}, "merge")


def json_patch(size: int) -> Work:
    return partial(patches.patched, {"a": []}, [{"op": "add", "path": "/a/0", "value": 1}] * size, "json")


def applied(size: int) -> Work:
    return partial(patches.applied, containers(size), containers(size), containers(size // 2))


def given_back(size: int) -> Work:
    return partial(patches.without_shown, containers(size), containers(size), containers(size))


def difference(size: int) -> Work:
    return partial(patches.difference, containers(size), containers(size + 1))


def last_applied(size: int) -> Work:
    return partial(with_last_applied, {"metadata": {}}, containers(size), "kubectl")


def labels(size: int) -> Work:
    terms = ",".join(f"k{n} in (a,b),!x{n}" for n in range(size))
    return lambda: parse_selector(terms)({})


def fields(size: int) -> Work:
    query = {"fieldSelector": ",".join(f"metadata.k{n}!=a" for n in range(size))}
    return lambda: Selection(query).holds({"metadata": {"name": "x"}})


def path(size: int) -> Work:
    return partial(render, "{.spec.containers[*].name}" * 3, containers(size))


def filtered(size: int) -> Work:
    return partial(render, "{range .spec.containers[?(@.name=='c1')]}{.name}{end}", containers(size))


def needs(size: int) -> Work:
    row = [Member(name=f"c{n}", kind=ContainerKind.MAIN, needs=(Dependency(name=f"c{n + 1}"),)) for n in range(size)]
    starters = [Member(name=f"i{n}", kind=ContainerKind.INIT) for n in range(size)]
    return partial(cycle, [*starters, *row])


def ends(size: int) -> Work:
    """Its answer is of pairs, so that it is for as many containers as a pod may have."""
    return partial(waits_for_end, [Member(name=f"c{n}", kind=ContainerKind.MAIN) for n in range(size)])


WORKS: Mapping[str, Callable[[int], Work]] = {
    work.__name__: work
    for work in (
        one_file, many_files, rivals, swapped, strategic, merge, json_patch, applied, given_back, difference,
        last_applied, labels, fields, path, filtered, needs, ends,
    )
}  # fmt: skip


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_work_costs_no_more_than_in_proportion(work: Callable[[int], Work]) -> None:
    small, large = (lines_of(work(size)) for size in (SIZE, 2 * SIZE))

    assert large - 2 * small < MOST_MORE, (small, large)
