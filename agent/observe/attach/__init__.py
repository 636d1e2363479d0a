# SPDX-License-Identifier: Apache-2.0
"""Observation attached: its pages, figures and logs of the node."""
