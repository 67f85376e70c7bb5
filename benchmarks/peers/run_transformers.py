"""Hugging Face's RecurrentGemma (PyTorch), as `compare.py` times it in an environment of its own.

    python benchmarks/peers/run_transformers.py step|decode CASE

`compare.py` calls it, and CASE is JSON.
"""

import time

import process
import torch
from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

PATTERNS = {"griffin": "rrarr", "hawk": "rrrrr", "mqa": "aaaaa"}
NAMES = {"r": "recurrent", "a": "attention"}


def step(case: dict) -> None:
    """The same training step as ours, at the same sizes and with the same loss."""
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

    def take(steps: int) -> None:
        """That many steps."""
        for _ in range(steps):
            optimizer.zero_grad()
            logits = model(tokens, use_cache=False).logits[:, -scored:]
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, :scored].flatten()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    process.serve(take, sum(parameter.numel() for parameter in model.parameters()))


def decode(case: dict) -> None:
    """Greedy decoding by `generate` on the same weights, by the faster number of threads."""
    model = RecurrentGemmaForCausalLM.from_pretrained(case["folder"], dtype=torch.float32).eval()
    prompts = torch.tensor(case["prompts"])
    found = prompts
    settings = {
        "max_new_tokens": case["tokens"],
        "min_new_tokens": case["tokens"],
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
    }

    def take(calls: int) -> None:
        """That many calls, each with all prompts."""
        nonlocal found
        for _ in range(calls):
            with torch.inference_mode():
                found = model.generate(prompts, attention_mask=torch.ones_like(prompts), **settings)

    def seconds(threads: int) -> float:
        """One call's, after one that warms up."""
        torch.set_num_threads(threads)
        take(1)
        began = time.perf_counter()
        take(1)
        return time.perf_counter() - began

    threads = min({1, torch.get_num_threads()}, key=seconds)
    torch.set_num_threads(threads)
    process.serve(
        take,
        sum(parameter.numel() for parameter in model.parameters()),
        lambda: {"tokens": found[:, prompts.shape[1] :].tolist(), "threads": threads},
    )


if __name__ == "__main__":
    process.called({"step": step, "decode": decode}, {})
