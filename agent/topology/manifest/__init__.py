# SPDX-License-Identifier: Apache-2.0
"""Manifests as values that topology reads."""
