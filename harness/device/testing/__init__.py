"""Stand-ins for hardware, held to the real interfaces by contract tests."""
