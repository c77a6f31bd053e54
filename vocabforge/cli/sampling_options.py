"""Options that say how tokens are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..decode.request import SamplingParams


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
        from ..decode.request import SamplingParams

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
