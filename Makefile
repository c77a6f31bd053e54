# Everything a user needs: make setup | demo | test | check | docs. The first call of any of them sets up .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_OUTPUT ?= runs/demo
TEST_WORKERS ?= auto

.PHONY: help setup demo bitllama heads bench-decoding test test-proof test-deepspeed check format clean
.DEFAULT_GOAL := help

help:
	@echo "make setup   virtual environment in $(VENV), with a torch build that fits this machine"
	@echo "make demo    count, select, train, export and evaluate on a small target made here (about 6 minutes)"
	@echo "make bitllama  train and evaluate a drafter for a real small model (docs/guides/real-model.md)"
	@echo "make heads   compare all draft heads on that model, three seeds"
	@echo "make bench-decoding  decoding of that model against transformers (after make bitllama)"
	@echo "make test    the test suite"
	@echo "make test-proof  the long versions of the proofs that decoding is lossless"
	@echo "make test-deepspeed  its DeepSpeed part, with the extra installed"
	@echo "make check   lint and types"

setup: $(STAMP)

$(STAMP): pyproject.toml .ci/install
	$(PYTHON) .ci/install $(VENV)
	@touch $@

demo: $(STAMP)
	$(BIN)/vocabforge demo --output $(DEMO_OUTPUT)

# A real target: needs the development data (VOCABFORGE_DATA), see docs/guides/real-model.md.
VOCABFORGE_DATA ?= ../shared/data
REAL := runs/bitllama

$(REAL)/target/generation_config.json:
	@test -f $(VOCABFORGE_DATA)/SOURCES.md || { echo "no development data at $(VOCABFORGE_DATA): set VOCABFORGE_DATA"; exit 1; }
	mkdir -p $(REAL)/target
	xz -dc $(VOCABFORGE_DATA)/models/bitllama-3M/model.safetensors.xz > $(REAL)/target/model.safetensors
	cp $(VOCABFORGE_DATA)/models/bitllama-3M/config.json $(VOCABFORGE_DATA)/models/tok512/tokenizer.json $(REAL)/target/
	echo '{"bos_token_id": 1, "eos_token_id": [1, 2]}' > $@

bitllama: $(STAMP) $(REAL)/target/generation_config.json
	$(BIN)/vocabforge train-drafter --config recipes/tiny/bitllama.yaml \
	  "data.train=[$(VOCABFORGE_DATA)/corpus/tinystories_train_head_2MiB.txt.xz]"
	$(BIN)/vocabforge eval --target $(REAL)/target --drafter eagle3=$(REAL)/run/drafter --overwrite \
	  --benchmark $(REAL)/run/heldout_prompts.jsonl --output $(REAL)/eval \
	  --depth 5 --topk 10 --total-nodes 30 --max-new-tokens 200

# Every draft head on one drafter family, three seeds: about half an hour on two cores, resumable.
heads: $(STAMP) $(REAL)/target/generation_config.json
	$(BIN)/vocabforge bench draft-heads --config recipes/tiny/heads.yaml run.threads=1 \
	  "data.train=[$(VOCABFORGE_DATA)/corpus/tinystories_train_head_2MiB.txt.xz]" \
	  --draft-vocab 128 --seeds 0,1,2 --output $(REAL)/heads

# Two runs of some minutes each: against transformers, and a wider pair of the same outputs against plain decoding.
bench-decoding: $(STAMP) $(REAL)/target/generation_config.json
	$(BIN)/vocabforge bench decoding --repeats 5 --json target=$(REAL)/target drafter=$(REAL)/run/drafter \
	  draft_model=$(VOCABFORGE_DATA)/models/stories260K > $(REAL)/decoding.json
	$(BIN)/vocabforge bench decoding --repeats 3 --json target=$(REAL)/target drafter=$(REAL)/run/drafter \
	  widen=4 threads=2 > $(REAL)/decoding-wide.json

test: $(STAMP)
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist worksteal

test-proof: $(STAMP)
	$(BIN)/python -m pytest -m proof -n $(TEST_WORKERS) --dist worksteal tests/decode

# DeepSpeed is an extra: everything that imports accelerate starts seconds later where it is installed.
test-deepspeed: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[deepspeed]'
	$(BIN)/python -m pytest -n $(TEST_WORKERS) tests/train/test_distributed.py -k "zero or deepspeed"

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
