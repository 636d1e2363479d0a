# SPDX-License-Identifier: Apache-2.0
"""A sample as pages for scrapers, under the names of a kubelet."""
