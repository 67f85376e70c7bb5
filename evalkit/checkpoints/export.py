"""A run of model=griffin_released as a folder for transformers."""

from pathlib import Path
from typing import Any

from evalkit.checkpoints import archives, tokenizer_files
from evalkit.checkpoints.pretrained import load
from evalkit.core.errors import UserError, writing
from evalkit.models.formats import export as hugging_face
from evalkit.tasks.text.tokenizers import Bytes


def export(run: str, folder: Path) -> None:
    """Writes the run's first seed as a RecurrentGemma folder, with a tokenizer of bytes. Raises UserError."""
    archives.refuse_used(folder)
    trained = load(run)
    model: Any = trained.model  # built by `models`, as what `conf/model/` names is
    tokenizer = trained.tokenizer
    with writing(folder):
        try:
            hugging_face.write(folder, model, trained.params, tokenizer.bos, tokenizer.eos)
        except ValueError as error:
            raise UserError(f"{run}: {error}") from error
        if isinstance(tokenizer, Bytes):
            tokenizer_files.write_bytes(folder)
