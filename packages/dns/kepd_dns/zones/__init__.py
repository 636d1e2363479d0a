# SPDX-License-Identifier: Apache-2.0
"""Whose a name is, and the names of Services that this node answers itself."""
