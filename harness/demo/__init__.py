"""Simulated runs, for looking around without a GPU and for tests: named scenarios as honest logs."""

from harness.demo.scenarios import SCENARIOS, Scenario, scenario
from harness.demo.writing import write, write_all

__all__ = ["SCENARIOS", "Scenario", "scenario", "write", "write_all"]
