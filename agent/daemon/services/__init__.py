# SPDX-License-Identifier: Apache-2.0
"""Attaching the services plane: its wiring, sources, backends and health."""
