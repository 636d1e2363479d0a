# SPDX-License-Identifier: Apache-2.0
"""Deployments, DaemonSets and Jobs: what their manifests say, and which pods follow from them."""
