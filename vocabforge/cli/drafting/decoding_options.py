"""Options of decoding commands: drafting, sampling, and how passes run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ...core.config import StrictModel, option
from ...core.errors import UsageError
from ...core.values import Backend
from ...decode.spec import MethodGrid, MethodSpec
from ..option_groups import FromModel

if TYPE_CHECKING:
    from ...decode.interface import Wrap
    from ...decode.request import SamplingParams

_DRAFTING = "Drafting"  # help heading of the options that define a method
OneMethod = Annotated[MethodSpec, FromModel(MethodSpec, panel=_DRAFTING)]
ManyMethods = Annotated[MethodGrid, FromModel(MethodSpec, panel=_DRAFTING)]


class PassOptions(StrictModel):
    """Device, dtype and acceleration of the model's passes."""

    compile: bool = option(False, "Compile the model first (about a minute) for faster passes.")
    graphs: bool | None = option(None, "Replay cycles as CUDA graphs [default: on CUDA devices].")
    dtype: str = option(
        "auto", "float32, bfloat16, float16, or auto: the checkpoint's own on a GPU, float32 on a CPU."
    )
    device: str | None = option(None, "cpu, cuda, cuda:1 … [default: cuda if available].")
    device_map: str | None = option(
        None,
        "Placement of a target larger than one device: `auto` (over GPUs and CPU), or JSON of modules "
        "and devices.",
    )
    target_backend: Backend = option(
        "auto",
        "Implementation of the target: lean (VocabForge's), transformers, or auto: lean if it supports the "
        "architecture.",
    )


def wrap_for(compiled: bool, graphs: bool | None, device: str | None) -> Wrap | None:
    """Return the wrapper that accelerates passes.

    Args:
        graphs: None enables CUDA graphs on CUDA devices only.
    """
    from ...models.device import choose_device

    if compiled and graphs:
        raise UsageError(
            "passes are either compiled or captured",
            got="--compile and --graphs",
            expected="one of them: --compile on a CPU, --graphs on a CUDA device",
        )
    chosen = choose_device(device)
    if compiled:
        from ...decode.accelerate.compiled import compile_passes

        return compile_passes(chosen)
    if graphs or (graphs is None and chosen.type == "cuda"):
        from ...decode.accelerate.graphs import capture_passes

        return capture_passes(chosen)
    return None


class SamplingOptions(StrictModel):
    """The distribution from which the target's next token is drawn."""

    temperature: Annotated[float, Field(ge=0)] = option(0.0, "0 is greedy.")
    sampling_top_k: Annotated[int, Field(ge=0)] = option(
        0, "Choose among the k most probable tokens; 0: all."
    )
    top_p: float = option(1.0, "Choose among the tokens of this probability mass, above 0 to 1.")
    min_p: float = option(0.0, "Drop tokens below this share of the most probable one, 0 to 1.")
    repetition_penalty: float = option(1.0, "Against tokens of prompt and output; 1: none.")
    presence_penalty: float = option(0.0, "Against tokens of the output, once; 0: none.")
    frequency_penalty: float = option(0.0, "Against tokens of the output, each time; 0: none.")

    def with_seed(self, seed: int) -> SamplingParams:
        """Return the decoder's sampling parameters with this seed."""
        from ...decode.request import SamplingParams

        values = self.model_dump()
        return SamplingParams(top_k=values.pop("sampling_top_k"), seed=seed, **values)
