"""Out-of-memory errors: recognition, evidence and report."""
