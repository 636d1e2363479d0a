# SPDX-License-Identifier: Apache-2.0
"""Certificates in files."""
