# SPDX-License-Identifier: Apache-2.0
"""CRI proxy between a kubelet and the runtime."""
