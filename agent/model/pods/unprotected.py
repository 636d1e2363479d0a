# SPDX-License-Identifier: Apache-2.0
"""How a pod learns that the kernel does not hold yet what policies say of it."""


class PodUnprotected(Exception):
    """The text says what is missing and what it waits for; the pod asks again."""
