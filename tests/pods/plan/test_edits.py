# SPDX-License-Identifier: Apache-2.0
"""What becomes of a running pod, for every field that a manifest may have."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import fields

from agent.model.pods.container_fields import Container, Resources
from agent.model.pods.fields import Metadata, PodFields, Volume
from agent.model.pods.pod import PodSpec, container_hash
from agent.pods.plan.edits import IN_PLACE, POD, REPLACED, RESIZED, VOLUME, replaced_by
from tests.pods.pods import container, make_pod

PAGE = Path(__file__).parents[3] / "docs" / "edits.md"
NAME = re.compile(r"`((?:metadata|spec|containers\[\]|volumes\[\])\.\w+)`")
RESTARTED = "container restarted"
OF_PREFIX = {"metadata": Metadata, "spec": PodFields, "containers[]": Container, "volumes[]": Volume}


def of_volume(**fields: Any) -> PodSpec:
    return make_pod(volumes=[{"name": "v", **fields}])


def effect_in_code(prefix: str, field: Any) -> str:
    if prefix == "metadata":
        return REPLACED if field.encode_name in ("name", "namespace", "uid") else IN_PLACE
    if prefix == "containers[]":
        other = Resources(limits={"cpu": "1"}) if field.name == "resources" else "other"
        changed = msgspec.structs.replace(container("app"), **{field.name: other})
        return RESTARTED if container_hash(changed) != container_hash(container("app")) else RESIZED
    return (POD if prefix == "spec" else VOLUME)[field.encode_name]


def test_the_page_has_every_field_with_what_the_code_does() -> None:
    """A field that is new has no place yet, and this test says so."""
    _, *sections = PAGE.read_text().partition("\n## Every field\n")[2].split("\n### ")
    rows = [(name, part.partition("\n")[0].lower()) for part in sections for name in NAME.findall(part)]
    wanted = {
        f"{prefix}.{field.encode_name}": effect_in_code(prefix, field)
        for prefix, struct in OF_PREFIX.items()
        for field in fields(struct)
    }

    assert dict(rows) == wanted
    assert len(rows) == len(wanted)


@pytest.mark.parametrize("field", fields(PodFields), ids=lambda field: field.name)
def test_a_pod_is_replaced_for_the_fields_of_its_sandbox_and_for_no_other(field: Any) -> None:
    """MAN-11."""
    before = make_pod()
    other = () if field.encode_name in ("containers", "initContainers", "volumes") else object()
    after = msgspec.structs.replace(before.spec, **{field.name: other})
    found = replaced_by(before, PodSpec(namespace="default", name="web", uid="u1", spec=after))

    assert found == (f"spec.{field.encode_name}" if POD[field.encode_name] == REPLACED else "")


@pytest.mark.parametrize(
    ("before", "after", "is_replaced"),
    [
        ({"configMap": {"name": "a"}}, {"configMap": {"name": "b"}}, False),
        ({"configMap": {"name": "a"}}, {"secret": {"secretName": "a"}}, True),
        ({"hostPath": {"path": "/a"}}, {"hostPath": {"path": "/b"}}, True),
        ({"emptyDir": {}}, {"emptyDir": {"medium": "Memory"}}, True),
    ],
)
def test_content_of_a_volume_follows_and_another_volume_needs_another_pod(
    before: dict[str, Any], after: dict[str, Any], is_replaced: bool
) -> None:
    """VOL-07: what is mounted cannot be changed under a container."""
    assert bool(replaced_by(of_volume(**before), of_volume(**after))) == is_replaced
    assert not replaced_by(make_pod(), of_volume(**after)), "a new volume"
    assert not replaced_by(of_volume(**before), make_pod()), "one volume less"


@pytest.mark.parametrize(
    ("more", "is_replaced"),
    [
        ({"ports": [{"containerPort": 80, "hostPort": 8080}]}, True),
        ({"ports": [{"containerPort": 80}]}, False),
        ({"securityContext": {"privileged": True}}, True),
        ({"securityContext": {"runAsUser": 1}}, False),
        ({"image": "other"}, False),
    ],
)
def test_a_container_that_needs_another_sandbox_replaces_the_pod(more: dict[str, Any], is_replaced: bool) -> None:
    """NET-04: host ports belong to the sandbox, and no privileged container starts in one that is not."""
    before, after = make_pod(("app",)), make_pod((container("app", **more),))

    assert bool(replaced_by(before, after)) == bool(replaced_by(after, before)) == is_replaced


def test_another_name_is_another_pod() -> None:
    assert replaced_by(make_pod(), PodSpec(namespace="default", name="other", uid="u1")).startswith("metadata.name")
