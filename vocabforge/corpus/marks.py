"""Generation tags of a chat template, looked at with the turns that comparing finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..core.errors import DataError
from .template import generation_spans, template_facts
from .turns import Rendering, assistant_turns, roles_of


def marked_spans(rendering: Rendering) -> list[tuple[int, int]] | None:
    """(start, end) in characters of what the template's generation tags enclose, None where they say nothing.

    Raises:
        DataError: the tags enclose nothing.
    """
    template = rendering.tokenizer.chat_template or ""
    if not template_facts(template).marks_generation:
        return None
    source = rendering.tokenizer.source.parent
    marked = generation_spans(
        template,
        rendering.whole,
        rendering.messages,
        variables={**rendering.tokenizer.special_text, **rendering.variables},
        source=source,
    )
    if marked is not None and not marked:
        raise DataError(
            "the chat template's generation tags enclose nothing, so the loss mask is all zero",
            got=f"roles: {roles_of(rendering.messages)}",
            expected="{% generation %} around the assistant's text",
            source=source,
        )
    return marked


def check_marks(rendering: Rendering, marked: Sequence[tuple[int, int]]) -> Counter[str]:
    """Compare the tags' places with the assistant's turns; where no turn can be found, the tags are believed.

    Returns:
        ``marks_with_header`` 1 where a tag opens before the header's end, ``marks_without_end`` 1 where one
        closes before the turn's end (its end-of-turn token).

    Raises:
        DataError: a tag encloses text outside every turn of the assistant (a user's, a header alone).
    """
    messages, whole = rendering.messages, rendering.whole
    try:
        turns = assistant_turns(rendering, [at for at, m in enumerate(messages) if m["role"] == "assistant"])
    except DataError:
        return Counter()
    if not turns:
        return Counter()
    # A first message of the assistant answers no prompt and has no turn to compare with.
    begin = turns[0].start if messages[0]["role"] == "assistant" else 0
    for start, end in marked:
        inside = any(max(start, turn.start) < min(end, turn.end) for turn in turns)
        if not inside and end > begin and whole[start:end].strip():
            raise DataError(
                "the chat template's generation tags enclose text that is not the assistant's",
                got=repr(whole[start:end][:60]),
                expected="tags around the assistant's turns only",
                source=rendering.tokenizer.source.parent,
                remedy="mend the tags in the chat template, or take them out: the mask is found without them",
            )
    facts: Counter[str] = Counter()
    for turn in turns:
        own = [(a, b) for a, b in marked if max(a, turn.start) < min(b, turn.end)]
        if own and whole[own[0][0] : turn.start].strip():
            facts["marks_with_header"] = 1
        if own and whole[own[-1][1] : turn.end].strip():
            facts["marks_without_end"] = 1
    return facts
