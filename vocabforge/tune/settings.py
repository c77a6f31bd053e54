"""Settings of ``vocabforge tune``: models, questions, the searched methods, and the time limit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from ..core.config import ModelPath, StrictModel, TokenizerPath, option
from ..core.errors import UsageError
from ..core.values import Backend, labelled, sizes_in, words_in
from ..decode.spec import MethodSpec, option_of

Sizes = Annotated[
    tuple[int, ...],
    BeforeValidator(
        lambda value: sizes_in("a list", value) if value is None or isinstance(value, str) else value
    ),
]


class TuneSettings(StrictModel):
    """The models, the questions and the time limit of a run. Every field is an option of the command."""

    target: ModelPath = option(..., "Target: a folder, a GGUF file, or a name of the Hub.")
    drafter: ModelPath = option(..., "Trained drafter, native or in another layout.")
    prompts: str = option(
        ...,
        "Question file of any format that eval reads, or the name of a benchmark. The first turns are decoded.",
    )
    batch: Sizes = option((1,), "Batch sizes; each gets a recommendation.", metavar="N,...")
    max_new_tokens: int = option(128, "Maximum tokens per answer.", ge=2)
    limit: Annotated[int, Field(ge=2)] = option(64, "Maximum questions, spread over the file.")
    prompt_format: str = option("auto", "auto, chat or raw; auto uses the chat template if there is one.")
    seconds: float = option(
        600.0,
        "Time budget. Unmeasured configurations are reported; re-run with more time to continue. inf measures "
        "everything.",
        ge=0,
        allow_inf_nan=True,
    )
    tokenizer: TokenizerPath | None = option(None, "Tokenizer folder [default: the target's].")
    dtype: Literal["float32", "bfloat16", "float16"] = option("float32", "Dtype of target and drafter.")
    device: str | None = option(None, "cpu, cuda, cuda:1 … [default: cuda if available].")
    target_backend: Backend = option("auto", "lean, transformers (the target's own code) or auto.")

    @model_validator(mode="after")
    def _together(self) -> TuneSettings:
        if not self.batch or min(self.batch) < 1 or len(set(self.batch)) != len(self.batch):
            raise UsageError(
                "a batch size is below 1 or given twice",
                got=self.batch,
                expected="numbers from 1 up, each once",
                source="--batch",
            )
        return self


class MethodSpace:
    """Several values for fields of :class:`MethodSpec`: draft heads times draft trees.

    Args:
        vocab, head: ``DIR`` or ``LABEL=DIR``.
        dynamic: applied to every draft vocabulary.
        lists: field -> comma-separated values of its option.
    """

    LABELLED = ("vocab", "head")
    MANY = (*LABELLED, "dynamic")
    # Fields given as lists -> the default, described in the option's help.
    LISTS: ClassVar = {
        "shortlist": "the saved value",
        "budget": "the saved value",
        "tree": "chain,dynamic",
        "depth": "0,1,2,3,5 for chains, 1,3,5 for dynamic trees",
        "topk": "2,4,8",
        "total_nodes": "8,16,32,60",
    }
    FIELDS = (*MANY, *LISTS)

    def __init__(
        self,
        *,
        vocab: Iterable[str] | None = None,
        head: Iterable[str] | None = None,
        dynamic: Iterable[str] | None = None,
        **lists: Any,
    ) -> None:
        self.vocabs = tuple(map(labelled, vocab or ()))
        self.heads = tuple(map(labelled, head or ()))
        self.dynamic = tuple(dynamic or ())
        given = {name: _values(name, lists.pop(name, None)) for name in self.LISTS}
        if lists:
            raise TypeError(f"no fields of a space: {', '.join(lists)}")
        self.shortlists, self.budgets = given["shortlist"], given["budget"]
        trees = given["tree"] or ("chain", "dynamic")
        if found := set(trees) - {"chain", "dynamic"}:
            raise UsageError(
                "tune does not search this tree",
                got=", ".join(found),
                expected="chain, dynamic",
                source="--tree",
            )
        self.chains = (given["depth"] or (0, 1, 2, 3, 5)) if "chain" in trees else ()
        self.depths = (given["depth"] or (1, 3, 5)) if "dynamic" in trees else ()
        self.topk = given["topk"] or (2, 4, 8)
        self.nodes = given["total_nodes"] or (8, 16, 32, 60)


def _values(name: str, given: Any) -> tuple[Any, ...]:
    words = words_in(given) if isinstance(given, str) else tuple(given or ())
    found = tuple(getattr(MethodSpec.model_validate({name: word}), name) for word in words)
    if len(set(found)) != len(found):
        raise UsageError("a value is given twice", got=given, expected="each once", source=option_of(name))
    return found
