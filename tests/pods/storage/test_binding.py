# SPDX-License-Identifier: Apache-2.0
"""Which volume serves a claim, and what its manifest may say."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.finding import Finding
from agent.objects.decoding import documents_of
from agent.pods.storage.binding import (
    WAITS,
    ClaimRecord,
    Storage,
    StorageSettings,
    Unbound,
    bind_all,
    directory_volume,
    storage_of,
)
from agent.pods.storage.objects import CLAIM, WantedClaim, WantedVolume, read_storage

SETTINGS = StorageSettings("/srv/claims", "n", {"kubernetes.io/hostname": "n"})


def read(text: str) -> tuple[list[Any], list[Finding]]:
    findings: list[Finding] = []
    trees, _ = documents_of(text.encode(), "/m/s.yaml")
    found = [read_storage(tree, str(tree.entries["kind"].scalar), "/m/s.yaml", findings) for tree in trees]
    return [one for one in found if one is not None], findings


def storage(*texts: str) -> Storage:
    found, findings = read("\n---\n".join(texts))
    assert findings == []
    return storage_of(found)


def claim(name: str = "data", more: str = "", size: str = "1Gi", modes: str = "ReadWriteOnce") -> str:
    return f"""apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec: {{accessModes: [{modes}], resources: {{requests: {{storage: {size}}}}}{more}}}"""


def volume(name: str = "disk", more: str = "", size: str = "2Gi", modes: str = "ReadWriteOnce") -> str:
    return f"""apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}, labels: {{of: {name}}}}}
spec: {{accessModes: [{modes}], capacity: {{storage: {size}}}, hostPath: {{path: /srv/{name}}}{more}}}"""


def storage_class(name: str, provisioner: str, more: str = "", mark: str = "") -> str:
    notes = f", annotations: {{storageclass.kubernetes.io/is-default-class: '{mark}'}}" if mark else ""
    return f"""apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: {name}{notes}}}
provisioner: {provisioner}{more}"""


def bound(
    given: Storage, records: Iterable[ClaimRecord] = (), settings: StorageSettings = SETTINGS, *, is_used: bool = True
) -> dict[str, str]:
    """The paths that serve claims, or why none does."""
    known = {record.key: record for record in records}
    found = bind_all(given.claims.values(), given, settings, known, is_used=is_used)
    return {one.name: what.path if isinstance(what, ClaimRecord) else what.text for one, what in found}


def test_a_claim_gets_a_directory_with_the_first_pod_that_uses_it() -> None:
    given = storage(claim())
    (_, before), *_ = bind_all(given.claims.values(), given, SETTINGS, {}, is_used=False)

    assert isinstance(before, Unbound)
    assert before.reason == WAITS
    assert bound(given) == {"data": "/srv/claims/default/data"}


def test_a_volume_that_fits_is_taken_at_once_and_the_smallest_first() -> None:
    given = storage(claim(), claim("more"), volume("large", size="9Gi"), volume("small"), volume("tiny", size="1Mi"))

    assert bound(given, is_used=False) == {"data": "/srv/small", "more": "/srv/large"}


@pytest.mark.parametrize(
    ("asked", "offered", "said"),
    [
        (", storageClassName: ''", ", storageClassName: fast", "none of the volumes without a class fits"),
        (", volumeName: other", "", 'volume "other" is in no manifest'),
        (", volumeName: disk, storageClassName: ''", ", claimRef: {name: else}", "is kept for default/else"),
        (", selector: {matchLabels: {of: none}}", "", 'its selector takes fits; "disk" is not selected'),
        (
            ", volumeName: disk",
            (
                ", nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: "
                "[{key: kubernetes.io/hostname, operator: In, values: [m]}]}]}}"
            ),
            "is of another node than n",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(asked: str, offered: str, said: str) -> None:
    assert said in bound(storage(claim(more=asked), volume(more=offered)))["data"]


def test_what_is_asked_for_by_name_has_to_be_large_enough_and_to_have_the_modes() -> None:
    small = storage(claim(more=", volumeName: disk", size="3Gi"), volume())
    narrow = storage(claim(more=", volumeName: disk", modes="ReadWriteMany"), volume())

    assert bound(small) == {"data": 'volume "disk" has 2Gi, and 3Gi are asked for'}
    assert bound(narrow) == {"data": 'volume "disk" has no access mode ReadWriteMany'}


def test_classes_of_others_get_directories_or_none_as_the_node_says() -> None:
    cloud = storage_class("fast", "ebs.csi.aws.com")
    given = storage(claim(more=", storageClassName: fast"), claim("x", ", storageClassName: unknown"), cloud)
    own = StorageSettings("/srv/claims", "n", takes_any_class=False)

    assert set(bound(given).values()) == {"/srv/claims/default/data", "/srv/claims/default/x"}
    assert all("pods.claimClasses" in why for why in bound(given, settings=own).values())
    assert bound(storage(claim()), settings=own) == {"data": "/srv/claims/default/data"}


def test_a_class_without_a_provisioner_makes_nothing() -> None:
    given = storage(claim(more=", storageClassName: local"), storage_class("local", "kubernetes.io/no-provisioner"))

    assert bound(given)["data"] == 'no volume of class "local" fits, and it makes none'


def test_only_a_class_that_says_so_deletes() -> None:
    classes = [
        storage_class("kept", "kepd.dev/directory"),
        storage_class("gone", "kepd.dev/directory", "\nreclaimPolicy: Delete", "true"),
    ]
    given = storage(claim(more=", storageClassName: kept"), claim("x"), *classes)
    found = bind_all(given.claims.values(), given, SETTINGS, {}, is_used=True)

    assert {one.name: what.deletes for one, what in found if isinstance(what, ClaimRecord)} == {
        "data": False,
        "x": True,
    }


def test_a_claim_of_a_cluster_leaves_the_volume_that_it_had_there() -> None:
    text = claim(more=", volumeName: pvc-1").replace(
        "{name: data}", "{name: data, annotations: {pv.kubernetes.io/bind-completed: 'yes'}}"
    )

    assert bound(storage(text)) == {"data": "/srv/claims/default/data"}


def test_a_claim_that_was_read_and_written_again_keeps_its_volume() -> None:
    first = storage(claim())
    name = directory_volume(next(iter(first.claims.values())), "n")

    assert bound(storage(claim(more=f", volumeName: {name}"))) == {"data": "/srv/claims/default/data"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (claim("../../etc"), 'metadata.name: Invalid value: "../../etc"'),
        (claim("a..b"), 'metadata.name: Invalid value: "a..b"'),
        (claim("x" * 254), "must be no more than 253 characters"),
        (claim().replace("{name: data}", "{name: data, namespace: ../x}"), "metadata.namespace: Invalid value"),
        (claim(size="much"), "must be a quantity above 0"),
        (claim(size="9e999"), ""),
        (claim(more=", dataSource: {kind: VolumeSnapshot, name: x}"), "nothing here fills a volume"),
        (claim(more=", volumeMode: Block"), "no block devices"),
        (claim(modes="Sometimes"), 'Unsupported value: "Sometimes"'),
        (volume().replace("hostPath: {path: /srv/disk}", "nfs: {server: s, path: /}"), "mount it on this node"),
        (volume().replace("hostPath: {path: /srv/disk}", "csi: {driver: d}"), "kepd runs no storage drivers"),
        (volume().replace("/srv/disk", "/srv/../etc"), "must not contain '..'"),
        (volume().replace("hostPath: {path: /srv/disk}", "local: {path: srv}"), "must be an absolute path"),
        (volume(more=", local: {path: /x}"), "may not specify more than 1 volume type"),
        (storage_class("x", "''"), "provisioner: Required value"),
        (storage_class("x", "p", "\nreclaimPolicy: Recycle"), "reclaimPolicy: Unsupported value"),
    ],
)
def test_a_hostile_or_wrong_manifest_is_one_clear_line(text: str, said: str) -> None:
    _, findings = read(text)

    assert not said or any(said in str(finding) for finding in findings), findings


SIZES = st.sampled_from(["1Mi", "1Gi", "2Gi", "5Gi"])
CLASSES = st.sampled_from(["", ", storageClassName: ''", ", storageClassName: a"])


@given(st.lists(st.tuples(SIZES, CLASSES), max_size=6), st.lists(st.tuples(SIZES, CLASSES), max_size=6))
def test_no_two_claims_have_one_volume_and_binding_again_changes_nothing(
    asked: list[tuple[str, str]], offered: list[tuple[str, str]]
) -> None:
    """However they come, in parts or together."""
    claims = [claim(f"c{place}", more, size) for place, (size, more) in enumerate(asked)]
    volumes = [volume(f"v{place}", more, size) for place, (size, more) in enumerate(offered)]
    given_now = storage(*claims, *volumes) if claims or volumes else Storage()
    records: dict[tuple[str, str, str], ClaimRecord] = {}
    for part in (list(given_now.claims.values())[:3], list(given_now.claims.values())):
        for one, found in bind_all(part, given_now, SETTINGS, records, is_used=True):
            if isinstance(found, ClaimRecord):
                records[one.key] = found
    again = list(bind_all(given_now.claims.values(), given_now, SETTINGS, records, is_used=True))
    served = [record.volume for record in records.values()]

    assert len(set(served)) == len(served)
    assert {one.key: found for one, found in again if isinstance(found, ClaimRecord)} == records
    for record in records.values():
        taken = given_now.volumes.get(record.volume)
        assert (taken is None) == record.is_directory


def test_a_thousand_claims_beside_a_thousand_volumes_are_bound() -> None:
    claims = {
        (CLAIM, "default", f"c{n}"): WantedClaim(namespace="default", name=f"c{n}", spec=made_claim().spec)
        for n in range(1000)
    }
    one = made_volume()
    volumes = {f"v{n}": WantedVolume(name=f"v{n}", spec=one.spec) for n in range(1000)}
    found = list(bind_all(claims.values(), Storage(claims, volumes), SETTINGS, {}, is_used=False))

    assert len({what.volume for _, what in found if isinstance(what, ClaimRecord)}) == 1000


def made_claim() -> WantedClaim:
    return next(iter(storage(claim()).claims.values()))


def made_volume() -> WantedVolume:
    return next(iter(storage(volume()).volumes.values()))


@pytest.mark.parametrize(
    ("given", "settings", "reason"),
    [
        (storage(claim()), SETTINGS, "WaitForFirstConsumer"),
        (storage(claim(more=", volumeName: other")), SETTINGS, "FailedBinding"),
        (storage(claim()), StorageSettings("", "n"), "ProvisioningFailed"),
    ],
)
def test_events_of_claims_have_the_reasons_of_a_cluster(given: Storage, settings: StorageSettings, reason: str) -> None:
    is_used = reason != "WaitForFirstConsumer"
    ((_, unbound),) = bind_all(given.claims.values(), given, settings, {}, is_used=is_used)

    assert isinstance(unbound, Unbound)
    assert unbound.reason == reason
