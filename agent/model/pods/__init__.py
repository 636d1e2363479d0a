# SPDX-License-Identifier: Apache-2.0
"""Pods: what a manifest says, and how they are."""
