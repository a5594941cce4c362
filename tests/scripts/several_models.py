"""Cross-validation: one model after the other is trained in the same process, each with its optimizer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
FOLDS = 3
inputs = torch.randn(60, 5)
dataset = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
steps = 0
for fold in range(FOLDS):
    held_out = list(range(fold, 60, FOLDS))
    rest = [i for i in range(60) if i % FOLDS != fold]
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(2):
        for x, y in DataLoader(Subset(dataset, rest), batch_size=8, shuffle=True):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            print(f"loss {loss.item().hex()}")
    model.eval()
    with torch.inference_mode():
        x, y = next(iter(DataLoader(Subset(dataset, held_out), batch_size=20)))
        print(f"fold {fold} {nn.functional.mse_loss(model(x), y).item().hex()}")
print(f"steps {steps}")
