"""What differs between two JSON values, in words."""

from __future__ import annotations

import json
from typing import Any


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """Every leaf that differs between two JSON values, as ``settings.max_new_tokens: 32, now 64``."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in dict.fromkeys([*old, *new])
            for line in differences(old.get(key), new.get(key), f"{name}.{key}" if name else str(key))
        ]
    return [] if old == new else [f"{name}: {_short(old)}, now {_short(new)}"]


def _short(value: Any) -> str:
    text = "none" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
