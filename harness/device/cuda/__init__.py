"""NVIDIA and AMD GPUs as devices to train on, through torch.cuda."""
