"""Output quality: exact match on GSM8K, and HumanEval's tests in a sandbox."""

from .scoring import require_sandbox, score_answers

__all__ = ["require_sandbox", "score_answers"]
