"""Trainings of the packages that have an adapter. They take seconds to import: tests do so when they run."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class _Tokens(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.arange(index, index + 8) % 32
        return {"input_ids": tokens, "labels": tokens}


def hugging_face_trainer(folder: Path, callbacks: list[Any], steps: int) -> Trainer:
    """A Trainer of the transformers package with a small GPT-2, for so many steps."""
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=8))
    arguments = TrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        use_cpu=True,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        seed=1,
    )
    return Trainer(model, arguments, train_dataset=_Tokens(), callbacks=callbacks)


class Classifier(pl.LightningModule):
    """Calls a module of its own, not itself, as Lightning's modules do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Linear(4, 2)
        self.losses: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.losses.append(loss.item())
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def lightning_trainer(callbacks: list[pl.Callback], batches_per_step: int = 1) -> pl.Trainer:
    """A Trainer of Lightning for two epochs."""
    return pl.Trainer(
        max_epochs=2,
        accumulate_grad_batches=batches_per_step,
        accelerator="cpu",
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
