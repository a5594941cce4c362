"""Simulated runs, to explore the dashboard without a GPU and for tests: named scenarios as complete logs."""

from harness.demo.scenarios import SCENARIOS, Scenario, scenario
from harness.demo.writing import write, write_all

__all__ = ["SCENARIOS", "Scenario", "scenario", "write", "write_all"]
