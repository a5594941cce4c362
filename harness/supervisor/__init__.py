"""Starting, monitoring, controlling and stopping training processes."""

from harness.supervisor.escalation import Escalation, Patience, Stage
from harness.supervisor.summary import RunSummary, read_device
from harness.supervisor.supervisor import Supervisor

__all__ = ["Escalation", "Patience", "RunSummary", "Stage", "Supervisor", "read_device"]
