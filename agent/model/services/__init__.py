# SPDX-License-Identifier: Apache-2.0
"""Services, their rules, and what is told of them."""
