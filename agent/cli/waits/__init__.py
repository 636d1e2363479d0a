# SPDX-License-Identifier: Apache-2.0
"""Waiting for objects, and following their changes."""
