# SPDX-License-Identifier: Apache-2.0
"""Attaching the devices plane."""
