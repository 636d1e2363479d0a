# SPDX-License-Identifier: Apache-2.0
"""What a container runtime says that it can do."""

import re

import msgspec

NUMBER = re.compile(r"v?(\d+)\.(\d+)")
# The first versions of containerd with a behaviour that no answer of CRI tells.
CONTAINERD_IMAGE_VOLUMES = (2, 1)
CRIO_IMAGE_VOLUMES = (1, 31)
CRIO_CDI = (1, 28)
# An archive of a checkpoint in the place of an image: since 2.1, and no more in 2.4.
CONTAINERD_RESTORES = ((2, 1), (2, 4))
CONTAINERD_LOOKS_FIRST = (2, 2)


class RuntimeFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """Handlers by name; the default one has an empty name too."""

    name: str = ""
    version: str = ""
    uses_systemd: bool = False
    user_namespaces: frozenset[str] = frozenset()
    recursive_read_only: frozenset[str] = frozenset()
    has_group_policy: bool = False
    # Whether containerd says that it resolves CDI ids; others are known by their versions.
    resolves_cdi: bool = False
    # Where it looks for CDI files; nothing where it does not say.
    cdi_directories: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}".strip() or "the container runtime"

    @property
    def has_image_volumes(self) -> bool:
        """Whether an image can be mounted."""
        return self._is_from(containerd=CONTAINERD_IMAGE_VOLUMES, crio=CRIO_IMAGE_VOLUMES)

    @property
    def restores_checkpoints(self) -> bool:
        """Whether a container can be made of an archive of a checkpoint."""
        first, end = CONTAINERD_RESTORES
        return self.name == "containerd" and first <= self._number < end

    @property
    def pulls_to_restore(self) -> bool:
        """Whether it asks a registry for the image of a checkpoint even where the image is there."""
        return self._number < CONTAINERD_LOOKS_FIRST

    @property
    def has_cdi(self) -> bool:
        """Whether ids of CDI can be handed to it; not known is no, for then they would be passed over."""
        return self.resolves_cdi or (self.name == "cri-o" and self._number >= CRIO_CDI)

    @property
    def _number(self) -> tuple[int, int]:
        found = NUMBER.match(self.version)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    def _is_from(self, *, containerd: tuple[int, int], crio: tuple[int, int]) -> bool:
        return self._number >= {"containerd": containerd, "cri-o": crio}.get(self.name, (0, 0))


class RuntimeFacts(msgspec.Struct, frozen=True):
    endpoint: str
    name: str = ""
    version: str = ""
    is_connected: bool = False
    message: str = ""
    event_source: str = ""
