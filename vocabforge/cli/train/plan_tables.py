"""What ``--plan`` shows: a table of a dozen lines for people; ``--json`` has everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.distributed import rank
from ..app import print_json, stdout_console

if TYPE_CHECKING:
    from ...core.console import FactList

Facts = Mapping[str, Any]
_WHOLE = 100  # from here on parts of a time say nothing


def print_plan(table: FactList, facts: Facts, *, as_json: bool) -> None:
    """One table, or all facts as JSON; of launched processes the first one speaks."""
    if rank() != 0:
        return
    if as_json:
        print_json(facts)
    else:
        stdout_console().print(table)


def train_table(facts: Facts) -> FactList:
    """The plan of ``train-drafter``; see ``train.plan.plan``."""
    config, optim = facts["config"], facts["config"]["optim"]
    rows, steps = facts["rows_per_process"], optim["steps"]
    lines = {
        "target": _target(facts["target"]),
        "drafter": _drafter(facts["drafter"], config["drafter"]),
        "draft heads": ", ".join(
            f"{name.replace('_', '-')}, {size:,} trained parameters" for name, size in facts["heads"].items()
        ),
        "data": _data(config["data"], facts["data"]),
        "epochs": _epochs(facts["data"]),
        "steps": f"{steps:,} of {optim['batch_size']:,} rows = {facts['tokens_a_step']:,} tokens a step over all "
        f"processes, {_count(facts['tokens_at_most'])} tokens in all",
        "processes": f"{facts['processes']:,} on {facts['device']} ({facts['strategy']}): each "
        f"{rows['a step']:,} rows a step, {rows['a forward pass']:,} a forward pass",
        "loss": f"{facts['loss']['steps']} draft steps, learning rate {optim['lr']:g}",
        "memory": _memory(facts["memory_bytes_a_process"]),
        "FLOP": _flop(facts["flop_a_token"], facts["flop_at_most"]),
        "evaluation": f"every {config['run']['eval_every']:,} steps, a checkpoint every "
        f"{config['run']['checkpoint_every']:,}",
        **_writes(config["output"], facts["writes"]),
    }
    return _table("train-drafter", lines)


def router_table(facts: Facts) -> FactList:
    """The plan of ``train-router``; see ``train.router_setup.plan``."""
    config, optim = facts["config"], facts["config"]["optim"]
    tokens = optim["batch_size"] * config["data"]["sequence_length"]
    lines = {
        "target": _target(facts["target"]),
        "drafter": f"{facts['drafter']['path']} (stays as it is)",
        "router": f"over {facts['clusters']:,} clusters, {_count(facts['trained_parameters'])} trained parameters",
        "data": _inputs(config["data"]),
        "steps": f"{optim['steps']:,} of {optim['batch_size']:,} rows = {tokens:,} tokens a step, "
        f"{_count(optim['steps'] * tokens)} tokens in all",
        "device": str(facts["device"]),
        **_writes(config["output"], facts["writes"]),
    }
    return _table("train-router", lines)


def capture_table(facts: Facts) -> FactList:
    """The plan of ``capture``; see ``cli.capture_run.plan``."""
    from ...capture.writer import gigabytes

    key, rows = facts["key"], facts["rows"]
    room = f"{gigabytes(facts['bytes'])} in {facts['shards']:,} shards; {gigabytes(facts['bytes_done'])} are there"
    lines = {
        "target": facts["target"],
        "states": f"layers {_list(key['aux_layers'])} and the last hidden states, in {key['dtype']}",
        "data": f"{', '.join(f'{count:,} {name} rows' for name, count in rows.items())}, "
        f"{facts['tokens']:,} tokens",
        "disk": room,
        "free": f"{gigabytes(facts['bytes_free'])}: it {'fits' if facts['fits'] else 'does NOT fit'}",
        "writes": facts["output"],
    }
    return _table("capture", lines)


def study_table(facts: Facts) -> FactList:
    """The plan of ``study``: its stages."""
    return _table("study", {**facts["stages"], "writes": f"{facts['config']['output']}/"})


def _table(command: str, lines: Mapping[str, str]) -> FactList:
    from ...core.console import FactList

    shown = {name: value for name, value in lines.items() if value}
    return FactList(
        {**shown, "": "--json prints the whole configuration and all figures"},
        f"What {command} would do (--plan: nothing is done)",
    )


def _target(facts: Facts) -> str:
    kind = ", ".join(facts["architectures"] or ["unknown architecture"])
    size = facts.get("parameters")
    return f"{facts['path']} ({kind}{f', {_count(size)} parameters' if size else ''})"


def _drafter(facts: Facts, wishes: Facts) -> str:
    parts = [f"{facts['kind']}, {facts['trained_parameters']:,} trained parameters"]
    if wishes["freeze"]:
        parts.append("frozen")
    if wishes["init"]:
        parts.append(f"starts from {wishes['init']}")
    if facts.get("aux_layers"):
        parts.append(f"reads target layers {_list(facts['aux_layers'])}")
    rows = facts.get("draft_vocab_size")
    own = f"its own LM head of {rows:,} of {facts['vocab_size']:,} tokens" if rows is not None else ""
    return "; ".join([*parts, own or "shares the target's LM head"])


def _inputs(data: Facts) -> str:
    places = [data["prepared"]] if data["prepared"] else data["train"]
    return f"{_list(places)}, in rows of {data['sequence_length']:,} tokens"


def _data(data: Facts, found: Facts) -> str:
    from ...capture.writer import gigabytes

    if "rows" not in found:
        size = f", {gigabytes(found['input_bytes'])}" if found["input_bytes"] else ""
        count = "1 input" if found["inputs"] == 1 else f"{found['inputs']:,} inputs"
        return f"{_inputs(data)}; {count}{size}, not prepared yet"
    return (
        f"{data['prepared']}: {found['rows']:,} rows of {data['sequence_length']:,}, {found['tokens']:,} tokens "
        f"({found['counted_tokens']:,} are learnt), {found['heldout_rows']:,} rows held out"
    )


def _epochs(found: Facts) -> str:
    if "epochs" in found:
        return _seen("row", found["epochs"])
    about = found["epochs_about"]
    known = "" if about is None else f"{_seen('conversation', about, 'about ')}, at 4 bytes a token; "
    return f"{known}exact with data.prepared (`vocabforge prepare-data`)"


def _seen(what: str, epochs: float, about: str = "") -> str:
    if epochs < 1:
        return f"{about}{100 * epochs:.2g}% of the {what}s are seen, once"
    return f"each {what} is seen {about}{f'{epochs:,.0f}' if epochs >= _WHOLE else f'{epochs:.3g}'} times"


def _memory(sizes: Facts) -> str:
    from ...capture.writer import gigabytes

    names = [name for name in sizes if name != "total"]
    parts = [f"{name.replace('_', ' ')} {gigabytes(sizes[name])}" for name in names if sizes[name]]
    unknown = [name.replace("_", " ") for name in names if sizes[name] is None]
    less = f", without the {' and '.join(unknown)} (not known)" if unknown else ""
    return f"{gigabytes(sizes['total'])} a process: {', '.join(parts)}{less}; activations come on top"


def _flop(each: Facts, whole: float) -> str:
    parts = ", ".join(f"{name} {_power(size)}" for name, size in each.items() if name != "total" and size)
    less = "" if "target" in each else ", without the target"
    return f"{_power(each['total'])} a token at most ({parts}{less}), {_power(whole)} in all"


def _writes(output: str, paths: Sequence[str]) -> dict[str, str]:
    names = [
        str(Path(path).relative_to(output)) if Path(path).is_relative_to(output) else path for path in paths
    ]
    return {"writes": f"into {output}/: {', '.join(names)}"}


def _list(items: Sequence[Any]) -> str:
    few = ", ".join(str(item) for item in items[:4])
    return few + (f", … ({len(items):,} in all)" if len(items) > 4 else "")


def _count(number: float) -> str:
    """``23.1M``; small numbers as they are."""
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= limit:
            return f"{number / limit:.3g}{suffix}"
    return f"{number:,.0f}"


def _power(number: float) -> str:
    """``2.1e19``."""
    return f"{number:.1e}".replace("e+0", "e").replace("e+", "e")
