"""What a machine's own readings say: energy, clocks held back, what stands out."""
