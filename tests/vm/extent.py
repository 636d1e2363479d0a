# SPDX-License-Identifier: Apache-2.0
"""How many of the machine's tests run. CI has a quarter of an hour for them; `make vm-test` has hours, and sets
KEPD_VM_ALL=1."""

import os

import pytest

IS_WHOLE = os.environ.get("KEPD_VM_ALL") == "1"
# In emulation each container that starts costs seconds, and each power cut a minute.
PODS = int(os.environ.get("KEPD_VM_PODS", "10" if IS_WHOLE else "3"))
CUTS = int(os.environ.get("KEPD_VM_CUTS", "20" if IS_WHOLE else "1"))


def only_whole(reason: str) -> pytest.MarkDecorator:
    """`reason`: why CI does without."""
    return pytest.mark.skipif(not IS_WHOLE, reason=f"{reason}: KEPD_VM_ALL=1, as make vm-test sets it")
