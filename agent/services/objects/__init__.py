# SPDX-License-Identifier: Apache-2.0
"""Services and slices as the API means them."""
