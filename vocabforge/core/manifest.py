"""The hashes of a manifest: of what an artefact is, and of all that is recorded of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

REQUIRED = {"schema_version": int, "kind": str, "meta": dict, "files": dict, "content_hash": str}
_RECORD = {"parents", "config", "versions", "git_revision", "command", "created"}


def content_hash(kind: str, meta: Mapping[str, Any], files: Mapping[str, Any]) -> str:
    """Over kind, meta and every file's hash."""
    body = {"kind": kind, "meta": meta, "files": {n: f["sha256"] for n, f in sorted(files.items())}}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def record_hash(manifest: Mapping[str, Any]) -> str:
    """Over the whole manifest but itself: parents, configuration and versions are not part of the content."""
    # As it will be read back, so that the order of keys is that of texts.
    body = json.loads(json.dumps({key: value for key, value in manifest.items() if key != "record_hash"}))
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def record_holds(manifest: Mapping[str, Any]) -> bool:
    """Whether the manifest is as it was written, in what is no part of the content, too."""
    recorded = manifest.get("record_hash")
    if recorded is None:  # earlier versions wrote none, and no key but these
        return set(manifest) <= {*REQUIRED, *_RECORD, "record_hash"}
    return bool(recorded == record_hash(manifest))
