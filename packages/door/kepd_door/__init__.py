# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' API for what this node has, so that kubectl and other clients work with it."""
