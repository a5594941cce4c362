"""A small classifier as a Lightning module, with validation in every epoch, on the device that its argument
names: "cpu" without one."""

import logging
import sys

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        self.losses: list[float] = []

    def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list[Tensor], _index: int) -> None:
        self.model(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    data = TensorDataset(torch.randn(60, 6), torch.randint(0, 3, (60,)))
    module = Classifier()
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="gpu" if "cuda" in sys.argv else "cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=20))
    print(*(loss.hex() for loss in module.losses), sep="\n")
    print(f"steps {trainer.global_step}")


if __name__ == "__main__":
    main()
