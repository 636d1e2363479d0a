# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 and CRI as bytes: frames, header compression, credit, the few changes."""
