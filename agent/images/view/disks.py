# SPDX-License-Identifier: Apache-2.0
"""What collection does on each file system of images, for people."""

from collections.abc import Sequence

from agent.images.collect.disks import ImageDisk, Need, lies_on
from agent.images.collect.plan import CollectMode, CollectPlan, CollectRules, NodeImage
from agent.model.images.text import bytes_text
from agent.model.nodes.file_system import ImagesOnDisk


def images_on_disks(
    disks: Sequence[ImageDisk], plan: CollectPlan, forced: CollectPlan, rules: CollectRules
) -> tuple[ImagesOnDisk, ...]:
    """`plan` is the one in force, `forced` has all that nothing protects, in the order in which it would go."""
    return tuple(_of_one(disk, need, plan, forced, rules) for disk, need in zip(disks, plan.needs, strict=False))


def _of_one(disk: ImageDisk, need: Need, plan: CollectPlan, forced: CollectPlan, rules: CollectRules) -> ImagesOnDisk:
    high = rules.of_disk(disk).high if rules.mode is CollectMode.FULL else 0
    if not high or need.problem:
        return ImagesOnDisk(paths=disk.paths, collects_at=high)
    chosen = plan if need.is_some else forced
    going = [one.image for one in chosen.removals if lies_on(one.image.devices, disk.device, chosen.needs)]
    text = _text(going) if need.is_some else going[0].shown_name if going else ""
    return ImagesOnDisk(paths=disk.paths, collects_at=high, is_collecting=need.is_some, next=text)


def _text(going: Sequence[NodeImage]) -> str:
    if not going:
        return ""
    size = bytes_text(sum(one.size_bytes for one in going))
    return f"{len(going)} images, {size}" if len(going) > 1 else f"{going[0].shown_name}, {size}"
