"""Training scripts in the styles that people write, which the tests run bare and under watch."""
