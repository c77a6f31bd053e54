"""From folders to decoders: load the target once, each drafter once, and name the methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..core.errors import UsageError, VocabForgeError
from ..core.files import read_json
from ..core.progress import say
from ..export.eagle import Eagle
from ..models.drafter_io import CONFIG
from ..models.heads import HeadBase, base_of, base_of_model
from ..models.lean import LeanModel
from .build_foreign import ForeignWays, Way, WritesTexts, restricted
from .build_heads import NamedHead, heads_of, load_heads
from .build_models import Models, is_draft_model, trained_for
from .build_options import BuildOptions, check_options, fitting, left_out, options_of
from .build_vocab_heads import BuiltHead, heads_for, read_subset
from .draft_vocabulary import DraftVocabulary, draft_vocabulary
from .engine import Decoder
from .policies import tree_settings
from .proposer_draft_model import head_base
from .proposers import ALONE, FITTING, FOREIGN, ProposerParts, make_proposer
from .recipe import PLAIN
from .request import Generator
from .verifiers import chosen_verifier

__all__ = [
    "Make",
    "Method",
    "MethodMaker",
    "build_methods",
    "is_draft_model",
    "kind_of",
    "labelled",
    "plain_method",
]

Make = Callable[[], "Method"]


@dataclass(frozen=True)
class Method:
    """One way of decoding.

    Attributes:
        head: describes its draft head where that is an artefact of its own.
        vocabulary: what its draft head scores; None where it has none.
        verifier: that was asked for by name. lossless: whether its outputs have the target's law.
    """

    name: str
    generator: Generator
    description: str
    head: str | None = None
    vocabulary: DraftVocabulary | None = None
    verifier: str | None = None
    lossless: bool = True


def build_methods(
    target: Path,
    drafters: Sequence[str] = (),
    vocabs: Sequence[str] = (),
    methods: Sequence[str] = (),
    options: BuildOptions | None = None,
) -> list[Method]:
    """Plain decoding, each drafter, each with each draft vocabulary and each with its draft heads.

    Args:
        target: Hugging Face folder.
        drafters: ``DIR`` or ``LABEL=DIR``: trained drafters, or smaller models of any vocabulary; the method is
            named after the label, else the folder.
        vocabs: the same for subset artefacts; the method is named ``drafter+vocab``.
        methods: keep only these names (plain decoding is always kept and first).

    Raises:
        VocabForgeError: anything missing, damaged, unknown, or not belonging together.
    """
    options = options or BuildOptions()
    target = Path(target)
    check_options(options, [kind_of(path) for _, path in map(labelled, drafters)])
    if options.draft.tree in (None, "dynamic"):  # told before anything is loaded
        tree_settings(options.draft.depth, options.draft.topk, options.draft.total_nodes)
    models = Models(target, options.tokenizer, device=options.device, dtype=options.dtype)
    maker = MethodMaker(models, options, len(drafters))
    heads = maker.heads([path for _, path in map(labelled, drafters)])
    named_vocabs = [labelled(text) for text in vocabs]
    found = [plain_method(models, options)]
    for name in options.proposers:
        if name in ALONE:
            found.extend(make() for make in maker.alone(name, named_vocabs))
    for label, path in map(labelled, drafters):
        makes = maker.drafter_methods(label, path, named_vocabs, heads.get(path, ()))
        found.extend(make() for make in makes)
    maker.ways.check_used()
    _check_methods(found, methods)
    return [method for method in found if not methods or method.name in (PLAIN, *methods)]


def plain_method(models: Models, options: BuildOptions) -> Method:
    """Decoding without drafts."""
    return Method(PLAIN, Decoder(models.model, wrap=options.wrap), "one token a target forward")


class MethodMaker:
    """Makes methods over one target, whose drafters are that many; what it yields makes one when called."""

    def __init__(self, models: Models, options: BuildOptions, drafters: int) -> None:
        self.models, self.options, self.model = models, options, models.model
        alone = sum(name in ALONE for name in options.proposers)
        # More than one method drafts, so that an option may be meant for another one.
        self.several = drafters * max(len(options.proposers) - alone, 1) + alone > 1
        loaded, rows = models.tokenizer, self.model.config.vocab_size
        self.ways = ForeignWays(loaded, rows, options, several=drafters > 1, alone=not self.several)
        self.print = loaded.fingerprint

    def alone(self, name: str, vocabs: Sequence[tuple[str, Path]]) -> Iterator[Make]:
        """A proposer without a drafter; an early exit also over each draft vocabulary."""
        yield partial(self._method, name, name, None, None)
        if name == "early-exit" and (vocabs or (self.options.heads and self.options.heads.dynamic)):
            base = base_of_model(self.model)
            for built in self._heads_for(Path(name), base, vocabs, (), self.print):
                yield partial(self._method, f"{name}+{built.label}", name, None, built)

    def drafter_methods(
        self, label: str, path: Path, vocabs: Sequence[tuple[str, Path]], heads: Sequence[NamedHead]
    ) -> Iterator[Make]:
        """A drafter under each of its proposers, over its own head and over the others asked for."""
        if is_draft_model(path):
            yield from self._model_methods(label, path, vocabs)
            return
        drafter, artifact = self.models.drafter(path)
        names = fitting(drafter.kind, self.options.proposers, path)
        others = self._heads_for(path, base_of(drafter), vocabs, heads, trained_for(artifact))
        for name in names:
            method = label if len(names) == 1 else f"{label}:{name}"
            yield partial(self._method, method, name, drafter, None)
            for built in others:
                yield partial(self._method, f"{method}+{built.label}", name, drafter, built)

    def _model_methods(self, label: str, path: Path, vocabs: Sequence[tuple[str, Path]]) -> Iterator[Make]:
        """A language model under each of its proposers."""
        small = self.models.language_model(path)
        way = self.ways.of(path, small.config.vocab_size)
        if way.reason is not None:
            say(f"{label}: {way.names[0]}, chosen because {way.reason}.")
        for name in way.names:
            method = label if len(way.names) == 1 else f"{label}:{name}"
            if name in FOREIGN:
                yield partial(self._method, method, name, small, None, way)
                yield from self._over_common_tokens(method, name, small, way, vocabs)
                continue
            yield partial(self._method, method, name, small, None)
            for built in self._heads_for(path, head_base(self.model, small), vocabs, (), self.print):
                yield partial(self._method, f"{method}+{built.label}", name, small, built)

    def _heads_for(
        self,
        owner: Path,
        base: HeadBase,
        vocabs: Sequence[tuple[str, Path]],
        heads: Sequence[NamedHead],
        fingerprint: str | None,
    ) -> list[BuiltHead]:
        """The heads over one exact head; the same request gives the same ones, which hold copies of its rows."""
        steps = self.options.draft.depth if heads else None  # a schedule of budgets is by draft step
        key = repr((owner, vocabs, self.options.heads, steps))
        if key not in self.models.built:
            self.models.built[key] = heads_for(base, vocabs, heads, self.options.heads, fingerprint)
        return self.models.built[key]

    def _over_common_tokens(
        self, method: str, name: str, small: LeanModel, way: Way, vocabs: Sequence[tuple[str, Path]]
    ) -> Iterator[Make]:
        """TLI also over each draft vocabulary; the others draft texts, and have no use for one."""
        dynamic = self.options.heads is not None and bool(self.options.heads.dynamic)
        if not vocabs and not dynamic:
            return
        if name != "tli" or dynamic:
            given = " and ".join(["--vocab"] * bool(vocabs) + ["--dynamic"] * dynamic)
            if not self.several:
                raise UsageError(
                    f"{name} cannot draft so",
                    got=given,
                    expected="--vocab with --proposer tli; no --dynamic where the vocabularies differ",
                )
            say(f"{method} drafts without {given}: {name} has no use for them.")
            return
        assert way.bridge is not None
        for vocab, path in vocabs:
            bridge = restricted(way.bridge, read_subset(path, self.print), path)
            yield partial(self._method, f"{method}+{vocab}", name, small, None, replace(way, bridge=bridge))

    def _method(
        self, method: str, name: str, drafter: Any, built: BuiltHead | None, way: Way | None = None
    ) -> Method:
        head = None if built is None else built.head
        draft = options_of(name, self.options.draft, self.several)
        if self.several and (lost := left_out(name, self.options.draft)):
            say(
                f"{method} drafts without {', '.join(lost)}: {name} has no use for {'them' if lost[1:] else 'it'}."
            )
        bridge = None if way is None else way.bridge
        proposer = make_proposer(name, ProposerParts(self.model, drafter, head, draft, bridge))
        options = self.options
        decoder = Decoder(
            self.model, proposer, control=options.control, verifier=options.verifier, wrap=options.wrap
        )
        plan = proposer.plan
        parts = [f"{proposer.label}, {plan.nodes} nodes on {plan.levels} levels"]
        if way is not None:
            parts += [f"chosen because {way.reason}"] if way.reason is not None else []
            parts.append(way.facts)
            if isinstance(proposer, WritesTexts):
                parts.insert(1, f"drafted as up to {proposer.draft_tokens} draft tokens a cycle")
        elif built is not None:
            parts.append(built.text)
        elif proposer.head is not None:
            parts.append(f"draft vocabulary of {proposer.head.size:,} tokens")
        if proposer.samples:
            parts.append("drawn drafts")
        if self.options.control != "fixed":
            parts.append(f"{self.options.control} control")
        lossless = True
        if options.verifier is not None:
            lossless = chosen_verifier(options.verifier, sampled=options.sampled).lossless
            parts.append(f"verifier {options.verifier}{'' if lossless else ' (not lossless)'}")
        scoring = head or proposer.head
        rows = self.model.config.vocab_size
        vocabulary = None if scoring is None else draft_vocabulary(scoring, plan.levels, rows)
        extra = built.text if built is not None and built.extra else None
        said = ", ".join(parts)
        return Method(method, decoder, said, extra, vocabulary, options.verifier, lossless)

    def heads(self, drafters: Sequence[Path]) -> dict[Path, list[NamedHead]]:
        """The draft heads of each drafter's folder, checked against what they were trained for."""
        request = self.options.heads
        if request is None:
            return {}
        named = [labelled(text) for text in request.given]
        steps = (self.options.draft.depth or 5) + 1
        device, dtype = self.model.device, self.model.dtype
        loaded = load_heads(request, named, steps=steps, device=device, dtype=dtype, kept=self.models.trained)
        if not loaded:
            return {}
        paths = [path for path in drafters if not is_draft_model(path)]
        return heads_of(loaded, {path: self.models.owner(path) for path in paths})


def kind_of(path: Path) -> str:
    """What a folder drafts as, before it is loaded; what cannot be read counts as an EAGLE-3 drafter until then."""
    if is_draft_model(path):
        return "draft-model"
    with suppress(VocabForgeError):
        native = (path / CONFIG).is_file()
        body = read_json(path / CONFIG if native else path / "config.json", finite=False)
        if native and isinstance(body, dict):
            return body["kind"] if body.get("kind") in FITTING else "eagle3"
        if isinstance(body, dict) and Eagle.matches(body):
            return "eagle1"
    return "eagle3"


def _check_methods(found: Sequence[Method], methods: Sequence[str]) -> None:
    names = [method.name for method in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            "two methods have one name", got=", ".join(twice), remedy="name them: --drafter LABEL=DIR"
        )
    unknown = [name for name in methods if name not in names]
    if unknown:
        raise UsageError(
            "there is no such method in this run", got=", ".join(unknown), expected=", ".join(names)
        )


def labelled(text: str) -> tuple[str, Path]:
    """Label and folder of ``LABEL=DIR`` or ``DIR``, whose label is the folder's name (a run's, of its ``drafter``).

    Raises:
        UsageError: a label that is not one printable line.
    """
    label, separator, folder = text.partition("=")
    if separator and label and not Path(text).exists():
        if not label.isprintable():  # it names files, rows and columns
            raise UsageError("this cannot be a label", got=repr(label), expected="LABEL=DIR on one line")
        return label, Path(folder)
    whole = Path(text).resolve()
    return (whole.parent.name if whole.name == "drafter" else whole.name), Path(text)
