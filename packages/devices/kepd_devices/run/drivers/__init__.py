# SPDX-License-Identifier: Apache-2.0
"""Drivers of devices: how they come, how they are, and what they are asked."""
