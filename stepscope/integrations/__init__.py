"""Adapters to other libraries; each needs the extra of its name."""
