# SPDX-License-Identifier: Apache-2.0
"""What is wanted, as files of manifests say it."""
