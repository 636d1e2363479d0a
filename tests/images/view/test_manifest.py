# SPDX-License-Identifier: Apache-2.0
"""What images bring along is theirs to write."""

import pytest

from agent.images.view.manifest import read_diff_ids, read_manifest

DEEP = 200_000


BROKEN = b'{"config": {"digest": "\xda"}, "rootfs": {"diff_ids": ["\xda"]}}'


@pytest.mark.parametrize("content", [BROKEN, b'{"x": ' * DEEP + b"1" + b"}" * DEEP, b"[" * DEEP, b'{"config": ' * DEEP])
def test_content_that_no_decoder_can_follow_is_no_manifest(content: bytes) -> None:
    """Text that is none, and what nests deeper than a decoder's own stack: they ended the pull that read them."""
    assert read_manifest("sha256:1", content) is None
    assert read_diff_ids(content) == ()
