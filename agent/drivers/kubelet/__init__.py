# SPDX-License-Identifier: Apache-2.0
"""The kubelet beside us, as far as its configuration goes."""
