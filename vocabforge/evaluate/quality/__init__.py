"""Output quality: GSM8K's exact match, and HumanEval's tests in a sandbox."""

from .human_eval import completion_of
from .scoring import require_sandbox, score_answers, write_samples

__all__ = ["completion_of", "require_sandbox", "score_answers", "write_samples"]
