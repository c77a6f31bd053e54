"""Malformed rows, tables, lists, logs and measurements: (reader, name) -> how it is spoilt, words of the error."""

from __future__ import annotations

from tests.fuzz.changes import Change, bomb, deep, half, hostile_pickle, more, put, row, swap, twice, whole

CHATS, LIST, PARQUET = "conversations", "conversations in a list", "Parquet"
SPEC, HUMAN, GSM, CHAT, ANY = (
    "questions spec-bench", "questions human-eval", "questions gsm8k", "questions chat", "questions of a format to be told"
)  # fmt: skip
MAP, COUNTS, TREE = "FR-Spec list", "counts as text", "tree"
RESULTS, COMPARE, RUN = "results", "comparison of evaluations", "training run"
JOURNAL, ANSWERS, ACCEPTED, REPLY = (
    "journal",
    "answers of regenerate",
    "measured speeds",
    "reply of a server",
)
KEPT = "abababababababababababababababab.json"
PLAIN = "answers/plain.jsonl"
NAN = float("nan")


def turn(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "x", **fields}]}


ROWS: list[tuple[str, str, Change, str]] = [
    (CHATS, "a number for a row", whole("3\n"), "not"),
    (CHATS, "messages of a text", whole('{"messages": "hello"}\n'), "neither"),
    (CHATS, "messages of numbers", whole('{"messages": [1]}\n'), "not an object"),
    (CHATS, "no messages", whole('{"messages": []}\n'), "empty"),
    (CHATS, "a role of a number", row(0, "messages", [{"role": 3, "content": "x"}]), "unknown role"),
    (CHATS, "a content of a number", row(0, "messages", [{"role": "user", "content": 3}]), "no text"),
    (CHATS, "a content of an image", row(0, "messages", [{"role": "user", "content": [{"type": "image", "text": "x"}]}]), "not text"),
    (CHATS, "lone surrogates", row(0, "messages", [{"role": "user", "content": "\ud800"}]), "lone surrogate"),
    (CHATS, "lone surrogates in a tool's name", row(0, "tools", [{"type": "function", "function": {"name": "\ud800"}}]), "harmless: tools are read where a template takes them"),
    (CHATS, "tool calls of a text", row(0, "messages", [{"role": "assistant", "content": "x", "tool_calls": "f"}]), "tool calls is not valid JSON"),
    (CHATS, "a tool call without a name", row(0, "messages", [{"role": "assistant", "tool_calls": [{}]}]), "no name"),
    (CHATS, "tools of a number", row(0, "tools", 3), "harmless: tools are read where a template takes them"),
    (CHATS, "tools cut short", row(0, "tools", "[{"), "harmless: tools are read where a template takes them"),
    (CHATS, "deep tools", row(0, "tools", deep(900)), "harmless: tools are read where a template takes them"),
    (CHATS, "a deep turn", whole('{"messages": [{"role": "user", "content": ' + deep(500) + "}]}\n"), "deep"),
    (CHATS, "deep brackets", whole(deep(100_000) + "\n"), "not valid JSON"),
    (CHATS, "a number of 5,000 digits", whole('{"messages": ' + "9" * 5000 + "}\n"), "not valid JSON"),
    (CHATS, "a NUL byte", whole(b'{"messages": [{"role": "user", "content": "a\x00b"}]}\n'), "not valid JSON"),
    (CHATS, "UTF-16", whole('{"text": "x"}\n'.encode("utf-16")), "UTF-8"),
    (CHATS, "prompt of a list, response of a text", whole('{"prompt": [1], "response": "b"}\n'), "is not an object"),
    (LIST, "no end", half(), "not valid"),
    (LIST, "two lists", more("[]"), "Extra data"),
    (LIST, "a comma too many", swap("}, {", "},, {"), "not valid"),
    (LIST, "deep brackets", whole(deep(100_000)), "not valid"),
    (LIST, "UTF-16", whole("[]".encode("utf-16")), "utf-8"),
    (PARQUET, "not Parquet", whole(b"PAR1" + b"\x00" * 64 + b"PAR1"), "damaged"),
    (PARQUET, "a footer without end", whole(b"PAR1" + b"\xff" * 64 + b"\xff\xff\xff\x7fPAR1"), "damaged"),
    (PARQUET, "cut short", half(), "damaged"),
    (PARQUET, "no byte", whole(b""), "damaged"),
    (PARQUET, "JSON", whole("{}"), "damaged"),
    ("questions in Parquet", "cut short", half(), "damaged"),
    (SPEC, "no question_id", whole('{"category": "a", "turns": ["x"]}\n'), "question_id"),
    (SPEC, "a question_id of truth", row(0, "question_id", True), "question_id"),
    (SPEC, "a question_id of a text", row(0, "question_id", "1"), "question_id"),
    (SPEC, "a question_id beyond 64 bits", row(0, "question_id", 2**70), "question_id"),
    (SPEC, "one id twice", row(1, "question_id", 1), "twice"),
    (SPEC, "a key twice", whole('{"question_id": 1, "question_id": 2, "category": "a", "turns": ["x"]}\n'), "is given twice"),
    (SPEC, "turns of a text", row(0, "turns", "x"), "turns"),
    (SPEC, "no turn", row(0, "turns", []), "turns"),
    (SPEC, "a turn of a number", row(0, "turns", [1]), "turns"),
    (SPEC, "a turn of lone surrogates", row(0, "turns", ["\ud800"]), "Unicode"),
    (SPEC, "a category of control characters", row(0, "category", "\x1b[2J"), "category"),
    (SPEC, "a row of a list", whole("[1]\n[2]\n"), ""),
    (SPEC, "deep brackets", whole(deep(100_000)), ""),
    (HUMAN, "a task without a number", row(0, "task_id", "HumanEval"), "task_id"),
    (HUMAN, "a task twice", row(1, "task_id", "HumanEval/0"), "twice"),
    (HUMAN, "no test", row(0, "test", None), "test"),
    (HUMAN, "an entry point of a list", row(0, "entry_point", ["f"]), "entry_point"),
    (HUMAN, "an entry point of code", row(0, "entry_point", "f();import os"), "entry_point"),
    (GSM, "an answer without a result", put("0.answer", "four"), "no result"),
    (GSM, "an answer of a number", put("0.answer", 4), "answer"),
    (GSM, "a result of NaN", put("0.answer", "#### nan"), "no result"),
    (GSM, "a row of a text", put("0", "x"), ""),
    (CHAT, "nobody asks", whole('[{"messages": [{"role": "assistant", "content": "x"}]}]'), "no conversation"),
    (CHAT, "a question of blanks", whole('[{"messages": [{"role": "user", "content": "  "}]}]'), "no conversation"),
    (ANY, "other keys", whole('{"a": 1}\n'), "not known"),
    (ANY, "a byte order mark alone", whole(b"\xef\xbb\xbf"), "no question"),
    (ANY, "blanks", whole(" \n \n"), "no question"),
    (ANY, "a text", whole("Who are you?\n"), "not valid JSON"),
    ("packed rows .gz", "a bomb", whole(bomb(".gz", 12)), "too large"),
    ("packed rows .xz", "a bomb", whole(bomb(".xz", 12)), "too large"),
    ("packed rows .zst", "a bomb", whole(bomb(".zst", 12)), "too large"),
    ("packed rows .gz", "not packed", whole('{"question_id": 1}\n'), "damaged"),
    ("packed rows .xz", "not packed", whole('{"question_id": 1}\n'), "damaged"),
    ("packed rows .zst", "not packed", whole('{"question_id": 1}\n'), "damaged"),
    ("packed rows .gz", "a wrong sum", lambda path: path.write_bytes(path.read_bytes()[:-8] + b"\x00" * 8), "damaged"),
    ("packed rows .zst", "a frame that claims 2^62 bytes", whole(b"\x28\xb5\x2f\xfd\xe0" + (2**62).to_bytes(8, "little")), "damaged"),
    ("texts", "UTF-16", whole("once".encode("utf-16")), "UTF-8"),
]  # fmt: skip

LISTS: list[tuple[str, str, Change, str]] = [
    (MAP, "a pickle that makes a folder", whole(hostile_pickle()), "could run code"),
    (MAP, "a pickle without end", whole(b"\x80\x02" + b"]" * 10_000), ""),
    (MAP, "no archive", whole(b"PK\x03\x04" + b"\x00" * 100), "cannot be read"),
    (MAP, "no byte", whole(b""), "cannot be read"),
    (MAP, "JSON", whole("[1, 2]"), ""),
    (COUNTS, "a count below none", swap("1\n", "-1\n"), "not a count"),
    (COUNTS, "a count of other digits", swap("1\n", "¹\n"), ""),
    (COUNTS, "a count of 30 digits", swap("1\n", "1" * 30 + "\n"), "not a count"),
    (COUNTS, "counts beyond 64 bits", whole(f"{2**63 - 1}\n" * 261), "not those of this tokenizer"),
    (COUNTS, "too few", half(), "not those of this tokenizer"),
    (TREE, "a path twice", whole("[[0], [0]]"), "each path once"),
    (TREE, "no parent", whole("[[0, 0]]"), "of its parent"),
    (TREE, "a rank of truth", whole("[[true]]"), "ranks from the root"),
    (TREE, "a rank below none", whole("[[-1]]"), "ranks from the root"),
    (TREE, "a rank without end", whole(f"[[{2**63}]]"), "harmless: no drafter proposes that many children, which is said where the tree meets one"),
    (TREE, "deep brackets", whole(deep(100_000)), "cannot be"),
    (TREE, "a table", whole('{"a": 1}'), "a list of paths"),
]  # fmt: skip

LOGS: list[tuple[str, str, Change, str]] = [
    (RESULTS, "a key twice", twice("schema_version", 9, "results.json"), "is given twice"),
    (RESULTS, "a rate of infinity", put("settings.warmup", float("inf"), "results.json"), "finite"),
    (RESULTS, "a number of a text", put("answered", "4", "results.json"), "answered"),
    (RESULTS, "methods of a table", put("methods", {}, "results.json"), "methods"),
    (RESULTS, "a list", whole("[]", "results.json"), "another version"),
    (COMPARE, "a path that leaves the folder", put("methods.0.answers", ["../../eval-b/answers/plain.jsonl"], "results.json"), ""),
    (COMPARE, "an absolute path", put("methods.0.answers", ["/dev/zero"], "results.json"), ""),
    (COMPARE, "an answer of no category", row(0, "category", None, PLAIN), "category of an answer row"),
    (COMPARE, "an answer without a choice", row(0, "choices", [], PLAIN), "choices of an answer row"),
    (COMPARE, "an answer's key twice", swap('"question_id": ', '"question_id": 99, "question_id": ', PLAIN), "is given twice"),
    (COMPARE, "a question of a list", row(0, "question_id", [1], PLAIN), "question_id"),
    (COMPARE, "a row of a number", more("3\n", PLAIN), ""),
    (RUN, "a log of lists", whole("[]\n", "metrics.jsonl"), "no JSON object"),
    (RUN, "a step of a text", row(1, "step", "x", "metrics.jsonl"), "log of the training run"),
    (RUN, "held-out losses of a number", row(4, "loss", 1.0, "metrics.jsonl"), "log of the training run"),
    (RUN, "heads of a list", row(1, "heads", [1], "metrics.jsonl"), "harmless: the report reads the heads of rows of live acceptance"),
    (RUN, "deep brackets", swap("{", deep(100_000) + "\n{", "metrics.jsonl"), "JSON"),
    (RUN, "settings of a list", whole("[]", "config.json"), "config.json"),
    (RUN, "settings of steps of a text", put("optim", "x", "config.json"), "config.json"),
    (JOURNAL, "another kind", put("kind", "x", "run.json"), "other settings or inputs"),
    (JOURNAL, "a list", whole("[]", "run.json"), "other settings or inputs"),
    (JOURNAL, "settings of another run", put("a", 2, "run.json"), "other settings or inputs"),
    (ANSWERS, "settings of a list", whole("[]", "settings.json"), "other settings"),
    (ANSWERS, "settings cut short", half("settings.json"), "not valid JSON"),
    (ACCEPTED, "another key", put("key", "x", KEPT), "harmless: the file is found by its key"),
    (ACCEPTED, "a list", whole("[]", KEPT), "cannot be read"),
    (ACCEPTED, "rows of a list", put("rows", [1], KEPT), "cannot be read"),
    (ACCEPTED, "tokens below none", put("rows.q.committed", -1, KEPT), "cannot be read"),
    (ACCEPTED, "no time at all", put("rows.q.seconds", 0, KEPT), "cannot be read"),
    (REPLY, "choices of a table", put("choices", {}), "not a chat completion"),
    (REPLY, "no choice", put("choices", []), "not a chat completion"),
    (REPLY, "a message of a text", put("choices.0.message", "x"), "not a chat completion"),
    (REPLY, "a content of a number", put("choices.0.message.content", 3), "not a chat completion"),
    (REPLY, "tool calls of a number", put("choices.0.message.tool_calls", 3), ""),
    (REPLY, "a tool call of a text", put("choices.0.message.tool_calls", ["x"]), ""),
    (REPLY, "usage of a list", put("usage", [1]), "not a chat completion"),
]  # fmt: skip

CASES = [*ROWS, *LISTS, *LOGS]
