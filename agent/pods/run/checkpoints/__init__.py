# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of containers: made, listed, removed."""
