# SPDX-License-Identifier: Apache-2.0
"""What requests and answers look like: pure, values in and values out."""
