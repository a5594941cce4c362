"""What a device can tell and do, behind one protocol."""
