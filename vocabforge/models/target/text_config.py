"""A target's text configuration as Transformers reads it: defaults filled in, older spellings made new."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.errors import DataError


def text_config(config: Mapping[str, Any], source: object = "config.json") -> Any:
    """The configuration object of a model's language part, from the parsed ``config.json``.

    Its attributes have one name in all architectures (``hidden_size``, ``num_attention_heads``); the keys of the file
    have not.

    Raises:
        DataError: a ``model_type`` that Transformers does not have, or values that its class refuses.
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
    logging.set_verbosity_error()  # its notes on spelling are of no use to anyone here
    try:
        whole = CONFIG_MAPPING[kind].from_dict(_copy(config))
        return whole.get_text_config(decoder=True)
    except Exception as error:  # its classes raise many kinds; all mean the same to a user
        raise DataError(
            "Transformers cannot read the model's configuration",
            got=f"{type(error).__name__}: {error}"[:300],
            source=source,
            remedy="correct config.json",
        ) from error
    finally:
        logging.set_verbosity(before)


def _copy(value: Any) -> Any:
    """A copy, since the classes change what they are given; they write infinity as ``{"__float__": "Infinity"}``."""
    if isinstance(value, Mapping):
        return (
            float(value["__float__"])
            if set(value) == {"__float__"}
            else {k: _copy(v) for k, v in value.items()}
        )
    return [_copy(one) for one in value] if isinstance(value, list) else value
