# SPDX-License-Identifier: Apache-2.0
"""Measurements. Each module has `measure()`, which gives rows (what, value, unit, stated figure); none asserts."""
