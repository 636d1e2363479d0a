# SPDX-License-Identifier: Apache-2.0
"""The devices plane: what a pod claims, which devices of the node it gets, and why not others."""
