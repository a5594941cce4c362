"""Apple GPUs as devices to train on, through torch.mps."""
