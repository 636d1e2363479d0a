# SPDX-License-Identifier: Apache-2.0
"""What the pods plane makes of files, look by look."""

from agent.kinds.registry import MANIFEST_KINDS
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.objects.admitting import admit
from agent.objects.reading import Readings
from agent.objects.wanted import Wanted
from agent.pods.manifest.objects import NodeIdentity, pod_reading
from agent.pods.manifest.reading import ReadManifest, read_wanted


def read_pods(look: ManifestSnapshot, before: ReadManifest, identity: NodeIdentity) -> ReadManifest:
    readings = Readings([pod_reading(identity)])
    return read_wanted(Wanted(look, admit(look.files, look.folders, before.in_force, readings, MANIFEST_KINDS)))
