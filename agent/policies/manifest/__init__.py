# SPDX-License-Identifier: Apache-2.0
"""Files become policies."""
