"""Options of the commands that decode: what is drafted, how tokens are chosen, how the passes run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...decode.build.spec import MethodGrid, MethodSpec
from .groups import FromModel

if TYPE_CHECKING:
    from ...decode.proposers.interface import Wrap
    from ...decode.request import SamplingParams

_DRAFTING = "Drafting"  # heading of the options that make a method
OneMethod = Annotated[MethodSpec, FromModel(MethodSpec, panel=_DRAFTING)]
ManyMethods = Annotated[
    MethodGrid,
    FromModel(MethodSpec, many=MethodGrid.MANY, labelled=MethodGrid.LABELLED, panel=_DRAFTING),
]
TreeSizes = Annotated[MethodSpec, FromModel(MethodSpec, only=("depth", "topk", "total_nodes"))]

TargetOption = Annotated[Path, typer.Option("--target", help="Folder of the target model (safetensors).")]
TokenizerOption = Annotated[
    Path | None, typer.Option("--tokenizer", help="Tokenizer folder [default: the target's].")
]
PromptFormatOption = Annotated[
    str,
    typer.Option("--prompt-format", help="auto, chat or raw; auto uses the chat template if there is one."),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda, cuda:1 … [default: cuda if there is one].")
]


@dataclass(frozen=True, kw_only=True)
class PassOptions:
    """What the passes run on, and how they are made faster."""

    compiled: Annotated[
        bool,
        typer.Option(
            "--compile", help="Compile the passes first (a minute or so); each is faster afterwards."
        ),
    ] = False
    graphs: Annotated[
        bool | None,
        typer.Option("--graphs/--no-graphs", help="Replay cycles as CUDA graphs [default: on CUDA devices]."),
    ] = None
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")] = "float32"
    device: DeviceOption = None


def wrap_for(compiled: bool, graphs: bool | None, device: str | None) -> Wrap | None:
    """What makes passes faster.

    Args:
        graphs: None: on CUDA devices only.

    Raises:
        UsageError: both, or one that the device does not have.
    """
    from ...core.errors import UsageError
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


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """The law that the target's next token is drawn from."""

    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")] = 0.0
    sampling_top_k: Annotated[
        int, typer.Option("--sampling-top-k", min=0, help="Choose among the k most probable tokens; 0: all.")
    ] = 0
    top_p: Annotated[
        float,
        typer.Option("--top-p", help="Choose among the tokens of this probability mass, above 0 to 1."),
    ] = 1.0
    min_p: Annotated[
        float, typer.Option("--min-p", help="Drop tokens below this share of the most probable one, 0 to 1.")
    ] = 0.0
    repetition_penalty: Annotated[
        float, typer.Option("--repetition-penalty", help="Against tokens of prompt and output; 1: none.")
    ] = 1.0
    presence_penalty: Annotated[
        float, typer.Option("--presence-penalty", help="Against tokens of the output, once; 0: none.")
    ] = 0.0
    frequency_penalty: Annotated[
        float, typer.Option("--frequency-penalty", help="Against tokens of the output, each time; 0: none.")
    ] = 0.0

    def with_seed(self, seed: int) -> SamplingParams:
        """The same as the decoder takes it.

        Raises:
            UsageError: a value out of its range.
        """
        from ...decode.request import SamplingParams

        return SamplingParams(
            temperature=self.temperature,
            top_k=self.sampling_top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=seed,
        )
