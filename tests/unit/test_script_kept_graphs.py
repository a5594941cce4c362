"""A script that keeps the graphs of an evaluation until memory runs out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.analysis.oom.report import OomPhase, OomVerdict, report_from_json
from harness.store.home import Home
from harness.store.reader import LogReader

SCRIPT = """
import resource
import sys

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).mean().backward()
    optimizer.step()
with open("/proc/self/status") as status:
    data_bytes = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (data_bytes + (160 << 20), resource.RLIM_INFINITY))
model.train(sys.argv[1] == "train")
total = 0
while True:
    total = total + model(torch.randn(64, 64)).mean()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA covers mappings on Linux only")
@pytest.mark.long
@pytest.mark.parametrize(("mode", "phase"), [("eval", OomPhase.EVALUATION), ("train", OomPhase.FORWARD)])
def test_the_report_blames_the_variable_that_keeps_the_graphs_of_an_evaluation(
    tmp_path: Path, mode: str, phase: OomPhase
) -> None:
    script, home = tmp_path / "train.py", tmp_path / "home"
    script.write_text(SCRIPT)
    environ = os.environ | {"STEPSCOPE_HOME": str(home), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "harness", "run", str(script), mode]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    [folder] = Home(home).runs()
    with LogReader(folder.log) as log:
        [row] = log.memory.oom_reports()
    report = report_from_json(row.report)
    assert (report.verdict, report.facts.request.phase) == (OomVerdict.KEPT_GRAPHS, phase)
    assert "behind the variable total in train.py:" in report.why
    assert report.facts.calls_without_backward > 100
