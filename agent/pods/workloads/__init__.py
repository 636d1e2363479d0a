# SPDX-License-Identifier: Apache-2.0
"""Workloads: what their manifests say, and which pods follow from them."""
