"""Starting, monitoring, controlling and stopping training processes."""

from harness.supervisor.escalation import Escalation, EscalationStage, Patience
from harness.supervisor.stored_json import read_device
from harness.supervisor.summary import RunSummary
from harness.supervisor.supervisor import Supervisor

__all__ = ["Escalation", "EscalationStage", "Patience", "RunSummary", "Supervisor", "read_device"]
