# SPDX-License-Identifier: Apache-2.0
"""What `kepctl describe pod` says of requests and limits."""

from typing import Any

import pytest

from agent.api.pod_service import _pod
from agent.cli.listings import resource_lines
from tests.pods.pods import World, container, make_pod
from tests.pods.view.test_status import shown


def described(*resources: dict[str, Any], **spec: Any) -> list[str]:
    names = "abc"
    pod = make_pod([container(name, resources=one) for name, one in zip(names, resources, strict=False)], **spec)
    return list(resource_lines(_pod(shown(World(pod)))))


@pytest.mark.parametrize(
    ("resources", "spec", "lines"),
    [
        (({},), {}, ["container a: requests none; limits none", "pod as a whole: requests none; limits none"]),
        (
            ({"limits": {"cpu": 0.5, "memory": "64Mi"}}, {"requests": {"cpu": "100m", "hugepages-2Mi": "4Mi"}}),
            {},
            [
                "container a: requests cpu 0.5, memory 64Mi; limits cpu 0.5, memory 64Mi",
                "container b: requests cpu 100m, hugepages-2Mi 4Mi; limits none",
                "pod as a whole: requests none; limits none",
            ],
        ),
        (
            ({"requests": {"cpu": "100m"}},),
            {"resources": {"limits": {"cpu": "2", "memory": "1000"}}},
            [
                "container a: requests cpu 100m; limits none",
                "pod as a whole: requests cpu 2, memory 1000; limits cpu 2, memory 1000",
            ],
        ),
    ],
)
def test_requests_and_limits_are_shown_by_container_and_for_the_pod(
    resources: tuple[dict[str, Any], ...], spec: dict[str, Any], lines: list[str]
) -> None:
    """RES-02: a request that is missing is the limit."""
    assert described(*resources, **spec) == ["resources:", *(f"  {line}" for line in lines)]
