# SPDX-License-Identifier: Apache-2.0
"""What people should know of image verifiers where a kubelet pulls."""

from agent.model.finding import Advice

PLUGIN = "io.containerd.image-verifier.v1.bindir"
TEXT = (
    "a kubelet's pulls are carried out by the runtime, which answers the kubelet itself: kepd verifies the images that "
    "it pulls, and containerd 2.1 and later verifies all with the same programs"
)


def signature_advice(folder: str) -> list[Advice]:
    """`folder`: `images.verify.signatures` beside a proxy; empty where none is set, or there is no proxy."""
    if not folder:
        return []
    wanted = f'bin_dir = "{folder}" of {PLUGIN}'
    return [
        Advice(subject="images.verify.signatures", found="kepd's own pulls", wanted=wanted, text=TEXT, is_note=True)
    ]
