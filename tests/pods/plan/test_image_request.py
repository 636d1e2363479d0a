# SPDX-License-Identifier: Apache-2.0
"""What the queue is told of a pod that wants an image."""

import pytest

from agent.model.images.pull import PullPolicy
from agent.pods.run.one_pod.pod_images import image_request
from agent.pods.runtime.environment import EnvironmentSource
from tests.pods.pods import make_pod

JSON = b'{"auths": {}}'


def secret(name: str, **data: bytes) -> dict[tuple[str, str, str], EnvironmentSource]:
    one = EnvironmentSource(
        kind="Secret", namespace="default", name=name, data={f".{key}": value for key, value in data.items()}
    )
    return {one.key: one}


@pytest.mark.parametrize(
    ("spec", "priority"),
    [
        ({}, 0),
        ({"priority": 7}, 7),
        ({"priorityClassName": "system-node-critical"}, 2_000_001_000),
        ({"priority": -3, "priorityClassName": "low"}, -3),
    ],
)
def test_how_urgent_it_is(spec: dict[str, object], priority: int) -> None:
    """IMG-S09, for pods from files too."""
    request = image_request(make_pod(**spec), "i:1", "Always", "app", {})
    assert (request.priority, request.policy, request.container) == (priority, PullPolicy.ALWAYS, "app")
    assert (request.pod.namespace, request.pod.name, request.pod.uid) == ("default", "web", "u1")


def test_which_secrets_it_brings() -> None:
    """In the order named; a Secret of another kind brings nothing, one that is not there is named."""
    sources = secret("old", dockercfg=b"{}") | secret("new", dockerconfigjson=JSON) | secret("other", key=b"x")
    names = [{"name": name} for name in ("new", "gone", "other", "old")]
    request = image_request(make_pod(imagePullSecrets=names), "i:1", "IfNotPresent", "app", sources)

    assert [(one.id.name, one.type) for one in request.secrets] == [
        ("new", "kubernetes.io/dockerconfigjson"),
        ("other", ""),
        ("old", "kubernetes.io/dockercfg"),
    ]
    assert request.secrets[0].data[".dockerconfigjson"].reveal() == JSON.decode()
    assert not request.secrets[1].data
    assert request.missing_secrets == ("gone",)
    assert "auths" not in repr(request)


def test_a_secret_of_another_namespace_is_none() -> None:
    found = EnvironmentSource(kind="Secret", namespace="other", name="s", data={".dockerconfigjson": JSON})
    request = image_request(
        make_pod(imagePullSecrets=[{"name": "s"}]), "i:1", "IfNotPresent", "app", {found.key: found}
    )
    assert (request.secrets, request.missing_secrets) == ((), ("s",))
