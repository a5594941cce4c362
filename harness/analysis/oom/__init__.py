"""Why memory ran out: the facts, what follows from them, and the report as text."""
