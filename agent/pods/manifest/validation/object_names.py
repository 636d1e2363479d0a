# SPDX-License-Identifier: Apache-2.0
"""Names, labels and annotations of objects."""

import re

from agent.model.pods.fields import Metadata
from agent.pods.manifest.validation.complaint import DNS_SUBDOMAIN, SUBDOMAIN_TEXT, Complaints
from agent.pods.manifest.validation.resources import check_reserved

LONGEST_NAME = 253
LONGEST_PART = 63
LONGEST_ANNOTATIONS = 256 << 10
# It names a directory.
UID = re.compile(r"(?!\.\.?\Z)[-a-zA-Z0-9.]{1,64}\Z")
QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\Z")
KEY_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName', or 'my.name', or '123-abc')"
)
LABEL_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'MyValue', or 'my_value', or '12345')"
)

DATA_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}\Z")
DATA_KEY_TEXT = (
    "a key must consist of up to 253 alphanumeric characters, '-', '_' or '.', and must not be '.' or start with '..'"
)


def is_data_key(key: str) -> bool:
    """Whether a ConfigMap or Secret may have it: keys become names of files."""
    return DATA_KEY.match(key) is not None and key != "." and not key.startswith("..")


def check_metadata(metadata: Metadata, out: Complaints) -> None:
    if not metadata.name:
        out.required("metadata.name", "name is needed for the pod")
    elif len(metadata.name) > LONGEST_NAME:
        out.invalid("metadata.name", metadata.name, f"must be no more than {LONGEST_NAME} characters")
    elif not DNS_SUBDOMAIN.match(metadata.name):
        out.invalid("metadata.name", metadata.name, SUBDOMAIN_TEXT)
    out.label("metadata.namespace", metadata.namespace)
    if metadata.uid and not UID.match(metadata.uid):
        out.invalid(
            "metadata.uid", metadata.uid, "must be up to 64 letters, digits, hyphens and dots, and neither '.' nor '..'"
        )
    for key, value in metadata.labels.items():
        _key(out, "metadata.labels", key)
        if value and (len(value) > LONGEST_PART or not QUALIFIED.match(value)):
            text = LABEL_TEXT if len(value) <= LONGEST_PART else f"must be no more than {LONGEST_PART} characters"
            out.invalid("metadata.labels", value, text)
    for key in metadata.annotations:
        _key(out, "metadata.annotations", key)
    check_reserved(metadata.annotations, out)
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.annotations.items())
    if size > LONGEST_ANNOTATIONS:
        out.invalid("metadata.annotations", size, f"must be no more than {LONGEST_ANNOTATIONS} bytes")


def _key(out: Complaints, path: str, key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    if slash and (not prefix or len(prefix) > LONGEST_NAME or not DNS_SUBDOMAIN.match(prefix.lower())):
        out.invalid(path, key, f"prefix part {SUBDOMAIN_TEXT}" if prefix else "prefix part must be non-empty")
    if not name or len(name) > LONGEST_PART or not QUALIFIED.match(name):
        text = "name part must be non-empty" if not name else KEY_TEXT
        out.invalid(
            path, key, f"name part must be no more than {LONGEST_PART} characters" if len(name) > LONGEST_PART else text
        )
