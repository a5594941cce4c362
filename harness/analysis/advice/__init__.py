"""Advice on a run, each with its evidence: pure functions over what its log says."""

from harness.analysis.advice.known import Foreseen, Known, Tried
from harness.analysis.advice.rules import RULES, suggest
from harness.analysis.advice.suggestion import Gain, Rule, Suggestion

__all__ = ["RULES", "Foreseen", "Gain", "Known", "Rule", "Suggestion", "Tried", "suggest"]
