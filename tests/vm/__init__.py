# SPDX-License-Identifier: Apache-2.0
"""A full Debian in a virtual machine, and what must hold for kepd in it."""
