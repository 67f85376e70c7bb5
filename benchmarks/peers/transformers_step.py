"""The same step in Hugging Face's RecurrentGemma (PyTorch), at the same sizes and with the same loss."""

import torch
import worker
from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

PATTERNS = {"griffin": "rrarr", "hawk": "rrrrr", "mqa": "aaaaa"}
NAMES = {"r": "recurrent", "a": "attention"}

case = worker.case()
batch, length, scored = case["batch"], case["length"], case["scored"]
torch.manual_seed(0)
model = RecurrentGemmaForCausalLM(
    RecurrentGemmaConfig(
        vocab_size=16,
        hidden_size=64,
        intermediate_size=384,  # both branches together
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
        lru_width=64,
        attention_window_size=case["window"] or length,
        block_types=[NAMES[letter] for letter in PATTERNS[case["model"]]],
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
tokens = torch.randint(0, 16, (batch, length))


def step() -> None:
    """One step."""
    optimizer.zero_grad()
    logits = model(tokens, use_cache=False).logits[:, -scored:]
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, :scored].flatten()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def take(steps: int) -> None:
    """That many steps."""
    for _ in range(steps):
        step()


worker.serve(take, sum(parameter.numel() for parameter in model.parameters()))
