# SPDX-License-Identifier: Apache-2.0
"""Attaching the images plane: its wiring, sources and registries."""
