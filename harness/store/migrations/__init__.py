"""The tables of a run's two files, a module a migration; append-only."""
