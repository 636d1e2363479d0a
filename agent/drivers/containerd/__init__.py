# SPDX-License-Identifier: Apache-2.0
"""containerd's own services, where CRI says too little."""
