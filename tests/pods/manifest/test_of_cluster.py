# SPDX-License-Identifier: Apache-2.0
"""Objects as `kubectl get -o yaml` writes them in a cluster are taken, without what only a cluster can carry out."""

from pathlib import Path

import pytest

from agent.objects.all_readings import check_manifest
from agent.pods.manifest.objects import NodeIdentity, parse_objects

DUMPS = sorted(Path(__file__).with_name("of_cluster").glob("*.yaml"))


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.stem)
def test_what_a_cluster_says_of_an_object_is_taken(path: Path) -> None:
    read = check_manifest(str(path), path.read_bytes(), None)

    assert [str(complaint.finding) for complaint in read.complaints] == []
    assert len(read.objects) == 1


def test_the_token_of_an_account_is_left_out_and_told() -> None:
    path = Path(__file__).with_name("of_cluster") / "pod.yaml"
    (pod,) = parse_objects(str(path), path.read_bytes(), NodeIdentity("n", has_name_suffix=False)).pods
    warnings = [str(warning) for warning in check_manifest("pod.yaml", path.read_bytes(), None).warnings]

    assert (pod.spec.volumes, pod.spec.containers[0].volume_mounts) == ((), ())
    assert [text for text in warnings if "kube-api-access-x7k2p is left out" in text]
