"""Stepscope's harness: trains a model, records every step, and obeys while it runs."""

__version__ = "0.1.0"
