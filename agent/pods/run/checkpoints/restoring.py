# SPDX-License-Identifier: Apache-2.0
"""A container that begins from a checkpoint, once: the runtime takes the archive in the place of the image.

What the manifest says of the container counts; the archive has memory and layer alone, so volumes are as the pod has
them. Whether processor and kernel can go on with it says CRIU, when the container starts.
"""

import asyncio

from agent.model.pods.pod import ContainerSpec
from agent.pods.run.run_state import LivePod
from agent.pods.runtime.environment import ConfigProblem
from agent.wire.cri import runtime_v1_pb2 as pb


async def archive_for(run: LivePod, container: ContainerSpec, image: pb.Image) -> str:
    """The path of the archive that it begins from; empty where it begins as its manifest says."""
    name = run.annotated.restores.get(container.name, "")
    if not name or run.memory.of(container.name).restored == name:
        return ""
    if not run.features.restores_checkpoints:
        raise ConfigProblem(
            f"{run.features.label} cannot begin from a checkpoint; containerd 2.1 to 2.3 can. Without the annotation "
            f"kepd.dev/restore.{container.name} the container begins as its manifest says"
        )
    folder = run.context.files.checkpoints
    found = await asyncio.to_thread(folder.described, name)
    if found is None:
        raise ConfigProblem(f"checkpoint {name} is not there, or broken; kepctl get checkpoints lists them")
    # The archive has only what the container changed of its image. A name may be another's by now, a digest not.
    digest = found.reference.rpartition("@")[2]
    if digest not in {image.id, *(one.rpartition("@")[2] for one in image.repo_digests)}:
        raise ConfigProblem(f"checkpoint {name} is of image {found.reference}; {container.image} is another")
    if "@" not in found.reference and run.features.pulls_to_restore:
        raise ConfigProblem(
            f"checkpoint {name} has its image by id alone, for it was imported; {run.features.label} asks a registry "
            "for it and finds none, containerd 2.2 and 2.3 look on the node first"
        )
    return str(folder.directory / name)
