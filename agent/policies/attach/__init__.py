# SPDX-License-Identifier: Apache-2.0
"""The plane in the process."""
