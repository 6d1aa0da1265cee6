"""MiniLM through torch's own layers equals BERT's formulas written out, in double precision."""

import json

import numpy as np
import pytest
import safetensors.torch
import torch
from torch.nn import functional

from e3bm.errors import SettingsError
from e3bm.fewshot.text.minilm import BertEncoder, minilm_encoder

CONFIG = {
    "hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 20, "num_hidden_layers": 2,
    "layer_norm_eps": 1e-12,
}  # fmt: skip
TOKENS = 8


def made_up_weights():
    torch.manual_seed(0)
    sizes = {"embeddings.word_embeddings.weight": (TOKENS, 12), "embeddings.position_embeddings.weight": (6, 12)}
    sizes |= {"embeddings.token_type_embeddings.weight": (2, 12), "embeddings.LayerNorm.weight": (12,)}
    sizes["embeddings.LayerNorm.bias"] = (12,)
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        shapes = {f"attention.self.{part}": (12, 12) for part in ("query", "key", "value")}
        shapes |= {"attention.output.dense": (12, 12), "intermediate.dense": (20, 12), "output.dense": (12, 20)}
        shapes |= {"attention.output.LayerNorm": (12,), "output.LayerNorm": (12,)}
        for name, shape in shapes.items():
            sizes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
    return {name: torch.randn(size) for name, size in sizes.items()}


def bert(weights, tokens):
    """BERT's formulas, one after the other."""
    value = {name: one.double() for name, one in weights.items()}
    linear = lambda x, name: x @ value[f"{name}.weight"].T + value[f"{name}.bias"]
    norm = lambda x, name: functional.layer_norm(x, (12,), value[f"{name}.weight"], value[f"{name}.bias"], 1e-12)
    x = (
        value["embeddings.word_embeddings.weight"][tokens]
        + value["embeddings.position_embeddings.weight"][: len(tokens)]
    )
    x = norm(x + value["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        heads = [
            linear(x, f"{layer}.attention.self.{part}").view(-1, 3, 4).transpose(0, 1)
            for part in ("query", "key", "value")
        ]
        attention = (heads[0] @ heads[1].mT / 2).softmax(-1) @ heads[2]
        mixed = linear(attention.transpose(0, 1).reshape(-1, 12), f"{layer}.attention.output.dense")
        x = norm(x + mixed, f"{layer}.attention.output.LayerNorm")
        inner = functional.gelu(linear(x, f"{layer}.intermediate.dense"))
        x = norm(x + linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    return x.mean(0)


def test_the_network_is_bert():
    weights, tokens = made_up_weights(), torch.tensor([1, 5, 0, 7])
    assert torch.allclose(BertEncoder(CONFIG, weights)(tokens).double(), bert(weights, tokens), atol=1e-5)


def test_files_become_an_encoder_and_long_texts_are_cut(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: number for number, word in enumerate(["?", "a", "b", "c", "d", "e", "f", "g"])}
    tokeniser = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    tokeniser.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokeniser.save(str(tmp_path / "tokenizer.json"))
    weights = made_up_weights()
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    encode, content = minilm_encoder(tmp_path)
    assert content == (tmp_path / "model.safetensors").read_bytes()
    found = encode(["a b c", "d", "a b c d e f g a b c"])
    for row, tokens in zip(found, ([1, 2, 3], [4], [1, 2, 3, 4, 5, 6]), strict=True):
        assert np.allclose(row, bert(weights, torch.tensor(tokens)), atol=1e-5)
    assert np.array_equal(encode(["d"])[0], found[1])
    (tmp_path / "model.safetensors").write_bytes(content[:100])
    with pytest.raises(SettingsError, match="install it again"):
        minilm_encoder(tmp_path)
