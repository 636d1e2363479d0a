# SPDX-License-Identifier: Apache-2.0
"""What people are told of policies."""
