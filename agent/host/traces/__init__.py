# SPDX-License-Identifier: Apache-2.0
"""Traces of the daemon's work: whether they are on, and where they go."""
