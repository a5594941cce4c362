"""Intel GPUs as devices to train on, through torch.xpu."""
