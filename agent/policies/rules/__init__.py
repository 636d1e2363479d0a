# SPDX-License-Identifier: Apache-2.0
"""Policies become a table."""
