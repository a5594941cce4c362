"""Stepscope in a training script: `watch` opens a run over a model and its optimizer.

The names in `__all__` are the only stable interface of Stepscope; docs/your-own-training.md describes them.
"""

from stepscope.process import follow_exits
from stepscope.run import Run, Setting, watch
from stepscope.summary import SummaryWriter

__all__ = ["Run", "Setting", "SummaryWriter", "watch"]

follow_exits()
