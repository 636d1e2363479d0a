# SPDX-License-Identifier: Apache-2.0
"""The container runtime: what it can, tells and refuses."""
