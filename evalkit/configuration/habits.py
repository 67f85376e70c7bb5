"""What users of other programs type, and what it is called here: a key, or a sentence where there is no such key."""

from collections.abc import Mapping

_DEVICE = "the device is JAX's: set JAX_PLATFORMS=cpu, cuda or tpu before the command"
_NO_DROPOUT = "models here have no dropout; leave it out"
_DEPTH = "n_layers n_layer num_layers layers depth num_hidden_layers blocks n_blocks"
_KEYS: Mapping[str, str] = {
    "train.learning_rate": "lr learning_rate rate max_lr peak_lr",
    "train.steps": "epochs epoch num_epochs n_epochs max_epochs steps max_steps num_steps n_steps iters iterations",
    "train.batch_size": "batch_size bs batch train_batch_size per_device_train_batch_size",
    "train.warmup_steps": "warmup warmup_ratio num_warmup_steps",
    "train.weight_decay": "wd decay weight_decay l2",
    "train.clip": "grad_clip gradient_clip clip_grad max_grad_norm",
    "train.schedule": "scheduler lr_scheduler lr_schedule",
    "train.optimizer": "optimizer optim optimiser",
    "train.b1": "beta1 adam_beta1",
    "train.b2": "beta2 adam_beta2",
    "train.microbatch": "grad_accum accumulate gradient_accumulation_steps accumulate_grad_batches micro_batch_size",
    "train.checkpoint_every": "save_every save_steps save_interval ckpt_every",
    "train.eval_every": "eval_steps eval_interval val_every",
    "train.log_every": "logging_steps log_interval",
    "hydra.run.dir": "output_dir outdir out out_dir output save_dir logdir log_dir run_dir folder dir",
    "model.width": "d_model dim hidden_size hidden_dim n_embd embed_dim emb_dim width",
    "model.mlp_expansion": "mlp_ratio ffn_dim d_ff intermediate_size",
    "model.mixers.attention.heads": "n_heads n_head num_heads num_attention_heads heads",
    "model.mixers.attention.window": "window sliding_window attention_window window_size",
    "model.dtype": "model_dtype torch_dtype",
    "matmul_precision": "precision",
    "task.length": "seq_len seq_length sequence_length context_length ctx_len block_size max_seq_len n_ctx",
    "eval.lengths": "eval_lengths test_lengths",
    "task.vocab_size": "vocab vocab_size n_vocab",
    "seed": "random_seed rng_seed",
    "seeds": "n_seeds num_seeds",
    "wandb.name": "run_name exp_name experiment_name name",
    "wandb.project": "project project_name wandb_project",
    "wandb.entity": "entity wandb_entity",
    "wandb.mode": "wandb_mode use_wandb no_wandb",
    "data.path": "data_path data_dir dataset_path data_root",
    "task": "dataset data_set benchmark",
    "model": "arch architecture model_name_or_path net",
    "checkpoint": "ckpt ckpt_path checkpoint_path load_from pretrained resume_from_checkpoint",
}
HABITS: Mapping[str, str] = {
    **{word: key for key, words in _KEYS.items() for word in words.split()},
    **dict.fromkeys(("device", "devices", "gpu", "gpus", "cuda", "accelerator", "n_gpus", "num_gpus"), _DEVICE),
    **dict.fromkeys(("dropout", "p_dropout", "attn_dropout", "resid_dropout", "hidden_dropout"), _NO_DROPOUT),
    **dict.fromkeys(_DEPTH.split(), "give model.depth=6 for as many blocks, or another model.pattern"),
    "mixer": "give a mixer of your own as +mixer=NAME with --config-dir FOLDER, where FOLDER/mixer/NAME.yaml is",
    "by": "it is of evalkit search, and of sweepers, with -m hydra/sweeper=optuna",
    **dict.fromkeys(("fp16", "bf16", "amp"), "give model.dtype=bfloat16"),
    **dict.fromkeys(
        ("num_workers", "n_workers", "workers"), "batches are made in the compiled step or read beside it; leave it out"
    ),
}
"""By the word, whether it is a whole key or the last part of one."""
