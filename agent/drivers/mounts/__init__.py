# SPDX-License-Identifier: Apache-2.0
"""Mounts of this node."""
