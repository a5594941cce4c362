"""A tiny random GPT-2 in a Hugging Face Trainer, with gradient accumulation and evaluation, on the device
that its argument names: "cpu" without one."""

import sys
import tempfile
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments, logging


class Tokens(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.arange(index, index + 8) % 32
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    logging.set_verbosity_error()
    model: Any = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=8))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=2,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            eval_strategy="epoch",
            save_strategy="no",
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
            use_cpu="cuda" not in sys.argv,
        )
        trainer = Trainer(model, arguments, train_dataset=Tokens(), eval_dataset=Tokens())
        trainer.remove_callback(PrinterCallback)  # It prints durations.
        trainer.train()
    for entry in trainer.state.log_history:
        print(*(f"{name} {entry[name].hex()}" for name in ("loss", "eval_loss") if name in entry))
    print(f"steps {trainer.state.global_step}")


if __name__ == "__main__":
    main()
