# SPDX-License-Identifier: Apache-2.0
"""Slices of systemd."""
