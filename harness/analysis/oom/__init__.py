"""Out-of-memory reports: the facts, the verdict, and the report as text."""
