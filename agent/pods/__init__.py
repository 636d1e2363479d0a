# SPDX-License-Identifier: Apache-2.0
"""Pods plane: Pods from manifests, run on the container runtime."""
