# SPDX-License-Identifier: Apache-2.0
"""Objects of the manifests, as the API creates and deletes them."""
