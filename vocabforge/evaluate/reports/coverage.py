"""HTML page of a coverage study, and its tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.console import DataCell, DataTable, FactList, percent
from .coverage_data import HELD_OUT
from .page import Block, CodeBlock, PageChart, PageSection, ReportPage, line_chart, render_report_page
from .plots import METHOD_COLOURS, Trace

CoverageResults = Mapping[str, Any]
_CEILINGS = ("static", "oracle", "greedy")
# Sign in a note -> marker in the chart.
_SIGNS = {"◆": "D", "●": "o", "■": "s"}


def render_coverage(results: CoverageResults) -> str:
    """Render ``coverage.json`` as a self-contained HTML page."""
    table, counted = results["table"], results["texts"][0]
    about = (
        "A weighted mixture of frequency tables"
        if table["mode"] == "mixture"
        else f"{table['tokens']:,} tokens counted in {table['documents']:,} documents ({table['mode']} mode)"
    )
    about += f", vocabulary of {results['vocab_size']:,} ids, {counted['ids']:,} of them with a count."
    sizes: list[Block] = [*_chart(results), *_knee_lines(results), coverage_table(results)]
    vocabularies: list[Block] = [vocabulary_table(results)] if results["vocabularies"] else []
    how: list[Block] = [FactList(results["facts"]), CodeBlock(results["command"], "Command")]
    return render_report_page(
        ReportPage(
            "coverage",
            table["name"],
            [
                PageSection("Coverage by size", sizes, "coverage"),
                PageSection("Texts", [_text_table(results)], "texts"),
                PageSection("Draft vocabularies", vocabularies, "vocabularies"),
                PageSection("Ceilings of acceptance", _ceiling_blocks(results), "ceilings"),
                PageSection("How it was measured", how, "how"),
            ],
            lead=summary_lines(results)[0],
            about=about,
        )
    )


def _heads(results: CoverageResults) -> list[str]:
    """Return the column headings of the texts; the first is for all counted tokens."""
    names = [text["name"] + ("\n(held out)" if text["role"] == HELD_OUT else "") for text in results["texts"]]
    return ["all", *names[1:]]


def coverage_table(results: CoverageResults) -> DataTable:
    """Return a table of each text's covered share of tokens by size."""
    rows = [
        [
            f"{size:,}",
            _inside(size / results["vocab_size"]),
            *(
                DataCell(_inside(text["coverage"][row]), f"({_inside(text['own_coverage'][row])})")
                for text in results["texts"]
            ),
        ]
        for row, size in enumerate(results["sizes"])
    ]
    note = (
        "Among the first ids of the ranking made from all counted tokens. In brackets: the most that any ids in this "
        "number could cover."
    )
    return DataTable("Tokens inside, %", ["size", "of V", *_heads(results)], rows, note)


def _text_table(results: CoverageResults) -> DataTable:
    texts, rows = results["texts"], []
    for text in texts:
        weighted = results["table"]["mode"] == "mixture" and text["role"] != HELD_OUT
        rows.append(
            [
                text["name"],
                text["role"] + (", domain" if text["domain"] else ""),
                percent(text["tokens"] / texts[0]["tokens"], 1) if weighted else text["tokens"],
                text["ids"],
                *(DataCell(f"{row['size']:,}", percent(row["of_vocabulary"], 1)) for row in text["carrying"]),
                percent(text["unseen_estimate"], 3),
                percent(text["without_count"], 3),
            ]
        )
    carrying = [f"ids that carry {row['share']:.0%}" for row in texts[0]["carrying"]]
    columns = [
        "text<",
        "kind<",
        "tokens",
        "ids that occur",
        *carrying,
        "expected unseen",
        "ids without a count",
    ]
    note = (
        "Expected unseen: the share of further text of this kind whose ids have no count in it yet (ids that occur "
        "once, over tokens). Ids without a count: the share of its tokens whose id does not occur in all that was "
        "counted."
    )
    return DataTable("", columns, rows, note, strong=0).without_empty_columns()


def vocabulary_table(results: CoverageResults) -> DataTable:
    """Return a table of draft vocabularies by text, with the best share for their size, and schedules."""
    rows: list[list[object]] = []
    names = [text["name"] for text in results["texts"]]
    for one in results["vocabularies"]:
        cells = [
            DataCell(_inside(one["coverage"][name]), f"({_inside(one['best'][name])})") for name in names
        ]
        rows.append([one["name"], one["size"], *cells])
        for step, size in enumerate(one["schedule"]):
            inside = [_inside(one["by_step"][name][step]) for name in names]
            rows.append([f"  draft step {step}", f"{size:,}", *inside])
    note = "In brackets: the most that so many ids could cover."
    columns = ["vocabulary<", "size", *_heads(results)]
    return DataTable("Draft vocabularies: tokens inside, %", columns, rows, note)


def ceiling_table(results: CoverageResults) -> DataTable:
    """Return a table of static, oracle and greedy ceilings by size and domain."""
    ceilings = results["ceilings"]
    domains = ceilings["domains"].values()

    def cells(row: int) -> list[str]:
        return [" / ".join(_inside(one[kind][row]) for kind in _CEILINGS) for one in domains]

    rows = [[f"{size:,}", *cells(row)] for row, size in enumerate(ceilings["sizes"])]
    for vocab in results["vocabularies"]:
        own = [one["vocabularies"][vocab["name"]] for one in domains]
        rows.append(
            [
                f"{vocab['name']} ({vocab['size']:,})",
                *(" / ".join(_inside(one[kind]) for kind in _CEILINGS) for one in own),
            ]
        )
    title = f"Ceilings of acceptance with {ceilings['target']}, %: static / oracle / greedy"
    return DataTable(title, ["size<", *ceilings["domains"]], rows)


def coverage_tables(results: CoverageResults) -> list[DataTable]:
    """Return the tables of coverage by size and text, draft vocabularies, and ceilings with a target."""
    tables = [coverage_table(results)]
    tables += [vocabulary_table(results)] if results["vocabularies"] else []
    return [*tables, ceiling_table(results)] if results["ceilings"] else tables


def _ceiling_blocks(results: CoverageResults) -> list[Block]:
    ceilings = results["ceilings"]
    if not ceilings:
        return []
    note = (
        f"From the next-token distributions of {ceilings['target']}. Static: the target's mass inside the vocabulary, "
        "the best acceptance that a drafter over it can reach (lemma 1). Oracle: the mass of the target's own k most "
        "likely tokens, chosen anew at each position, which no draft head with k candidates can exceed (lemma 2). "
        "Greedy: how often the target's most likely token is inside."
    )
    padded = [
        f"The target's head has {ceilings['rows']:,} rows, {ceilings['padded_rows']:,} of them padding without a "
        "token; their mass counts as outside."
    ]
    return [note, ceiling_table(results), *(padded if ceilings["padded_rows"] else [])]


def summary_lines(results: CoverageResults) -> list[str]:
    """Return sentences on the counted table, the held-out tables, and padded rows."""
    counted = results["texts"][0]
    carrying = ", ".join(
        f"{row['share']:.0%} of them by {row['size']:,} ids ({row['of_vocabulary']:.1%})"
        for row in counted["carrying"]
    )
    lines = [f"The counted tokens are carried: {carrying}; the vocabulary has {results['vocab_size']:,}."]
    lines += _knee_lines(results)
    if (unseen := counted["unseen_estimate"]) is not None:
        lines.append(f"Expected share of further tokens without a count (Good-Turing): {unseen:.4%}.")
    lines += [
        f"{text['name']} (held out): {text['without_count']:.4%} of its tokens have an id without a count."
        for text in results["texts"]
        if text["role"] == HELD_OUT and not text["domain"]
    ]
    ceilings = results["ceilings"]
    if ceilings and ceilings["padded_rows"]:
        lines.append(f"{ceilings['padded_rows']:,} padded rows in the target's head of {ceilings['rows']:,}.")
    return lines


def _knee_lines(results: CoverageResults) -> list[str]:
    text = _knee_text(results)
    if (knee := text.get("knee")) is None:  # written by an older version
        return []
    return [
        f"Knee of {text['name']}: {knee['size']:,} ids hold {_inside(knee['coverage'])}% of its tokens. The knee is "
        "the size s at which coverage C is furthest above the line between the curve's ends over log sizes, the "
        "largest C(s) - C(1) - (C(V) - C(1)) log s / log V; beyond it coverage grows by less per doubling than over "
        "the whole curve."
    ]


def _inside(value: float | None) -> str:
    if value is None:
        return "–"
    # Do not round up to 100 if a token is missing.
    return f"{100 * value:.2f}" if value < 0.99995 or value == 1.0 else ">99.99"


def _chart(results: CoverageResults) -> list[PageChart]:
    """Return a chart of the covered share of each text over sizes."""
    sizes, traces = results["curve_sizes"], []
    first = max(16, sizes[-1] >> 10)
    kept = [index for index, size in enumerate(sizes) if size >= first] or list(range(len(sizes)))
    for index, text in enumerate(results["texts"]):
        x, values = [sizes[at] for at in kept], [100 * text["curve"][at] for at in kept]
        held = text["role"] == HELD_OUT
        traces.append(Trace(text_look(index), x, values, text["name"], dashed=held, marked=False))
    labels = ("size of the draft vocabulary", "tokens inside, %")
    marked = _marked(results)
    points = [(size, 100 * share, _SIGNS[sign]) for size, share, sign, _ in marked if size >= sizes[kept[0]]]
    note = "Ranking made from all counted tokens; forced ids first"
    if marked:
        note += f". On the curve of {_knee_text(results)['name']}: " + "; ".join(
            f"{sign} {words}, {_inside(share)}%" for _, share, sign, words in marked
        )
    how = {"log_x": True, "bottom": 0.0, "top": 101.0, "points": points}
    return line_chart("coverage", "Coverage by size", note, labels, traces, **how)


def _knee_text(results: CoverageResults) -> Mapping[str, Any]:
    """Return the text whose knee is marked: the first held-out text, or all counted tokens."""
    whole = [text for text in results["texts"] if not text["domain"]]
    return next((text for text in whole if text["role"] == HELD_OUT), whole[0])


def _marked(results: CoverageResults) -> list[tuple[int, float, str, str]]:
    """Return size, covered share, sign and name of the knee, the chosen sizes, and the draft vocabularies."""
    text, sizes = _knee_text(results), results["sizes"]
    found = []
    if knee := text.get("knee"):
        found.append((knee["size"], knee["coverage"], "◆", f"knee {knee['size']:,}"))
    chosen = results.get("chosen_sizes", ())
    found += [(size, text["coverage"][sizes.index(size)], "●", f"chosen {size:,}") for size in chosen]
    found += [
        (one["size"], one["coverage"][text["name"]], "■", f"{one['name']} ({one['size']:,})")
        for one in results["vocabularies"]
    ]
    return found


def text_look(index: int) -> int:
    """Return grey for all counted tokens, then cycle through six colours, each time with a new dash."""
    again, place = divmod(index - 1, METHOD_COLOURS - 1)
    return 0 if index == 0 else 1 + place + METHOD_COLOURS * again
