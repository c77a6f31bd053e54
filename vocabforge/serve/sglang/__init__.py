"""Models loaded by SGLang: ``SGLANG_EXTERNAL_MODEL_PACKAGE=vocabforge.serve.sglang``."""
