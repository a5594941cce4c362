"""Architectures of the `transformers` library, from their configurations, with random weights.

Nothing is downloaded: the library is set offline before its import, which happens only here, in the builders.
Losses are Stepscope's own, because the catalog's text targets are already shifted.
"""

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from harness.errors import SettingError
from harness.models.base import LossModel, mean_cross_entropy
from harness.models.importing import outside_modes
from harness.records.data import DataShape

_ATTENTION = "stepscope_sdpa"
# The share of masked tokens in BERT's training (Devlin et al., 2018, arXiv:1810.04805).
_MASKED_SHARE = 0.15


def _library() -> Any:
    """Import `transformers`, offline, and register its fused attention under another name.

    Under the original name the library checks in every forward pass whether texts are packed into one row,
    which synchronizes with the device; a name without a mask function avoids that.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    with outside_modes():
        import transformers
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        # The library imports what an attribute names when it is read.
        transformers.AttentionInterface.register(_ATTENTION, sdpa_attention_forward)
    return transformers


class HfModel(LossModel):
    """A model of the library, which checkpoints its own layers."""

    _checkpointing: bool = False

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    @property
    def checkpointing(self) -> bool:
        """True when each layer is checkpointed."""
        return self._checkpointing

    @checkpointing.setter
    def checkpointing(self, on: bool) -> None:
        if "net" not in self._modules or on == self._checkpointing:
            self._checkpointing = on
            return
        net: Any = self.net
        if not net.supports_gradient_checkpointing:
            raise SettingError("activation_checkpointing", "This model cannot checkpoint its activations.")
        self._checkpointing = on
        # The public method also adds a hook to the embeddings, one more with every call.
        net._set_gradient_checkpointing(
            enable=on, gradient_checkpointing_func=partial(checkpoint, use_reentrant=False)
        )

    def logits(self, inputs: Tensor) -> Tensor:
        """Return (batch, classes) for images, (batch, sequence, vocabulary) for text."""
        scores: Tensor = self.net(inputs).logits
        return scores

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of labels (batch,), or of the next tokens (batch, sequence)."""
        return mean_cross_entropy(self.logits(inputs), targets)


class HfMaskedLanguageModel(HfModel):
    """A masked language model; the targets, which are next tokens, are not used."""

    def __init__(self, net: nn.Module, mask_token: int) -> None:
        super().__init__(net)
        self._mask_token = mask_token

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002  # the contract's signature
        """Mean loss over the masked 15 % of `inputs` (batch, sequence), drawn from torch's generator."""
        masked = torch.rand(inputs.shape, device=inputs.device) < _MASKED_SHARE
        logits = self.logits(torch.where(masked, self._mask_token, inputs))
        losses = functional.cross_entropy(logits.flatten(0, 1).float(), inputs.flatten(), reduction="none")
        weights = masked.flatten().float()
        return (losses * weights).sum() / weights.sum().clamp(min=1)


def build_gpt2(params: Mapping[str, int], shape: DataShape) -> HfModel:
    """GPT-2; `params`: context, width, heads, layers."""
    library = _library()
    config = library.GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=params["context"],
        n_embd=params["width"],
        n_layer=params["layers"],
        n_head=params["heads"],
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
        attn_implementation=_ATTENTION,
    )
    return HfModel(library.GPT2LMHeadModel(config))


def build_bert(params: Mapping[str, int], shape: DataShape) -> HfMaskedLanguageModel:
    """BERT for masked tokens, with one more token for the mask; `params`: context, width, heads, layers."""
    library = _library()
    config = library.BertConfig(
        vocab_size=shape.vocabulary + 1,
        max_position_embeddings=params["context"],
        hidden_size=params["width"],
        num_hidden_layers=params["layers"],
        num_attention_heads=params["heads"],
        intermediate_size=4 * params["width"],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=None,
        use_cache=False,
        attn_implementation=_ATTENTION,
    )
    return HfMaskedLanguageModel(library.BertForMaskedLM(config), mask_token=shape.vocabulary)


def build_llama(params: Mapping[str, int], shape: DataShape) -> HfModel:
    """A Llama-style decoder; `params`: context, width, inner (feed-forward), heads, key_heads, layers."""
    library = _library()
    config = library.LlamaConfig(
        vocab_size=shape.vocabulary,
        max_position_embeddings=params["context"],
        hidden_size=params["width"],
        intermediate_size=params["inner"],
        num_hidden_layers=params["layers"],
        num_attention_heads=params["heads"],
        num_key_value_heads=params["key_heads"],
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
        attn_implementation=_ATTENTION,
    )
    return HfModel(library.LlamaForCausalLM(config))


def build_vit(params: Mapping[str, int], shape: DataShape) -> HfModel:
    """A vision transformer; `params`: patch (pixels), width, heads, layers."""
    library = _library()
    config = library.ViTConfig(
        image_size=shape.height,
        num_channels=shape.channels,
        patch_size=params["patch"],
        hidden_size=params["width"],
        num_hidden_layers=params["layers"],
        num_attention_heads=params["heads"],
        intermediate_size=4 * params["width"],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=shape.classes,
        attn_implementation=_ATTENTION,
    )
    return HfModel(library.ViTForImageClassification(config))


def build_resnet(params: Mapping[str, int], shape: DataShape) -> HfModel:
    """A ResNet of bottleneck blocks; `params`: stem (channels), width, stage1 to stage4 (blocks)."""
    library = _library()
    config = library.ResNetConfig(
        num_channels=shape.channels,
        embedding_size=params["stem"],
        hidden_sizes=[params["width"] * 2**stage for stage in range(4)],
        depths=[params[f"stage{number}"] for number in range(1, 5)],
        layer_type="bottleneck",
        num_labels=shape.classes,
    )
    return HfModel(library.ResNetForImageClassification(config))
