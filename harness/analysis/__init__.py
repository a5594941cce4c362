"""Pure functions over recorded rows: no torch, no SQL, no clock."""
