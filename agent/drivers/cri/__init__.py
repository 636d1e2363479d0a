# SPDX-License-Identifier: Apache-2.0
"""The container runtime, by CRI."""
