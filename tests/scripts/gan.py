"""A generative adversarial network: two models, two optimizers, and three backward passes per step."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
N_CRITIC = int(sys.argv[1]) if len(sys.argv) > 1 else 1
LATENT = 8
loader = DataLoader(TensorDataset(torch.randn(120, 16)), batch_size=8, shuffle=True, drop_last=True)
generator = nn.Sequential(nn.Linear(LATENT, 32), nn.ReLU(), nn.Linear(32, 16))
discriminator = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(4, LATENT)
steps = 0
for _ in range(2):
    for i, (real,) in enumerate(loader):
        discriminator.zero_grad()
        real_loss = criterion(discriminator(real), torch.ones(len(real), 1))
        real_loss.backward()
        fake = generator(torch.randn(len(real), LATENT))
        fake_loss = criterion(discriminator(fake.detach()), torch.zeros(len(real), 1))
        fake_loss.backward()
        discriminator_optimizer.step()
        steps += 1
        if i % N_CRITIC == 0:
            generator.zero_grad()
            loss = criterion(discriminator(fake), torch.ones(len(real), 1))
            loss.backward()
            generator_optimizer.step()
        print(f"loss {(real_loss + fake_loss).item().hex()} {loss.item().hex()}")
    with torch.no_grad():
        print(f"samples {float(generator(fixed_noise).sum()).hex()}")
print(f"steps {steps}")
