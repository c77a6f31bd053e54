"""Make a file of training prompts for a drafter of SmolLM2-135M-Instruct.

The sentences are in smollm2_prompts.txt; --data adds passages and tasks. The same data give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import re
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

SPOILT = re.compile(r"<unk>|[a-z]{4}[A-Z][a-z]|--|\|")  # marks of lost text or borders
SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!Mr\.)(?<!Dr\.)(?<!Mrs\.)(?<!St\.)\s+(?=[A-Z\"'])")


def sections(path: Path) -> dict[str, list[str]]:
    """Read a file of entries, one a line, by the ``## heading`` above them."""
    by_heading: dict[str, list[str]] = {}
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("## "):
            by_heading[line[3:]] = rows = []
        elif line and by_heading:
            rows.append(line.replace("\\n", "\n"))
    return by_heading


TEXTS = sections(Path(__file__).with_suffix(".txt"))
# Passage and the questions about it.
NEWS = [(text, asked.split("; ")) for text, asked in (row.split(" | ") for row in TEXTS["news"])]
TEXTS["summary topics"] = [text for text, _ in NEWS]


def cross(rng: random.Random, forms: list[str], topics: list[str]) -> list[str]:
    """Return every form filled with every topic, in an order that visits all topics before repeating one."""
    out = []
    topics, forms = topics[:], forms[:]
    rng.shuffle(topics)
    rng.shuffle(forms)
    for turn in range(len(forms)):
        for index, topic in enumerate(topics):
            out.append(forms[(index + turn) % len(forms)].replace("{}", topic))
    return out


def filled(rng: random.Random, section: str, texts: list[str]) -> list[str]:
    """Return every text in a form that is drawn from a section."""
    return [rng.choice(TEXTS[section]).replace("{}", text) for text in texts]


def crossed(name: str) -> Callable[[random.Random], list[str]]:
    """Return the maker of every form of a section filled with every topic of it."""
    return partial(cross, forms=TEXTS[f"{name} forms"], topics=TEXTS[f"{name} topics"])


def make_qa(rng: random.Random, section: str = "qa") -> list[str]:
    """Return short factual questions, some in the lower case of a search box."""
    out = []
    for row in TEXTS[section]:
        form, subjects = row.split(" | ")
        for subject in subjects.split("; "):
            question = form.replace("{}", subject)
            style = rng.random()
            if style < 0.4:
                question = question[0].upper() + question[1:]
            elif style < 0.8:
                question = question.rstrip("?").lower()
            out.append(question)
    rng.shuffle(out)
    return out


def make_writing(rng: random.Random) -> list[str]:
    """Return writing tasks of three kinds, the single tasks first."""
    essays, stories = (crossed(name)(rng) for name in ("essay", "story"))
    return TEXTS["writing tasks"] + [task for pair in zip(essays, stories) for task in pair]


def make_roleplay(rng: random.Random) -> list[str]:
    forms = ["You are {}. ", "Act as {}. ", "Pretend to be {}. ", "Please play {}. ", "Imagine you are {}. "]
    out = []
    for row in TEXTS["roleplay"]:
        persona, *asks = row.split(" | ")
        out += [rng.choice(forms).format(persona) + ask for ask in asks]
    rng.shuffle(out)
    return out


def make_math(rng: random.Random) -> list[str]:
    out = []
    for _ in range(8):
        for form in TEXTS["math"]:
            n, m = rng.sample(TEXTS["names"], 2)
            a, b = rng.sample(range(6, 30), 2)
            c, s = rng.randint(2, 4), rng.randint(5, 9)
            d, e = rng.choice(range(120, 400, 20)), rng.choice(range(600, 2400, 120))
            p, h = rng.choice([5, 10, 15, 20, 30, 35, 60]), rng.choice([5, 10, 20])
            out.append(form.format(n=n, m=m, a=a, b=b, c=c, s=s, d=d, e=e, p=p, h=h))
    return out


def make_reasoning(rng: random.Random) -> list[str]:
    out = []
    for _ in range(8):
        for form in TEXTS["reasoning"]:
            n, m, o = rng.sample(TEXTS["names"], 3)
            k, step = rng.randint(4, 40), rng.randint(2, 9)
            ks = [k + step * i for i in range(4)] if rng.random() < 0.5 else [k * 2**i for i in range(4)]
            g, h = TEXTS["kinds"][rng.randrange(6)].split(" | ")
            day, an, c = rng.choice(TEXTS["days"]), rng.choice(TEXTS["animals"]), rng.randint(2, 4)
            odd, ana = rng.choice(TEXTS["odd words"]), rng.choice(TEXTS["analogies"])
            k = k * 2 if "twice" in form else k
            rest = {"k2": ks[1], "k3": ks[2], "k4": ks[3], "odd": odd, "ana": ana, "an": an}
            out.append(form.format(n=n, m=m, o=o, k=k, day=day, g=g, h=h, c=c, **rest))
    return out


def make_extraction(rng: random.Random) -> list[str]:
    texts = cross(rng, TEXTS["extraction forms"], TEXTS["extraction texts"])[:34]
    tables = []
    for form in TEXTS["table forms"]:
        for row in TEXTS["tables"]:
            title, columns, keys, *ranges = row.split(" | ")
            a, b, c = columns.split(",")
            first, second = ([int(end) for end in ends.split("-")] for ends in ranges)
            chosen = rng.sample(keys.split(","), rng.randint(4, 6))
            sep = rng.choice([", ", " | ", "; "])
            rows = [sep.join([key, str(rng.randint(*first)), str(rng.randint(*second))]) for key in chosen]
            tables.append(form.format(t="\n".join([f"{title}:", sep.join([a, b, c]), *rows]), a=a, b=b, c=c))
    rng.shuffle(tables)
    return texts + tables


def make_coding(rng: random.Random) -> list[str]:
    tasks = [f"Write a {{}} function that {task}." for task in TEXTS["code tasks"]]
    rng.shuffle(tasks)
    out = []
    for number, task in enumerate(tasks * 3):
        language = TEXTS["code languages"][(number + number // len(tasks)) % 8]
        out.append(task.format(language))
    return TEXTS["code questions"] + out


def make_translation(rng: random.Random) -> list[str]:
    out = []
    for row in TEXTS["foreign"]:
        language, sentence = row.split(" | ")
        form = rng.choice(["Translate {} to English: ", "Translate this {} sentence into English: "])
        out.append(form.format(language) + sentence)
    return out + filled(rng, "translation forms", TEXTS["german"])


def rag_prompt(rng: random.Random, passages: list[str], question: str) -> str:
    """Put passages, in a drawn order, and a question into a request form."""
    passages = passages[:]
    rng.shuffle(passages)
    style = rng.choice(["Passage {}: ", "[{}] ", "Document {}\n"])
    block = "\n\n".join(style.format(number) + text for number, text in enumerate(passages, 1))
    return rng.choice(TEXTS["passages forms"]).replace("{q}", question).replace("{p}", block)


def make_rag(rng: random.Random) -> list[str]:
    """Return questions about one of three news passages."""
    out = []
    for text, questions in NEWS:
        others = [other for other, _ in NEWS if other != text]
        out += [rag_prompt(rng, [text, *rng.sample(others, 2)], question) for question in questions]
    rng.shuffle(out)
    return out


def read_xz(path: Path) -> str:
    with lzma.open(path, "rt", encoding="utf-8") as stream:
        return stream.read()


def cut(text: str, low: int, high: int) -> list[str]:
    """Cut a text at sentence borders into passages of low to high words."""
    passages: list[str] = []
    current: list[str] = []
    size = 0
    for sentence in SENTENCE_END.split(" ".join(text.split())):
        count = len(sentence.split())
        if current and size + count > high:
            if size >= low:
                passages.append(" ".join(current))
            current, size = [], 0
        current.append(sentence)
        size += count
    if low <= size <= high:
        passages.append(" ".join(current))
    return [passage for passage in passages if not SPOILT.search(passage) and passage[-1] in ".!?\"'"]


def untokenise(text: str) -> str:
    """Undo the word tokenisation of WikiText."""
    text = re.sub(r" @([-,.])@ ", r"\1", text)
    text = re.sub(r" ([,.;:?!)\]%])", r"\1", text)
    text = re.sub(r"([(\[$£]) ", r"\1", text)
    text = re.sub(r'" ([^"]*?) "', r'"\1"', text)
    return re.sub(r" ('(?:s|re|ve|ll|d|m|t)\b|n't\b)", r"\1", text)


def wiki_articles(data: Path) -> list[tuple[str, str]]:
    """Return (subject, text) of the encyclopedia articles of both sources."""
    articles = []
    for row in read_xz(data / "corpus/wiki_demo.txt.xz").splitlines():
        text = re.sub(r" ?\([^a-zA-Z]*\)", "", row)
        text = re.sub(r"(?<=[a-z])([.!?])(?=[A-Z])", r"\1 ", text)
        pattern = r"(?:In [^,]{3,40}, )?(?:An? |The )?([^,(]{3,45}?)(?: \([^)]*\))?,? (?:is|was|are) "
        match = re.match(pattern, text)
        if match and match[1][0].isupper() and match[1] != "This":
            articles.append((match[1].split(" or ")[0], text))
    parts = re.split(r"\n = ([^=\n]+) = \n", "\n" + read_xz(data / "corpus/wikitext-2_valid.txt.xz"))
    for title, body in zip(parts[1::2], parts[2::2]):
        body = " ".join(row for row in body.split("\n") if row.strip() and not row.strip().startswith("="))
        if "<unk>" not in title:
            articles.append((untokenise(title), untokenise(body)))
    return articles


def prose(data: Path) -> list[list[str]]:
    """Return the texts of each corpus other than the encyclopedia articles."""
    web = [json.loads(row)["text"] for row in read_xz(data / "corpus/c4_demo.jsonl.xz").splitlines()]
    speeches = []
    with zipfile.ZipFile(data / "corpus/nltk_state_union.zip") as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".txt"):
                text = archive.read(name).decode("latin-1").split("\n\n", 1)[-1]
                if text.isascii():
                    speeches.append(text)
    novel = read_xz(data / "corpus/en_botchan.txt.xz")
    novel = novel[: novel.index("(THE END)")]
    chapters = [novel[start : start + 9000] for start in range(6000, len(novel), 9000)]
    return [web, speeches, [chapter.partition(". ")[2] for chapter in chapters]]


def data_summaries(rng: random.Random, data: Path) -> list[str]:
    """Return requests to summarise passages of the corpora, taken in turn from each corpus."""
    pools = []
    for texts in [[text for _, text in wiki_articles(data)], *prose(data)]:
        pool = []
        for text in texts:
            low = rng.choice([150, 150, 200, 250])
            passages = cut(text, low, low + 150)
            pool += rng.sample(passages, min(3, len(passages)))
        rng.shuffle(pool)
        pools.append(pool)
    turns = pools[:2] * 2 + pools[2:]
    chosen = [pool.pop() for _ in range(max(map(len, pools))) for pool in turns if pool]
    return filled(rng, "summary forms", chosen)


def data_rag(rng: random.Random, data: Path) -> list[str]:
    """Return questions about one of three passages of the corpora."""
    cuts = [(subject, cut(text, 60, 120)) for subject, text in wiki_articles(data)]
    cuts = [(subject, passages) for subject, passages in cuts if passages]
    web = [passage for text in prose(data)[0] for passage in cut(text, 60, 120)[:1]]
    out = []
    for _ in range(9):
        for subject, passages in cuts:
            if not passages:
                continue
            passage = passages.pop(0 if rng.random() < 0.5 else rng.randrange(len(passages)))
            other = rng.choice([chosen for name, chosen in cuts if name != subject and chosen])
            question = rng.choice(TEXTS["passages questions"]).replace("{}", subject)
            out.append(rag_prompt(rng, [passage, rng.choice(other), rng.choice(web)], question))
    return out


def data_translation(rng: random.Random, data: Path) -> list[str]:
    """Return requests to translate sentences of the German declaration of human rights."""
    with zipfile.ZipFile(data / "corpus/nltk_udhr2.zip") as archive:
        text = archive.read("udhr2/deu.txt").decode("utf-8")
    sentences = []
    for row in text.splitlines()[4:]:
        row = re.sub(r"^\s*\d+\.\s*", "", row).strip()
        sentences += [s for s in re.split(r"(?<=\.)\s+", row) if 4 <= len(s.split()) <= 45 and s[0].isupper()]
    rng.shuffle(sentences)
    return filled(rng, "translation forms", [text for text in sentences if text.endswith(".")])


def data_coding(rng: random.Random, data: Path) -> list[str]:
    """Return coding tasks of the training split of MBPP and of a set of code instructions."""
    basic = []
    for row in (data / "chat/mbpp.jsonl").read_text(encoding="utf-8").splitlines():
        task = json.loads(row)
        if 601 <= task["task_id"] <= 974:
            basic.append(task["text"].strip())
    mixed = []
    for row in json.loads(read_xz(data / "chat/gpteacher_codegen-instruct.json.xz"))[-300:]:
        prompt = (row["instruction"] + "\n\n" + row["input"]).strip()
        if len(prompt.split()) < 200:
            mixed.append(prompt)
    return rng.sample(basic, 30) + rng.sample(mixed, 30)


# Category: maker, number without data, number with data, maker from data, own prompts that stay with data.
OWN = {
    "qa": (make_qa, 260, 260, None, 0),
    "summarization": (crossed("summary"), 36, 220, data_summaries, 28),
    "rag": (make_rag, 36, 160, data_rag, 36),
    "translation": (make_translation, 142, 200, data_translation, 142),
    "writing": (make_writing, 130, 130, None, 0),
    "roleplay": (make_roleplay, 60, 60, None, 0),
    "reasoning": (make_reasoning, 80, 80, None, 0),
    "math": (make_math, 90, 90, None, 0),
    "coding": (make_coding, 92, 110, data_coding, 50),
    "extraction": (make_extraction, 70, 70, None, 0),
    "stem": (crossed("stem"), 110, 110, None, 0),
    "humanities": (crossed("humanities"), 110, 110, None, 0),
}


def drawn(rng: random.Random, prompts: list[str], count: int) -> list[str]:
    """Return prompts of at most 120 words, in a drawn order."""
    short = sorted({prompt.strip() for prompt in prompts if 2 < len(prompt.split()) <= 120})
    return rng.sample(short, min(count, len(short)))


def more_prompts(data: Path) -> dict[str, list[str]]:
    """Return further prompts by category, most of them as short as those of Spec-Bench's MT-bench and questions."""
    rng = random.Random("0 more")
    grade_school = [
        json.loads(row)["question"] for row in read_xz(data / "gsm8k/train.jsonl.xz").splitlines()
    ]
    preferences = [
        record["conversations"][0]["value"]
        for record in json.loads(read_xz(data / "chat/dpo_en_demo.json.xz"))
    ]
    rated = [
        record["messages"][0]["content"] for record in json.loads(read_xz(data / "chat/kto_en_demo.json.xz"))
    ]
    code, roleplay = (
        [
            f"{row['instruction']}\n\n{row['input']}"
            for row in json.loads(read_xz(data / f"chat/gpteacher_{name}.json.xz"))
        ]
        for name in ("codegen-instruct", "roleplay-simple-deduped")
    )
    return {
        "qa": make_qa(rng, "more qa"),
        "math": make_math(rng)[:90] + drawn(rng, grade_school, 520),
        "reasoning": make_reasoning(rng)[:60],
        "stem": OWN["stem"][0](rng)[:480],
        "humanities": OWN["humanities"][0](rng)[:480],
        "writing": make_writing(rng)[-100:] + drawn(rng, preferences + rated, 400),
        "roleplay": drawn(rng, roleplay, 340),
        "coding": drawn(rng, code, 300),
        "summarization": data_summaries(rng, data)[:130],
    }


LONG = {"1k": 700, "2k": 1500, "4k": 3100, "7k": 5400}  # tokens, roughly -> words


def build_long(data: Path) -> list[dict]:
    """Return questions as in Spec-Bench: three requests of each length to summarise the beginning of a speech."""
    speeches = [text.split() for text in prose(data)[1]]
    records: list[dict] = []
    for length, words in LONG.items():
        for speech in [text for text in speeches if len(text) > words][:3]:
            parts = ["Read this speech, then write a summary of its main points.", " ".join(speech[:words])]
            request = "\n\n".join([*parts, "Write the summary."])
            records.append({"question_id": len(records) + 1, "category": length, "turns": [request]})
    return records


def plain(prompt: str) -> str:
    return " ".join(prompt.lower().split())


def build(data: Path | None) -> list[dict]:
    seen: set[str] = set()
    records: list[dict] = []
    for category, (maker, limit, data_limit, data_maker, kept) in OWN.items():
        rng = random.Random(f"0 {category}")
        target = data_limit if data else limit
        pool = maker(rng)
        if data and data_maker:
            pool = pool[:kept] + data_maker(rng, data) + pool[kept:]
        taken = 0
        for prompt in pool:
            key = plain(prompt)
            if key in seen or taken == target:
                continue
            seen.add(key)
            taken += 1
            records.append({"messages": [{"role": "user", "content": prompt}], "category": category})
    random.Random("0 order").shuffle(records)
    return records + more_records(data, seen) if data else records


def more_records(data: Path, seen: set[str]) -> list[dict]:
    """Return the records of the further prompts that neither stand above nor in the answers of the data folder."""
    answered = [
        json.loads(row)["messages"][0]["content"]
        for row in read_xz(data / "smollm2/answers.jsonl.xz").splitlines()
    ]
    seen = seen | {plain(prompt) for prompt in answered}
    records = []
    for category, prompts in more_prompts(data).items():
        for prompt in prompts:
            if plain(prompt) not in seen:
                seen.add(plain(prompt))
                records.append({"messages": [{"role": "user", "content": prompt}], "category": category})
    random.Random("0 more order").shuffle(records)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with the development data (corpora)")
    parser.add_argument(
        "--long", action="store_true", help="questions over long texts instead (needs --data)"
    )
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    if args.long and args.data is None:
        parser.error("--long needs --data: the speeches are read from there")
    records = build_long(args.data) if args.long else build(args.data)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with open(args.output, "w", encoding="utf-8", newline="\n") as stream:
        for record in records:
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")
    print(f"prompts: {len(records)}")


if __name__ == "__main__":
    main()
