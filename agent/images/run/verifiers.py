# SPDX-License-Identifier: Apache-2.0
"""Programs that say whether an image may be used, such as by its signatures: those of containerd's bindir plugin.

Each is called with `-name`, `-digest` and `-stdin-media-type`, and the image's descriptor on its standard input. Exit
code 0 lets the image be used, any other refuses it, and what it prints is the reason. All of them have to agree; one
that cannot be run, or does not end in time, refuses too. A directory that is missing or empty refuses nothing. Source
of behaviour: containerd, docs/image-verification.md.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import structlog

from agent.images.run.plugin_process import PluginFailed, run_to_end
from agent.model.images.store import ImageRecord
from agent.model.outside_text import from_outside

log = structlog.get_logger(plane="images")

# containerd's defaults.
MOST_VERIFIERS = 10
LIMIT_S = 10.0
DESCRIPTOR = "application/vnd.oci.descriptor.v1+json"
LONGEST_REASON = 500
UNLISTED = "the directory of image verifiers {folder} cannot be listed: {error}"


class Verifiers:
    """`folder`: the configured one at this moment; empty where nothing is to be verified."""

    def __init__(self, folder: Callable[[], str], environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment

    @property
    def is_on(self) -> bool:
        return bool(self._folder())

    async def refusal(self, image: ImageRecord) -> str:
        """Why an image may not be used, in containerd's words; empty if it may."""
        folder = Path(self._folder())
        try:
            names = await asyncio.to_thread(_listed, folder)
        except OSError as error:
            return _blocked("bindir", image, UNLISTED.format(folder=folder, error=error.strerror))
        if len(names) > MOST_VERIFIERS:
            log.warning("image_verifiers_skipped", folder=str(folder), programs=len(names), used=MOST_VERIFIERS)
        for name in names[:MOST_VERIFIERS]:
            reason = await self._ask(folder / name, image)
            if reason:
                return _blocked(name, image, reason)
        return ""

    async def _ask(self, program: Path, image: ImageRecord) -> str:
        command = [str(program), "-name", image.name, "-digest", image.digest, "-stdin-media-type", DESCRIPTOR]
        descriptor = {"mediaType": image.media_type, "digest": image.digest, "size": image.size_bytes}
        try:
            ended = await run_to_end(command, msgspec.json.encode(descriptor), self._environment, LIMIT_S)
        except PluginFailed as error:
            return f"it {error}"
        said = from_outside(ended.output.decode("utf-8", "replace").strip())[:LONGEST_REASON]
        log.info("image_verified", image=image.name, digest=image.digest, by=program.name, code=ended.code, said=said)
        return "" if ended.code == 0 else f"exit code {ended.code}: {said or 'it gave no reason'}"


def _listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def _blocked(verifier: str, image: ImageRecord, reason: str) -> str:
    return f"image verifier {verifier} blocked pull of {image.name} with digest {image.digest} for reason: {reason}"
