# SPDX-License-Identifier: Apache-2.0
"""Doing it: records, calls of drivers, CDI files."""
