"""The Python API of ``import vocabforge``; each name is imported on first use.

Functions that make an artefact take the options of the command with the same name and return the result. They
print progress to stderr. Errors are ``VocabForgeError``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .core.config import StrictModel, load_config, parse_config
from .core.values import Backend
from .decode.build.models import Models
from .decode.request import SamplingParams
from .decode.spec import MethodSpec
from .decode.text import Answer, Prompt, TextDecoder

if TYPE_CHECKING:
    from .evaluate.results.schema import Results
    from .models.drafters.interface import Drafter
    from .train.config import TrainConfig
    from .vocab.counts.table import FrequencyTable
    from .vocab.subset.subset import VocabSubset

PathLike = str | Path


def load_target(
    target: PathLike,
    *,
    tokenizer: PathLike | None = None,
    device: str | None = None,
    dtype: str = "auto",
    backend: Backend = "auto",
    device_map: str | None = None,
) -> Models:
    """Load a target and its tokenizer. Drafters and draft heads are loaded on first use.

    Args:
        target: folder of a Hugging Face checkpoint, GGUF file, or name on the Hub.
        tokenizer: folder of another tokenizer; None is the target's own.
        device: ``cpu``, ``cuda`` or ``cuda:N``; None is CUDA if available, else the CPU.
        dtype: ``float32``, ``bfloat16``, ``float16``, or ``auto``: the checkpoint's dtype on a GPU, float32 on
            a CPU.
        backend: ``lean`` (VocabForge's own), ``transformers``, or ``auto``: ``lean`` if it supports the
            architecture.
        device_map: placement of a target that needs several devices: ``auto``, or JSON of modules and
            devices.

    Raises:
        VocabForgeError: the model does not exist, its architecture is not supported, or the tokenizer does
            not belong to it.
    """
    from .core.hub import model_folder
    from .models.device import choose_device
    from .models.target.load import decoding_dtype

    folder = model_folder(Path(target))
    words = None if tokenizer is None else model_folder(Path(tokenizer), weights=False)
    dtype = decoding_dtype(folder, dtype, choose_device(device))
    return Models(folder, words, device=device, dtype=dtype, backend=backend, device_map=device_map)


def load_drafter(drafter: PathLike, target: Models) -> Drafter:
    """Load a trained drafter in any layout that ``export`` writes.

    Args:
        drafter: folder of the drafter, or a name on the Hub.
        target: a target from ``load_target``.

    Returns:
        a ``torch.nn.Module`` that shares the target's tensors.

    Raises:
        VocabForgeError: the folder has no drafter, or the drafter belongs to another target.
    """
    from .core.hub import model_folder

    return target.drafter(model_folder(Path(drafter)))[0]


def generate(
    target: Models,
    prompt: Prompt,
    *,
    drafter: PathLike | None = None,
    spec: MethodSpec | None = None,
    max_new_tokens: int = 256,
    sampling: SamplingParams | None = None,
    stop: Sequence[str] = (),
    prompt_format: str = "auto",
) -> Answer:
    """Answer one prompt, greedily by default. For several prompts, or to stream, use ``TextDecoder``.

    Args:
        target: a target from ``load_target``.
        prompt: a text, or a conversation: a list of ``{"role": ..., "content": ...}``.
        drafter: folder of a trained drafter, or of a smaller model.
        spec: drafting settings, instead of ``drafter``. With neither, decoding is plain.
        max_new_tokens: limit of the output, in tokens.
        sampling: sampling parameters; None is greedy.
        stop: stop strings. The output ends before the first of them.
        prompt_format: ``chat`` renders a text with the chat template, ``raw`` continues it, ``auto`` is
            ``chat`` if there is a template.

    Returns:
        the text; ``generation`` has token ids, accepted lengths and times.

    Raises:
        VocabForgeError: the settings contradict each other, or the prompt fills the context.
    """
    spec = spec or MethodSpec(drafter=None if drafter is None else Path(drafter))
    decoder = TextDecoder(target, spec)
    return decoder.generate(
        prompt, max_new_tokens=max_new_tokens, sampling=sampling, stop=stop, prompt_format=prompt_format
    )


def count_freq(
    tokenizer: PathLike,
    input: PathLike | Iterable[PathLike],
    output: PathLike,
    *,
    overwrite: bool = False,
    **options: Any,
) -> FrequencyTable:
    """Count how often each token occurs, as ``vocabforge count-freq`` does.

    Args:
        tokenizer: ``tokenizer.json``, its folder, or a name on the Hub.
        input: files, folders, globs or data sets (``ultrachat``, ``hub:NAME``).
        output: folder for the frequency table.
        overwrite: replace an existing output folder.
        options: further options of the command, such as ``mode="assistant"`` and ``workers=4``.

    Returns:
        the table: ``counts`` is (V,) int64.

    Raises:
        VocabForgeError: the input is unreadable or empty.
    """
    from .vocab.counts.request import CountRequest
    from .vocab.counts.run import run_count

    asked = _asked(CountRequest, options, tokenizer=tokenizer, input=_texts(input), output=output)
    return run_count(asked, overwrite=overwrite).table


def select_vocab(
    counts: PathLike, size: int | str, output: PathLike, *, overwrite: bool = False, **options: Any
) -> VocabSubset:
    """Choose the most frequent tokens as a draft vocabulary, as ``vocabforge select-vocab`` does.

    Args:
        counts: folder of a frequency table.
        size: number of ids in the draft vocabulary; ``auto`` with the option ``evaluation``.
        output: folder for the subset.
        overwrite: replace an existing output folder.
        options: further options of the command, such as ``target``.

    Returns:
        the subset: ``ids`` is (size,) int64, ascending.

    Raises:
        VocabForgeError: the table does not exist, or too few ids occur in it.
    """
    from .evaluate.acceptance.draft_size import resolve_size
    from .vocab.subset.request import SelectRequest
    from .vocab.subset.run import run_select
    from .vocab.subset.subset import load_subset

    asked = _asked(SelectRequest, options, counts=(counts,), size=(str(size),), output=output)
    run_select(resolve_size(asked)[0], overwrite=overwrite)
    return load_subset(asked.output)


def train_drafter(
    config: TrainConfig | Mapping[str, Any] | PathLike, *overrides: str, fresh: bool = False
) -> Path | None:
    """Train a drafter, as ``vocabforge train-drafter`` does; an interrupted run resumes.

    Args:
        config: a ``TrainConfig``, a mapping of its keys, a YAML file, or the name of a recipe.
        overrides: settings as ``key.sub=value``; only for a file or a recipe.
        fresh: discard an earlier run in the output folder and start over.

    Returns:
        folder of the trained drafter; None in all processes of a launch except the first.

    Raises:
        VocabForgeError: a key is wrong, or inputs are missing, damaged or do not belong together.
    """
    from .train.config import TrainConfig
    from .train.run import run_training

    if isinstance(config, Mapping):
        config = parse_config(TrainConfig, config, source="train_drafter")
    elif not isinstance(config, TrainConfig):
        config = load_config(TrainConfig, Path(config), overrides)
    return run_training(config, fresh=fresh)


def run_benchmark(
    target: Models,
    methods: Mapping[str, MethodSpec | PathLike],
    benchmark: str,
    output: PathLike,
    *,
    max_new_tokens: int | None = None,
    limit: int | None = None,
    sampling: SamplingParams | None = None,
    warmup: int = 3,
    overwrite: bool = False,
) -> Results:
    """Measure accepted length and speed-up over plain decoding, as ``vocabforge eval`` does.

    Args:
        target: a target from ``load_target``.
        methods: name to drafting settings, or to the folder of a drafter. Plain decoding is always included.
        benchmark: name such as ``spec-bench``, ``mbpp`` or ``sample``, or a question file.
        output: folder for answers, ``results.json`` and ``report.html``.
        max_new_tokens: limit of one turn, in tokens; None is the benchmark's default.
        limit: number of questions, spread evenly over the benchmark; None is all.
        sampling: sampling parameters; None is greedy.
        warmup: unmeasured runs of the first question per method.
        overwrite: replace an existing output folder.

    Returns:
        the content of ``results.json``; ``methods[0]`` is plain decoding.

    Raises:
        VocabForgeError: the benchmark does not exist, or the settings contradict each other.
    """
    from .corpus.tokenizer.prompt_format import resolve_format
    from .decode.build.recipe import DecodingRecipe
    from .evaluate.benchmarks import load_benchmark
    from .evaluate.evaluation import evaluate_methods
    from .evaluate.results.settings import RunSettings
    from .evaluate.run.recipe import evaluation_of
    from .models.target.load import dtype_name

    specs = {
        name: method if isinstance(method, MethodSpec) else MethodSpec(drafter=Path(method))
        for name, method in methods.items()
    }
    values = {"target": target.target, "dtype": dtype_name(target.model.dtype), "methods": specs}
    recipe = DecodingRecipe.model_validate(values)
    questions = load_benchmark(benchmark, limit)
    settings = RunSettings(
        max_new_tokens=max_new_tokens or questions.max_new_tokens,
        sampling=sampling or SamplingParams(),
        warmup=warmup,
        prompt_format=resolve_format(target.tokenizer, "auto"),
    )
    evaluation = evaluation_of(recipe, target, questions, settings)
    return evaluate_methods(Path(output), evaluation, overwrite=overwrite)


def export_drafter(
    drafter: PathLike, format: str, output: PathLike, *, overwrite: bool = False, **options: Any
) -> Path:
    """Write a drafter in the layout of a server or decoder, as ``vocabforge export`` does.

    Args:
        drafter: folder of a drafter in any layout.
        format: ``sglang-eagle3``, ``gguf``, ``native``, ...; ``vocabforge export --help`` lists all.
        output: folder to write.
        overwrite: replace an existing output folder.
        options: further options of the command, such as ``vocab``, ``target`` and ``dtype``.

    Returns:
        the folder.

    Raises:
        VocabForgeError: the format cannot express the drafter, or the drafter belongs to another target.
    """
    from .export.request import ExportRequest
    from .export.run import run_export

    drafting = {name: options.pop(name) for name in ("dynamic", "shortlist", "budget") if name in options}
    asked = _asked(ExportRequest, options, drafter=drafter, format=format, output=output)
    run_export(asked, MethodSpec(**drafting), overwrite=overwrite)
    return asked.output


def _asked(request: type[StrictModel], options: Mapping[str, Any], **given: Any) -> Any:
    return parse_config(request, {**given, **options}, source=request.__name__)


def _texts(paths: PathLike | Iterable[PathLike]) -> tuple[str, ...]:
    return (str(paths),) if isinstance(paths, (str, Path)) else tuple(map(str, paths))
