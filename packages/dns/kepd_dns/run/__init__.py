# SPDX-License-Identifier: Apache-2.0
"""Doing it: the process kepd-dns, and the plane that looks after it."""
