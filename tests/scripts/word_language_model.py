"""A recurrent language model over one long text, with hidden state, without a loader and, with `--manual`,
without an optimizer, in the style of PyTorch's example."""

import argparse

import torch
from torch import Tensor, nn

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--manual", action="store_true")
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
WORDS, LENGTH, BATCH = 50, 12, 8
train_data = torch.randint(0, WORDS, (LENGTH * 10 + 1, BATCH))
valid_data = torch.randint(0, WORDS, (LENGTH * 2 + 1, BATCH))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.rnn = nn.LSTM(16, 16, 2, dropout=0.2)
        self.decode = nn.Linear(16, WORDS)

    def forward(self, words: Tensor, hidden: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        output, hidden = self.rnn(self.embed(words), hidden)
        return self.decode(output), hidden

    def init_hidden(self) -> tuple[Tensor, Tensor]:
        return torch.zeros(2, BATCH, 16), torch.zeros(2, BATCH, 16)


model = Model()
optimizer = None if args.manual else torch.optim.SGD(model.parameters(), lr=0.5)
criterion = nn.CrossEntropyLoss()


def get_batch(source: Tensor, at: int) -> tuple[Tensor, Tensor]:
    length = min(LENGTH, len(source) - 1 - at)
    return source[at : at + length], source[at + 1 : at + 1 + length].view(-1)


def evaluate() -> float:
    model.eval()
    total, hidden = 0.0, model.init_hidden()
    with torch.no_grad():
        for at in range(0, len(valid_data) - 1, LENGTH):
            words, targets = get_batch(valid_data, at)
            output, hidden = model(words, hidden)
            total += len(words) * criterion(output.view(-1, WORDS), targets).item()
    return total / (len(valid_data) - 1)


def train() -> int:
    model.train()
    steps, hidden = 0, model.init_hidden()
    for at in range(0, len(train_data) - 1, LENGTH):
        words, targets = get_batch(train_data, at)
        model.zero_grad()
        hidden = (hidden[0].detach(), hidden[1].detach())
        output, hidden = model(words, hidden)
        loss = criterion(output.view(-1, WORDS), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        if optimizer is not None:
            optimizer.step()
        else:
            for weight in model.parameters():
                assert weight.grad is not None
                weight.data.add_(weight.grad, alpha=-0.5)
        print(f"loss {loss.item().hex()}")
        steps += 1
    return steps


steps = 0
for epoch in range(args.epochs):
    steps += train()
    print(f"epoch {epoch} valid loss {evaluate().hex()}")
print(f"steps {steps}")
