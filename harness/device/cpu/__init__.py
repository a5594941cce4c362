"""The CPU as a device to train on: facts, malloc, and a memory cap."""
