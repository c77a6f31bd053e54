"""What stands for what when the documented commands are executed: the only place for it.

A name of the documents (a folder, a file) is made by the world (``doc_world.py``) when a command needs it and no
earlier command of its document has made it.
"""

from __future__ import annotations

HUB_NAMES = (
    *("Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct"),
    "meta-llama/Llama-3.2-1B-Instruct",
)
# Of commands that are read and not executed.
READ_NAMES = (
    *("meta-llama/Meta-Llama-3-8B-Instruct", "allenai/OLMo-2-1124-7B-Instruct"),
    *("HuggingFaceTB/SmolLM2-135M-Instruct", "google/gemma-3-270m"),
    "run/drafter",  # a folder; without it, a name of the Hub
)
# thing of the world -> the names that stand for it. A document's own name stands behind "FILE:".
GIVEN: dict[str, tuple[str, ...]] = {
    "target": ("MODEL", "TARGET", "model", "MODEL_A", *HUB_NAMES),
    "other_model": ("MODEL_B", "ANY_MODEL", "docs/guides/any-drafter.md:DRAFTER"),
    "small_model": ("SMALL_MODEL",),
    "run": ("OUTPUT", "RUN"),
    "run/drafter": ("run/drafter", "RUN/drafter", "elsewhere/eagle3", "theirs"),
    "run/heads/ranker": ("run/heads/ranker", "RUN/heads/ranker"),
    "router_run/heads/router": ("router-run/heads/router",),
    "questions": ("prompts.jsonl", "QUESTIONS.jsonl", "heldout.jsonl", "run/heldout_prompts.jsonl"),
    "chats": ("chats.jsonl", "chat.jsonl", "responses.jsonl"),
    "chats_parquet": ("chats.parquet",),
    "texts": ("texts", "corpus", "corpus/code"),
    "packed": ("corpus/en/**/*.jsonl.zst",),
    "text": ("held_out.txt",),
    "counts": ("counts", "other_counts", "held_out_counts", "counts_a", "ARTEFACT"),
    "more_counts": ("counts_b",),
    "domain_counts": ("docs/guides/draft-vocabulary.md:counts",),
    "subset": ("SUBSET", "subset", "subsets/r8192", "subsets/r16384", "subsets/r32768", "subsets/2048"),
    "results": ("results",),
    "recipe": ("RECIPE.yaml",),
    "recipe_without_data": ("recipe.yaml",),
    "mtp_target": ("docs/guides/mtp.md:model",),
    "mtp_recipe": ("mtp.yaml",),
    "tuned": ("tuned",),
}
# thing of the world -> the command that makes it; ``SMALLER`` and its output are added.
COMMANDS = {
    "counts": "count-freq --tokenizer $target --input $text $chats",
    "more_counts": "count-freq --tokenizer $target --input $stories",
    "domain_counts": "count-freq --tokenizer $target --domain english=$text --domain code=$chats",
    "subset": "select-vocab --counts $counts --target $target --size 64",
    "run": "train-drafter --config $recipe",
    "clusters": "cluster-vocab --target $target",
    "router_run": "train-drafter --config $recipe drafter.init=$run/drafter drafter.freeze=true "
    "heads.router.clusters=$clusters",
    "results": "eval --target $target --drafter eagle3=$run/drafter --benchmark spec-bench --data $benchmarks",
    "tuned": "tune --target $target --drafter $run/drafter --prompts $questions",
}
# thing of the world -> what stands in the file. Outputs are relative: in the folder of the document.
RECIPES = {
    "recipe": "target: $target\noutput: of-recipe\nheads: {ranker: {rank: 4, shortlist: 16}}\n"
    "optim: {steps: 2, batch_size: 1}\nttt: {steps: 2}\n"
    "data: {train: [$chats], heldout_documents: 4, heldout_prompts: 2, sequence_length: 128}\n",
    "recipe_without_data": "target: $target\noutput: of-recipe\nheads: {ranker: {rank: 4, shortlist: 16}}\n"
    "optim: {steps: 2, batch_size: 1}\nttt: {steps: 2}\n",
    "mtp_recipe": "target: $mtp_target\noutput: mtp-run\ndata: {train: [$chats]}\n"
    "drafter: {kind: mtp, init: $mtp_target}\nttt: {decay: 0.6, loss: ce}\noptim: {steps: 2}\n",
}

# Words of the documents that are too large here, or a machine's.
WORDS: dict[str, str] = {
    "NAME=PATH": "stories=held_out.txt",
    "16384": "64",
    "32768": "128",
    "4096": "16",
    "16k,32k": "64,128",
    "32k": "16",
    "512,2048": "16,32",
    "decay:256:64": "decay:4:2",
    "http://HOST:8000": "{server}",
    "http://gpu1:8000": "{server}",
    "http://gpu2:8000": "{second_server}",
    "<|im_end|>:</s>": "<|end|>:</s>",
    "512": "64",
    "tutorial/prompts.jsonl": "tutorial/question.jsonl",
}

_TRAINING = (
    *("data.heldout_documents=4", "data.heldout_prompts=2", "data.sequence_length=128", "ttt.steps=2"),
    *("optim.steps=2", "optim.batch_size=1", "optim.micro_batch_size=1", "run.device=cpu", "run.threads=1"),
    *("run.eval_every=2", "run.eval_rows=1", "run.checkpoint_every=2", "run.trackers=[]"),
    *("run.live.prompts=1", "run.live.max_new_tokens=4", "run.live.depth=2", "run.live.topk=2"),
    "run.live.total=4",
)
# Added behind the documented words: sizes alone.
SMALLER: dict[str, tuple[str, ...]] = {
    "prepare-data": ("--length", "128", "--heldout-documents", "4", "--heldout-prompts", "2"),
    "train-drafter": _TRAINING,
    "capture": ("--yes",),
    "cluster-vocab": ("--clusters", "8", "--iterations", "3"),
    "regenerate": ("--max-tokens", "8"),
    "demo": ("--size", "ci"),
    "eval": ("--limit", "2", "--max-new-tokens", "6", "--warmup", "0"),
    "generate": ("--max-new-tokens", "6"),
    "tune": (
        *("--depth", "0,1", "--topk", "2", "--total-nodes", "6", "--max-new-tokens", "6"),
        *("--limit", "4", "--seconds", "2"),
    ),
}


# Commands that are not executed here -> why. A document and the words that they begin with.
_ELSEWHERE = "needs GPUs, or minutes; every recipe is trained, shrunken, in tests/pipeline/test_recipes.py"
_REAL = "a real model; make smollm2 and make test-smollm2"
_GUIDE = "of code that the guide adds; tests/contracts/test_guide_examples.py executes it"
_STATES = "a real server; tests/servers/test_capture_server.py"
_SERVERS = "real servers; tests/servers/test_eval_server.py"
_PROCESSES = "several processes; tests/train/test_distributed.py"
_EXPORT = "vocabforge export --drafter run/drafter"
KEPT: dict[tuple[str, str], str] = {
    ("docs/guides/several-machines.md", "vocabforge"): "a Ray cluster; tests/core/test_cluster.py",
    ("README.md", "vocabforge generate --target HuggingFaceTB"): _REAL,
    ("README.md", "vocabforge eval --target HuggingFaceTB"): _REAL,
    ("README.md", "vocabforge train-drafter --config smollm2-135m"): _REAL,
    ("docs/guides/real-model.md", "vocabforge eval --target HuggingFaceTB"): _REAL,
    (
        "docs/guides/train-drafter.md",
        "accelerate launch --config_file recipes/accelerate/multi_gpu",
    ): _ELSEWHERE,
    (
        "docs/guides/train-drafter.md",
        "vocabforge train-drafter --config qwen3-0.6b target=model/ data.train=[chats.jsonl] output=run/ --dry-run",
    ): "tests/export/test_dry_run.py",
    ("docs/guides/eight-billion.md", "accelerate launch"): _ELSEWHERE,
    ("docs/guides/eight-billion.md", "vocabforge train-drafter --config qwen3-8b"): _ELSEWHERE,
    ("docs/guides/targets.md", "vocabforge generate --target model.gguf"): "tests/core/test_gguf.py",
    (
        "docs/commands.md",
        "vocabforge count-freq --tokenizer MODEL --input slimpajama",
    ): "a data set of the Hub",
    ("docs/commands.md", "vocabforge demo"): "tests/pipeline/test_demo.py",
    (
        "docs/guides/draft-vocabulary.md",
        "vocabforge select-vocab --counts counts --target MODEL --size auto",
    ): "a drafter that is accepted; tests/evaluate/test_draft_size.py",
    ("docs/commands.md", "vocabforge eval --server"): _SERVERS,
    ("docs/guides/serving.md", "vocabforge eval"): _SERVERS,
    (
        "docs/guides/capture.md",
        "vocabforge capture --config RECIPE.yaml --output states/ capture.server",
    ): _STATES,
    ("docs/guides/capture.md", "vocabforge train-drafter --config RECIPE.yaml capture.server"): _STATES,
    ("docs/commands.md", f"{_EXPORT} --format vllm"): "a head of another run there",
    (
        "docs/guides/serving.md",
        f"{_EXPORT} --target model/ --format gguf",
    ): "tests/export/test_gguf_target.py",
    ("docs/guides/serving.md", f"{_EXPORT} --format block"): "another drafter; tests/cli/test_export_cli.py",
    ("docs/guides/add-a-draft-head.md", "vocabforge"): _GUIDE,
    ("docs/guides/add-a-drafter.md", "vocabforge"): _GUIDE,
    ("docs/guides/add-a-server.md", "vocabforge"): _GUIDE,
    ("docs/guides/several-gpus.md", "accelerate launch --config_file recipes/accelerate/"): _PROCESSES,
    ("docs/guides/several-gpus.md", "torchrun"): _PROCESSES,
}
# Programs whose commands are held against the project's files and never started.
PROGRAMS = {
    "make": "the targets are what .ci/run and a user start; long, or for a GPU",
    "python": "tests and builds of their own, or another project's server",
}
