"""The host and this process: processor load, memory, disk, network."""
