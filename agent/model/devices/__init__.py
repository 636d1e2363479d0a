# SPDX-License-Identifier: Apache-2.0
"""Devices that pods have."""
