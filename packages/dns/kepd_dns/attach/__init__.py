# SPDX-License-Identifier: Apache-2.0
"""The plane for names attached: its settings, its rules in the kernel, its API."""
