# SPDX-License-Identifier: Apache-2.0
"""The pictures of the README, drawn from what the tools themselves say."""
