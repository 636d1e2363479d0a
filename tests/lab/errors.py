# SPDX-License-Identifier: Apache-2.0
"""The one error of the lab.

Owns: `LabError`, whose text says what failed, where, and what would be right.
Never: decides whether a test fails or is left out; that is the test runner's matter.
"""

__all__ = ["LabError"]


class LabError(RuntimeError):
    """A real part of the lab could not be started, used or cleaned up."""
