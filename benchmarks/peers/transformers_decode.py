"""Greedy decoding by Hugging Face's RecurrentGemma: `generate` on the same weights, by the faster number of threads."""

import time

import torch
import worker
from transformers import RecurrentGemmaForCausalLM

case = worker.case()
model = RecurrentGemmaForCausalLM.from_pretrained(case["folder"], dtype=torch.float32).eval()
prompts = torch.tensor(case["prompts"])
cores = torch.get_num_threads()
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
    global found
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


threads = min({1, cores}, key=seconds)
torch.set_num_threads(threads)
worker.serve(
    take,
    sum(parameter.numel() for parameter in model.parameters()),
    lambda: {"tokens": found[:, prompts.shape[1] :].tolist(), "threads": threads},
)
