"""A character GPT with gradient accumulation, autocast and no loader, in the style of nanoGPT."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

torch.set_num_threads(1)
torch.manual_seed(0)
CHARS, BLOCK, BATCH, ACCUMULATION, WIDTH = 30, 16, 4, 3, 32
text = torch.randint(0, CHARS, (600,))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.attention(self.norm1(x)).chunk(3, dim=-1)
        x = x + functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(CHARS, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(WIDTH, CHARS)

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return logits, functional.cross_entropy(logits.view(-1, CHARS), targets.view(-1))


def get_batch() -> tuple[Tensor, Tensor]:
    at = torch.randint(len(text) - BLOCK - 1, (BATCH,)).tolist()
    return torch.stack([text[i : i + BLOCK] for i in at]), torch.stack(
        [text[i + 1 : i + BLOCK + 1] for i in at]
    )


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


@torch.no_grad()
def estimate_loss() -> float:
    model.eval()
    losses = [model(*get_batch())[1].item() for _ in range(3)]
    model.train()
    return sum(losses) / 3


STEPS = 12
ids, targets = get_batch()
for step in range(STEPS):
    if step % 5 == 0:
        print(f"step {step} held-out loss {estimate_loss().hex()}")
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * step / STEPS))
    for _ in range(ACCUMULATION):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            _, loss = model(ids, targets)
            loss = loss / ACCUMULATION
        ids, targets = get_batch()
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"loss {loss.item().hex()}")
print(f"steps {STEPS}")
