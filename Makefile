# Everything a user needs: make setup | demo | test | check | docs. The first call of any of them sets up .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
STAMP := $(VENV)/.ready
DEMO_OUTPUT ?= runs/demo
TEST_WORKERS ?= auto

.PHONY: help setup demo smollm2 smollm2-study smollm2-bench gemma3 gemma3-vocab kernels kernels-cpu emulator gpu-check test coverage test-long test-all test-proof test-fuzz test-faults test-docs test-deepspeed test-speculators test-transformers test-smollm2 test-servers test-vllm test-sglang test-llamacpp servers-table smollm2-servers check format wheel release docs docs-serve targets clean
.DEFAULT_GOAL := help

help:
	@echo "make setup   virtual environment in $(VENV), with a torch build that fits this machine"
	@echo "make demo    answer, count, select, train, export and evaluate on a small target (4 minutes)"
	@echo "make smollm2  a drafter for SmolLM2-135M-Instruct, from its file to measured speed (2 to 3 hours, resumes)"
	@echo "make smollm2-study  draft vocabularies of every kind on that drafter, by exact replay (half an hour)"
	@echo "make smollm2-bench  its decoding against transformers, with the shipped drafter (10 minutes)"
	@echo "make gemma3  the same for Gemma 3 270M (262,144 tokens), a base model that learns from texts"
	@echo "make kernels  compile the CUDA kernels (nvcc and g++, no GPU); kernels-cpu: without nvcc"
	@echo "make gpu-check  on a machine with a GPU: build, GPU tests, all GPU benchmarks (under 9 minutes)"
	@echo "make test    the test suite (with its coverage on Python 3.12 and newer; make coverage: on any)"
	@echo "make test-long  whole runs and launches of several processes"
	@echo "make test-all  test, test-long and test-docs in one call (part of .ci/run)"
	@echo "make test-proof  the long versions of proofs (lossless decoding)"
	@echo "make test-fuzz  20,000 spoilt inputs over every reader (docs/internal/fuzz.md)"
	@echo "make test-faults  kills, failing writes, file quotas, two writers, a wrong clock (docs/internal/faults.md)"
	@echo "make test-docs  executes the commands of README and docs, made small"
	@echo "make test-deepspeed  its DeepSpeed part, with the extra installed"
	@echo "make test-speculators  its part that reads exports with that library, installed beside the environment"
	@echo "make test-transformers  targets under the oldest transformers that is supported, installed beside the environment"
	@echo "make test-smollm2  the shipped drafter on SmolLM2-135M-Instruct, which this fetches"
	@echo "make test-servers  real servers load what export writes, each in an environment that this makes (optional)"
	@echo "make servers-table  the demo's drafter in each of them: the table of docs/guides/serving.md"
	@echo "make smollm2-servers  SmolLM2 and the shipped drafter in each of them and in transformers: another table there"
	@echo "make targets  which architectures can be targets: the table of docs/guides/targets.md"
	@echo "make check   lint and types"
	@echo "make wheel   a wheel in dist/, with recipes and the sources of the kernels in it"
	@echo "make release  the sdist and the wheel of HEAD, tried in every Python of this machine (CONTRIBUTING.md)"
	@echo "make docs    the documentation as a site in runs/site (docs-serve: at http://127.0.0.1:8000)"

setup: $(STAMP)

$(INSTALLED): pyproject.toml .ci/install
	$(PYTHON) .ci/install $(VENV)
	@touch $@

$(STAMP): $(INSTALLED) $(wildcard kernels/cpu/* kernels/common/*)
	@$(PYTHON) .ci/install --ops $(VENV)
	@touch $@

demo: $(STAMP)
	$(BIN)/vocabforge demo --output $(DEMO_OUTPUT)

VOCABFORGE_DATA ?= ../shared/data

# A real language model on two CPU cores, from its file to measured speed. Every stage resumes: run it again.
# TARGET: a name on the Hub, a folder or a GGUF file, instead of the file that the package index carries.
SMOLLM2 := runs/smollm2
SMOLLM2_TARGET = $(or $(TARGET),$(SMOLLM2)/SmolLM2-135M-Instruct.Q4_1.gguf)
SMOLLM2_DATA = $(if $(wildcard $(VOCABFORGE_DATA)/SOURCES.md),--data $(VOCABFORGE_DATA))
SMOLLM2_MORE = $(wildcard $(VOCABFORGE_DATA)/smollm2/answers.jsonl.xz)
comma := ,

smollm2: $(STAMP)
	$(if $(TARGET),,$(BIN)/python recipes/models/fetch.py smollm2-135m --output $(SMOLLM2))
	$(BIN)/python recipes/models/smollm2_prompts.py $(SMOLLM2_DATA) --output $(SMOLLM2)/prompts.jsonl
	test -d $(SMOLLM2)/responses || $(BIN)/vocabforge regenerate --target "$(SMOLLM2_TARGET)" \
	  --input $(SMOLLM2)/prompts.jsonl --max-tokens 112 --batch-size 32 --output $(SMOLLM2)/responses
	$(BIN)/vocabforge count-freq --tokenizer "$(SMOLLM2_TARGET)" --mode assistant --overwrite \
	  --input $(SMOLLM2)/responses/responses.jsonl $(SMOLLM2_MORE) --output $(SMOLLM2)/counts
	$(BIN)/vocabforge select-vocab --counts $(SMOLLM2)/counts --target "$(SMOLLM2_TARGET)" --size 8192 --overwrite \
	  --output $(SMOLLM2)/vocab
	$(BIN)/vocabforge train-drafter --config smollm2-135m target="$(SMOLLM2_TARGET)" drafter.vocab=$(SMOLLM2)/vocab \
	  "data.train=[$(SMOLLM2)/responses/responses.jsonl$(addprefix $(comma),$(SMOLLM2_MORE))]" output=$(SMOLLM2)/run
	$(BIN)/vocabforge eval --target "$(SMOLLM2_TARGET)" --drafter smollm2=$(SMOLLM2)/run/drafter --overwrite \
	  --benchmark $(SMOLLM2)/run/heldout_prompts.jsonl --max-new-tokens 64 --output $(SMOLLM2)/eval

# Draft vocabularies on that drafter, after make smollm2: static ones, a ranker, a low-rank head, a router, the text's own.
# FR-Spec counts texts, VocabTrim the target's answers. Heads learn on the frozen drafter.
STUDY_DATA = data.train=[$(SMOLLM2)/responses/responses.jsonl] data.sequence_length=768 data.heldout_documents=48
smollm2-study: $(STAMP)
	$(BIN)/vocabforge count-freq --tokenizer "$(SMOLLM2_TARGET)" --overwrite --output $(SMOLLM2)/text-counts \
	  --input $(subst $(comma), ,$(TEXTS))
	$(BIN)/vocabforge select-vocab --counts $(SMOLLM2)/text-counts --target "$(SMOLLM2_TARGET)" --size 4096,8192,16384 \
	  --fill lowest-id --overwrite --output $(SMOLLM2)/vocabs/fr
	$(BIN)/vocabforge select-vocab --counts $(SMOLLM2)/counts --target "$(SMOLLM2_TARGET)" --size 64,256,1024,2048,4096 \
	  --overwrite --output $(SMOLLM2)/vocabs/trim
	$(BIN)/vocabforge select-vocab --counts $(SMOLLM2)/counts --target "$(SMOLLM2_TARGET)" --schedule decay --k-max 8192 \
	  --k-min 2048 --steps 4 --overwrite --output $(SMOLLM2)/vocabs/pa-fr
	$(BIN)/vocabforge export --drafter $(SMOLLM2)/run/drafter --target "$(SMOLLM2_TARGET)" --overwrite \
	  --vocab full --format native --output $(SMOLLM2)/full
	$(BIN)/vocabforge cluster-vocab --target "$(SMOLLM2_TARGET)" --clusters 256 --overwrite --output $(SMOLLM2)/clusters
	$(BIN)/vocabforge train-drafter --config smollm2-135m target="$(SMOLLM2_TARGET)" $(STUDY_DATA) \
	  drafter.init=$(SMOLLM2)/full drafter.freeze=true ttt.warmup_fraction=0 optim.name=adamw optim.steps=60 \
	  optim.batch_size=2 optim.micro_batch_size=2 heads.ranker.rank=72 heads.low_rank.rank=72 run.live.prompts=0 \
	  output=$(SMOLLM2)/heads
	$(BIN)/vocabforge train-drafter --config smollm2-135m target="$(SMOLLM2_TARGET)" $(STUDY_DATA) \
	  drafter.init=$(SMOLLM2)/full drafter.freeze=true ttt.warmup_fraction=0 optim.name=adamw optim.steps=100 \
	  optim.batch_size=2 optim.micro_batch_size=2 optim.lr=1e-3 heads.router.clusters=$(SMOLLM2)/clusters \
	  run.live.prompts=0 output=$(SMOLLM2)/router
	$(BIN)/python recipes/study/study.py --recipe recipes/study/smollm2.yaml --target "$(SMOLLM2_TARGET)" --benchmark spec-bench --limit 80 \
	  --max-new-tokens 48 --output $(SMOLLM2)/study

# Against transformers: plain decoding, n-grams and prompt lookup; and the shipped drafter, which it cannot run.
smollm2-bench: $(STAMP)
	$(if $(TARGET),,$(BIN)/python recipes/models/fetch.py smollm2-135m --output $(SMOLLM2))
	$(BIN)/python recipes/models/smollm2_prompts.py $(SMOLLM2_DATA) --output $(SMOLLM2)/prompts.jsonl
	$(BIN)/python recipes/bench/decoding.py target="$(SMOLLM2_TARGET)" prompts=$(SMOLLM2)/prompts.jsonl questions=12 \
	  methods.n-gram.proposer=n-gram methods.eagle3.drafter=smollm2-135m --output $(SMOLLM2)/decoding.json

# The shipped drafter on the real model: eight questions, recorded cycles.
test-smollm2: $(STAMP)
	$(BIN)/python recipes/models/fetch.py smollm2-135m --output $(SMOLLM2)
	VOCABFORGE_SMOLLM2=$(SMOLLM2)/SmolLM2-135M-Instruct.Q4_1.gguf $(BIN)/python -m pytest -q tests/pipeline/test_shipped_drafter.py

# Gemma 3 270M, the base model: it continues texts. TEXTS: what it learns from, if there is no development data.
GEMMA3 := runs/gemma3
GEMMA3_TARGET = $(or $(TARGET),$(GEMMA3)/gemma-3-270m-q4_k_m.gguf)
TEXTS ?= $(VOCABFORGE_DATA)/corpus/c4_demo.jsonl.xz,$(VOCABFORGE_DATA)/corpus/wiki_demo.txt.xz

gemma3: gemma3-vocab
	$(BIN)/vocabforge train-drafter --config gemma3-270m target="$(GEMMA3_TARGET)" drafter.vocab=$(GEMMA3)/vocab \
	  "data.train=[$(TEXTS)]" data.text_unit=line output=$(GEMMA3)/run
	$(BIN)/vocabforge export --drafter $(GEMMA3)/run/drafter --target "$(GEMMA3_TARGET)" --vocab full \
	  --format native --overwrite --output $(GEMMA3)/full
	$(BIN)/vocabforge eval --recipe recipes/decoding/gemma3.yaml --target "$(GEMMA3_TARGET)" --limit 24 --overwrite \
	  --benchmark $(GEMMA3)/run/heldout_prompts.jsonl --max-new-tokens 48 --output $(GEMMA3)/eval

gemma3-vocab: $(STAMP)
	$(if $(TARGET),,$(BIN)/python recipes/models/fetch.py gemma3-270m --output $(GEMMA3))
	$(BIN)/vocabforge count-freq --tokenizer "$(GEMMA3_TARGET)" --overwrite --output $(GEMMA3)/counts \
	  --input $(subst $(comma), ,$(TEXTS))
	$(BIN)/vocabforge select-vocab --counts $(GEMMA3)/counts --target "$(GEMMA3_TARGET)" --size 16384 --overwrite \
	  --fill lowest-id --output $(GEMMA3)/vocab
	$(BIN)/vocabforge select-vocab --counts $(GEMMA3)/counts --target "$(GEMMA3_TARGET)" --size 2048 --overwrite \
	  --fill lowest-id --output $(GEMMA3)/vocab-2k
	$(BIN)/python -c "import torch; torch.save([i for i in range(262144) if i != 108], '$(GEMMA3)/but-one.pt')"
	$(BIN)/vocabforge select-vocab --from-list $(GEMMA3)/but-one.pt --target "$(GEMMA3_TARGET)" --overwrite \
	  --output $(GEMMA3)/vocab-but-one

# No set-up of their own: a GPU machine may have no network, and any Python with torch will do.
ANY_PYTHON = $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))

# ARCH="80 90a": compute capabilities, if not both.
kernels:
	$(ANY_PYTHON) kernels/build.py $(patsubst %,--arch %,$(ARCH))

kernels-cpu:
	$(ANY_PYTHON) kernels/build.py --cpu

# Tests build what they need of it; all at once is quicker.
emulator:
	$(ANY_PYTHON) kernels/build.py --emulator

gpu-check:
	$(ANY_PYTHON) kernels/gpu_check.py $(GPU_CHECK)

# Python 3.12 and newer watch lines at little cost; before that coverage makes the tests half as long again.
COVERED = $(if $(filter yes,$(shell $(BIN)/python -c 'import sys; print("yes" if sys.version_info >= (3, 12) else "no")' 2>/dev/null)),yes)
COVERAGE := --cov=vocabforge --cov-report=

test: $(STAMP)
	COVERAGE_CORE=sysmon $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist worksteal $(if $(COVERED),$(COVERAGE))
	@$(if $(COVERED),$(BIN)/python .ci/coverage_table.py,echo "coverage on this Python: make coverage")

coverage: $(STAMP)
	$(BIN)/python -m pytest -m 'not proof and not docs and not servers' -n $(TEST_WORKERS) --dist worksteal $(COVERAGE)
	@$(BIN)/python .ci/coverage_table.py

# The other half of the tests.
test-long: $(STAMP)
	$(BIN)/python -m pytest -m 'long and not proof' -n $(TEST_WORKERS) --dist worksteal

# test, test-long and test-docs: in one call they are collected once.
test-all: $(STAMP)
	$(BIN)/python -m pytest -m 'not proof and not servers' -n $(TEST_WORKERS) --dist worksteal

test-proof: $(STAMP)
	$(BIN)/python -m pytest -m proof -n $(TEST_WORKERS) --dist worksteal

# Spoilt inputs by chance over every reader; FUZZ=500 makes fewer, SEED=3 others.
test-fuzz: $(STAMP)
	FUZZ=$(or $(FUZZ),20000) FUZZ_SEED=$(or $(SEED),0) $(BIN)/python -m pytest tests/fuzz -n $(TEST_WORKERS) --dist worksteal

# SEED=1 draws other operations; FAULTS="-k train-drafter" chooses commands.
test-faults: $(STAMP)
	FAULTS_SEED=$(or $(SEED),0) $(BIN)/python -m pytest tests/faults -n 2 $(FAULTS)

test-docs: $(STAMP)
	$(BIN)/python -m pytest tests/docs -m docs -n $(TEST_WORKERS)

# A tiny model of every architecture, asked by the doctor; a test holds the document to it.
targets: $(STAMP)
	$(BIN)/python -m tests.models.targets_table docs/guides/targets.md

# The library of another drafter layout reads what export writes: Python 3.11 or newer, beside the environment, not in it.
test-speculators: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/speculators speculators==0.9.0 hs-connectors==0.9.0 \
	  loguru pydantic-settings openai aiohttp sniffio
	PYTHONPATH=$(VENV)/speculators $(BIN)/python -m pytest tests/export/test_real_speculators.py \
	  tests/export/test_speculators_block.py

# The lower end of the range in pyproject.toml, beside the environment, not in it.
TRANSFORMERS := $(VENV)/transformers
test-transformers: $(STAMP)
	$(BIN)/python -m pip install --quiet --target $(TRANSFORMERS) "huggingface_hub<2"
	$(BIN)/python -m pip install --quiet --no-deps --target $(TRANSFORMERS) transformers==5.16.0
	PYTHONPATH=$(TRANSFORMERS) $(BIN)/python -m pytest -n $(TEST_WORKERS) tests/decode/test_architectures.py \
	  tests/models/test_target.py tests/models/test_target_loading.py

# Real servers, each in an environment of its own, made from nothing: gigabytes, so that .ci/run leaves them out.
SERVERS := $(VENV)/servers
test-servers: test-vllm test-sglang test-llamacpp

test-vllm: $(STAMP)
	$(PYTHON) .ci/server_env vllm $(SERVERS)/vllm
	$(BIN)/python -m pytest -m servers tests/servers/test_vllm.py tests/servers/test_vllm_block.py tests/servers/test_capture_server.py tests/servers/test_eval_server.py

test-sglang: $(STAMP)
	$(PYTHON) .ci/server_env sglang $(SERVERS)/sglang
	$(BIN)/python -m pytest -m servers tests/servers/test_sglang.py

test-llamacpp: $(STAMP)
	$(PYTHON) .ci/server_env llamacpp $(SERVERS)/llamacpp
	$(BIN)/python -m pytest -m servers tests/servers/test_llamacpp.py tests/servers/test_llamacpp_block.py

# The demo's drafter in all of them, side by side: the table of docs/guides/serving.md.
servers-table: $(STAMP)
	@test -d $(DEMO_OUTPUT)/drafter || $(MAKE) demo
	for server in vllm sglang llamacpp; do $(PYTHON) .ci/server_env $$server $(SERVERS)/$$server || exit; done
	$(BIN)/python -m tests.servers.table $(DEMO_OUTPUT) docs/guides/serving.md

# SmolLM2 and the shipped drafter in all of them, in turns with our decoder: another table of that page. It resumes.
smollm2-servers: $(STAMP)
	$(BIN)/python recipes/models/fetch.py smollm2-135m --output $(SMOLLM2)
	for server in vllm sglang llamacpp; do $(PYTHON) .ci/server_env $$server $(SERVERS)/$$server || exit; done
	$(BIN)/python -m tests.servers.smollm2 $(SMOLLM2)/servers $(SMOLLM2)/SmolLM2-135M-Instruct.Q4_1.gguf docs/guides/serving.md

# DeepSpeed is an extra: everything that imports accelerate starts seconds later where it is installed.
test-deepspeed: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[deepspeed]'
	$(BIN)/python -m pytest tests/train/test_distributed.py -m "not proof" -k "zero or deepspeed"

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The site's tools are an extra, installed when they are first wanted: neither setup nor the demo waits for them.
DOCS := $(VENV)/.docs-installed
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

$(DOCS): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

wheel: $(STAMP)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

release:
	$(PYTHON) .ci/release

docs: $(DOCS)
	$(MKDOCS) build --strict --config-file .ci/mkdocs.yml

docs-serve: $(DOCS)
	$(MKDOCS) serve --config-file .ci/mkdocs.yml

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
