"""Models that SGLang loads: ``SGLANG_EXTERNAL_MODEL_PACKAGE=vocabforge.serve.sglang``."""
