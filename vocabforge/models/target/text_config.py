"""A target's text configuration as Transformers reads it, with defaults and old spellings resolved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.errors import DataError


def text_config(config: Mapping[str, Any], source: object = "config.json") -> Any:
    """Return the configuration object of a model's language part, from the parsed ``config.json``.

    Its attributes have the same names in all architectures (``hidden_size``, ``num_attention_heads``), unlike
    the keys of the file.

    Raises:
        DataError: Transformers does not have the ``model_type``, or its class rejects the values.
    """
    from transformers import CONFIG_MAPPING
    from transformers.utils import logging

    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise DataError(
            "Transformers does not have this model type",
            got=f"model_type {kind!r}",
            expected="a causal language model of Transformers",
            source=source,
            remedy="update transformers, or correct config.json",
        )
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # its notes on old spellings do not help here
    try:
        whole = CONFIG_MAPPING[kind].from_dict(_copy(config))
        return whole.get_text_config(decoder=True)
    except Exception as error:  # the classes raise many types of errors, all with the same meaning
        raise DataError(
            "Transformers cannot read the model's configuration",
            got=f"{type(error).__name__}: {error}"[:300],
            source=source,
            remedy="correct config.json",
        ) from error
    finally:
        logging.set_verbosity(before)


def hidden_layers(config: Mapping[str, Any], source: object = "config.json") -> int:
    """Return the number of decoder layers; Transformers is only imported for other spellings of the key."""
    inner = config.get("text_config")
    for keys in (inner, config):
        if isinstance(keys, Mapping) and type(count := keys.get("num_hidden_layers")) is int:
            return count
    return int(text_config(config, source).num_hidden_layers)


def _copy(value: Any) -> Any:
    """Copy the values, which the classes modify, and parse ``{"__float__": "Infinity"}`` as they write it."""
    if isinstance(value, Mapping):
        return (
            float(value["__float__"])
            if set(value) == {"__float__"}
            else {k: _copy(v) for k, v in value.items()}
        )
    return [_copy(entry) for entry in value] if isinstance(value, list) else value
