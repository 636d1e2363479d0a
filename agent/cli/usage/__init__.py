# SPDX-License-Identifier: Apache-2.0
"""What is used now, as lists and as a screen."""
