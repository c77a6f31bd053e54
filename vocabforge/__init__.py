"""VocabForge: drafter training and vocabulary preparation for speculative decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .api import (
        count_freq as count_freq,
    )
    from .api import (
        export_drafter as export_drafter,
    )
    from .api import (
        generate as generate,
    )
    from .api import (
        load_drafter as load_drafter,
    )
    from .api import (
        load_target as load_target,
    )
    from .api import (
        run_benchmark as run_benchmark,
    )
    from .api import (
        select_vocab as select_vocab,
    )
    from .api import (
        train_drafter as train_drafter,
    )
    from .core.errors import VocabForgeError as VocabForgeError
    from .decode.request import SamplingParams as SamplingParams
    from .decode.spec import MethodSpec as MethodSpec
    from .decode.text import TextDecoder as TextDecoder
    from .train.config import TrainConfig as TrainConfig

# Imported on first use: `import vocabforge` loads neither torch nor transformers.
_PLACES = {
    **dict.fromkeys(
        (
            "load_target",
            "load_drafter",
            "generate",
            "count_freq",
            "select_vocab",
            "train_drafter",
            "run_benchmark",
            "export_drafter",
        ),
        "vocabforge.api",
    ),
    "TextDecoder": "vocabforge.decode.text",
    "MethodSpec": "vocabforge.decode.spec",
    "SamplingParams": "vocabforge.decode.request",
    "TrainConfig": "vocabforge.train.config",
    "VocabForgeError": "vocabforge.core.errors",
}
__all__ = [*_PLACES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'vocabforge' has no attribute {name!r}; it has {', '.join(_PLACES)}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
