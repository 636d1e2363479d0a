# SPDX-License-Identifier: Apache-2.0
"""Spans on their way to a collector."""
