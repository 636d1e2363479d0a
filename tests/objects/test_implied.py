# SPDX-License-Identifier: Apache-2.0
"""Namespaces and accounts that nobody wrote, and what an object keeps over the texts of its authors."""

from pathlib import Path

import pytest
import yaml

from agent.model.generation import generation_of, spec_generation
from agent.objects.implied import implied
from tests.objects.test_applying import objects_in

KEYS = [("Namespace", "", "made"), ("ConfigMap", "used", "a"), ("ServiceCIDR", "", "wide")]


def test_a_namespace_is_there_that_was_made_or_is_used_and_each_has_an_account() -> None:
    assert [key for key, _ in implied("Namespace", KEYS)] == [
        ("Namespace", "", name) for name in ("default", "made", "used")
    ]
    assert [key for key, _ in implied("ServiceAccount", KEYS)] == [
        ("ServiceAccount", name, "default") for name in ("default", "made", "used")
    ]
    assert not list(implied("", KEYS))
    assert not list(implied("ConfigMap", KEYS))


def test_a_status_is_about_the_count_of_changes_or_about_what_the_spec_says() -> None:
    assert generation_of({"metadata": {"generation": 3}, "spec": {"a": 1}}) == 3
    assert generation_of({"metadata": {"generation": "3"}, "spec": {"a": 1}}) == spec_generation({"a": 1})
    assert generation_of(None) == spec_generation(None)


@pytest.mark.parametrize("begin", [b"metadata:\n  name: w\n", b"metadata: {name: w}\n"])
async def test_an_author_who_knows_no_uid_changes_the_same_object(tmp_path: Path, begin: bytes) -> None:
    objects = objects_in(tmp_path)
    head = b"# mine\napiVersion: coordination.k8s.io/v1\nkind: Lease\n"
    made = head + b"metadata: {name: w, uid: u-1, generation: 4}\nspec: {holderIdentity: a}\n"
    await objects.apply(made, dry_run=False)
    await objects.apply(head + begin + b"spec: {holderIdentity: b}\n", dry_run=False)
    text = (tmp_path / "kepctl-Lease.default.w.yaml").read_text()
    assert text.startswith("# mine")
    assert yaml.safe_load(text)["metadata"] == {"name": "w", "uid": "u-1", "generation": 5}
