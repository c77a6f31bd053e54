"""Convert conversations to requests and back: turns to regenerate, contents of a finished row."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...core.errors import DataError
from ..chat.conversation import INTERNAL, Message, check_nesting, load_nested, read_tools
from ..sources.document import Document

_SEED_SPACE = 2**31  # servers accept different ranges; all accept 31 bits
_ASKS = ("user", "tool")


@dataclass(frozen=True)
class GenerationSettings:
    """Settings that determine an answer.

    Attributes:
        backend: description of the backend (kind, and for a local target its fingerprint, batch size and
            dtype).
        temperature: 0 is greedy.
        seed: seed of the run; each request's seed is derived from it and the request's content.
        send_reasoning: include the thinking of earlier turns in requests.
        template_arguments: additional variables for the chat template (``enable_thinking``, ...).
        body: additional keys of a server's request.
    """

    backend: Mapping[str, Any]
    model: str
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 2048
    seed: int = 0
    send_reasoning: bool = False
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        names = self.__dataclass_fields__
        plain: dict[str, Any] = json.loads(json.dumps({name: getattr(self, name) for name in names}))
        return plain


@dataclass(frozen=True)
class ChatRequest:
    """Input of one answer; ``key`` is a hex hash of the other fields and :class:`GenerationSettings`."""

    key: str
    messages: tuple[Message, ...]
    tools: Sequence[Any] | None
    seed: int
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ChatCompletion:
    """One turn of the target.

    Attributes:
        finish_reason: ``stop``, ``length``, ``tool_calls`` or another value of the server.
        response_ids: generated token ids, including the end token; None from servers.
    """

    message: Message
    finish_reason: str
    seed: int
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    response_ids: tuple[int, ...] | None = None

    @property
    def truncated(self) -> bool:
        """Whether the answer was truncated at ``max_tokens``."""
        return self.finish_reason == "length"

    @property
    def empty(self) -> bool:
        """Whether the answer has neither text nor tool calls."""
        return not str(self.message.get("content") or "").strip() and not self.message.get("tool_calls")

    def facts(self) -> dict[str, Any]:
        """Return the answer without its message."""
        facts: dict[str, Any] = {"finish_reason": self.finish_reason, "seed": self.seed}
        for name in ("prompt_tokens", "completion_tokens"):
            if getattr(self, name) is not None:
                facts[name] = getattr(self, name)
        if self.response_ids is not None:
            facts["response_ids"] = list(self.response_ids)
        return facts


def conversation_of(document: Document) -> Document:
    """Return a document as a conversation with a tool list that was read; a plain text is one user turn.

    Raises:
        DataError: its tool list is malformed.
    """
    messages = document.messages
    if messages is None:
        messages = [{"role": "user", "content": document.text or ""}]
    return replace(document, messages=messages, tools=read_tools(document.tools))


class Walk:
    """Conversation in progress: every assistant turn is regenerated, and later turns follow the new answers.

    Assistant turns before the first question are kept, consecutive ones count as one answer, and a final
    question is answered. In a list of questions without any answer, each is answered. The walk ends early if
    an answer calls other tools than the data set's, because the recorded results would not match.
    """

    def __init__(
        self,
        conversation: Document,
        generation: GenerationSettings,
        first_turn_only: bool = False,
        keep_empty: bool = False,
    ) -> None:
        self.conversation = conversation
        self.messages: list[Message] = []
        self.answers: list[ChatCompletion] = []
        self.ended: str | None = None
        self._generation, self._first_only, self._keep_empty = generation, first_turn_only, keep_empty
        self._old, self._at = _with_gaps(conversation.messages or ()), 0
        self._ids: dict[str, str] = {}
        self._fresh_ids: list[str] = []
        self._asked = False
        self._read_on()

    @property
    def place(self) -> str:
        """Location of the conversation, ``file:line``."""
        return f"{self.conversation.source.name}:{self.conversation.line}"

    @property
    def open_turns(self) -> int:
        """Number of answers still to come, if nothing ends the walk early."""
        if self.ended is not None:
            return 0
        turns, asked = 0, self._asked
        for message in self._old[self._at :]:
            if message["role"] == "assistant":
                turns, asked = turns + asked, False
            else:
                asked = asked or message["role"] in _ASKS
        turns += asked
        return min(turns, 1) if self._first_only else turns

    def request(self) -> ChatRequest | None:
        """Return the next request, or None if the conversation is complete or has ended."""
        if self.ended is not None or not self._asked:
            return None
        hidden = INTERNAL if self._generation.send_reasoning else INTERNAL | {"reasoning_content"}
        messages = tuple(
            {name: value for name, value in message.items() if name not in hidden}
            for message in self.messages
        )
        return make_request(messages, self.conversation.tools, self._generation, self.conversation.variables)

    def add(self, answer: ChatCompletion) -> None:
        """Add the answer to :meth:`request` and advance to the next question."""
        # Training must be able to detect that the target did not end this answer.
        self.messages.append({**answer.message, **({"cut": True} if answer.truncated else {})})
        self.answers.append(answer)
        self._asked = False
        replaced: list[Message] = []
        while self._at < len(self._old) and self._old[self._at]["role"] == "assistant":
            replaced.append(self._old[self._at])
            self._at += 1
        self._check_tools(answer, replaced)
        if self.ended is None and answer.empty and not self._keep_empty:
            self.ended = "empty"
        if self._first_only:
            self.ended = self.ended or "first turn"
        if self.ended is None:
            self._read_on()

    def _check_tools(self, answer: ChatCompletion, replaced: Sequence[Message]) -> None:
        new = list(answer.message.get("tool_calls") or ())
        old = [call for message in replaced for call in message.get("tool_calls") or ()]
        follows = self._at < len(self._old) and self._old[self._at]["role"] == "tool"
        if not follows and not new:
            return
        if not same_calls(new, old):
            self.ended = "tools"
            return
        self._fresh_ids = [str(call["id"]) for call in new if call.get("id") is not None]
        if len(self._fresh_ids) == len(old):
            self._ids = {str(call.get("id")): fresh for call, fresh in zip(old, self._fresh_ids)}

    def _read_on(self) -> None:
        while self._at < len(self._old):
            message = self._old[self._at]
            if message["role"] == "assistant":
                if self._asked:
                    return
                if not self.answers:
                    self.messages.append(dict(message))
            else:
                self.messages.append(self._with_fresh_id(message))
                self._asked = self._asked or message["role"] in _ASKS
            self._at += 1

    def _with_fresh_id(self, message: Message) -> Message:
        if message["role"] != "tool" or not self._fresh_ids:
            return dict(message)
        named = self._ids.get(str(message.get("tool_call_id")))
        fresh = named if named in self._fresh_ids else self._fresh_ids[0]
        self._fresh_ids.remove(fresh)
        return {**message, "tool_call_id": fresh}


def _with_gaps(messages: Sequence[Message]) -> list[Message]:
    """Return the turns, with empty answers between the questions of a conversation that has no answer."""
    if any(message["role"] == "assistant" for message in messages):
        return list(messages)
    turns: list[Message] = []
    for message in messages:
        if message["role"] == "user" and turns and turns[-1]["role"] == "user":
            turns.append({"role": "assistant", "content": ""})
        turns.append(message)
    return turns


def make_request(
    messages: tuple[Message, ...],
    tools: Sequence[Any] | None,
    generation: GenerationSettings,
    variables: Mapping[str, Any] | None = None,
) -> ChatRequest:
    """Return the request for these messages; its key and seed depend only on content."""
    own = dict(variables or {})
    prompt = canonical({"messages": messages, "tools": tools, **({"variables": own} if own else {})})
    key = hashlib.sha256(prompt + b"\0" + canonical(generation.facts())).hexdigest()
    drawn = hashlib.sha256(f"{generation.seed}\0".encode() + prompt).digest()
    return ChatRequest(key, messages, tools, int.from_bytes(drawn[:8], "little") % _SEED_SPACE, own)


def json_line(value: Any) -> bytes:
    """Return one line of JSON in UTF-8; lone surrogates stay escaped."""
    try:
        return json.dumps(value, ensure_ascii=False).encode("utf-8") + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value).encode("ascii") + b"\n"


def output_row(walk: Walk, generation: GenerationSettings) -> dict[str, Any]:
    """Return a finished row: OpenAI ``messages`` and how they were generated."""
    hidden = INTERNAL - {"cut", "loss_weight"}
    messages = [{k: v for k, v in message.items() if k not in hidden} for message in walk.messages]
    row: dict[str, Any] = {"messages": messages}
    if walk.conversation.tools is not None:
        row["tools"] = walk.conversation.tools
    variables = dict(walk.conversation.variables)
    if (documents := variables.pop("documents", None)) is not None:
        row["documents"] = documents
    if variables:
        row["chat_template_kwargs"] = variables
    facts = generation.facts()
    row["generation"] = {
        name: facts[name] for name in ("model", "temperature", "top_p", "max_tokens", "seed")
    }
    row["generation"]["source"] = walk.place
    row["generation"]["answers"] = [answer.facts() for answer in walk.answers]
    return row


def conversation_digest(conversation: Document) -> bytes:
    """Return a hash of a conversation's content, without its location."""
    own = [conversation.variables] if conversation.variables else []
    return hashlib.sha256(canonical([conversation.messages, conversation.tools, *own])).digest()


def check_message(message: Any) -> None:
    """Check that a value is an assistant message in the format of regenerate.

    Raises:
        DataError: not a message, or its tool calls are malformed.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
        raise DataError(
            "its answer is not a message",
            got=type(message).__name__,
            expected="an object whose content is a text",
        )
    if message.get("role") != "assistant" or not isinstance(message.get("reasoning_content", ""), str):
        raise DataError(
            "its answer is not a message of the assistant",
            got=f"role {message.get('role')!r}",
            expected="role assistant, and reasoning_content a text or absent",
        )
    calls = message.get("tool_calls") or []
    check_nesting(calls, "a tool call of its answer")
    for call in calls if isinstance(calls, list) else [None]:
        function = call.get("function") if isinstance(call, Mapping) else None
        function = function if isinstance(function, Mapping) else {}
        arguments = function.get("arguments")
        if not isinstance(function.get("name"), str) or not isinstance(arguments, (str, Mapping, type(None))):
            raise DataError(
                "its answer holds malformed tool calls",
                got=repr(call)[:80],
                expected="a list of objects function, each with a name and perhaps arguments",
            )
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError):  # invalid JSON is the target's own mistake and is kept
                load_nested(arguments, "a tool call of its answer")


def token_count(value: Any) -> int | None:
    """Return a token count from a server, or None if it is invalid."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return int(value) if whole and value >= 0 else None


def canonical(value: Any) -> bytes:
    """Return JSON with sorted keys, in ASCII: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode("ascii")


def content_digest(value: Any) -> str:
    """Return the hex SHA-256 of :func:`canonical`."""
    return hashlib.sha256(canonical(value)).hexdigest()


def same_calls(first: Any, second: Any) -> bool:
    """Return whether two lists of tool calls have equal names and arguments; an invalid call matches none."""
    try:
        return [_call(call) for call in first] == [_call(call) for call in second]
    except (RecursionError, TypeError, ValueError, DataError):
        return False


def _call(call: Any) -> tuple[str, Any]:
    """Return name and arguments of a tool call; arguments as text are parsed to ignore spacing."""
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):
            arguments = load_nested(arguments, "a tool call")
    return str(function.get("name")), canonical(arguments)
