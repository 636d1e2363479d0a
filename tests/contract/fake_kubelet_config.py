# SPDX-License-Identifier: Apache-2.0
"""A kubelet's configuration in memory."""


class FakeKubeletConfiguration:
    """`content` of None is a file that is not there."""

    def __init__(self, content: bytes | None, overlay: bytes = b"") -> None:
        self.place = "/var/lib/kubelet/config.yaml"
        self.content = content
        self.overlay = overlay

    async def read(self) -> tuple[bytes, bytes]:
        """What the test wrote. Raises OSError."""
        if self.content is None:
            raise FileNotFoundError(2, "No such file or directory", self.place)
        return self.content, self.overlay
