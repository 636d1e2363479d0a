# SPDX-License-Identifier: Apache-2.0
"""Attaching the proxy plane: its wiring, endpoint and view."""
