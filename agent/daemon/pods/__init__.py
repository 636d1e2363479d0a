# SPDX-License-Identifier: Apache-2.0
"""Attaching the pods plane: its wiring and its ways to images."""
