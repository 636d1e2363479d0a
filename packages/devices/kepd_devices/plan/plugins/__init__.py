# SPDX-License-Identifier: Apache-2.0
"""What is decided about devices of plugins: which one, what is recorded, what a kubelet sees."""
