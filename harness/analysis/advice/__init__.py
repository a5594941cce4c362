"""Advice on a run, each with its evidence: pure functions over what its log says."""

from harness.analysis.advice.evidence import PastChange, PredictedPeak, RunEvidence
from harness.analysis.advice.rules import RULES, suggest, with_code_alone
from harness.analysis.advice.suggestion import Gain, Rule, Suggestion

__all__ = [
    "RULES",
    "Gain",
    "PastChange",
    "PredictedPeak",
    "Rule",
    "RunEvidence",
    "Suggestion",
    "suggest",
    "with_code_alone",
]
