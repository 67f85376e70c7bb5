"""`python -m evalkit.export RUN FOLDER`: a run of model=griffin_released as a folder for transformers."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evalkit.core.errors import UserError, writing


def export(run: str, folder: Path) -> None:
    """Writes the run's first seed as a RecurrentGemma folder, with its tokenizer if it was trained on bytes.

    Raises UserError for what is no run, a model that RecurrentGemma cannot express, and a folder that is in use.
    """
    from evalkit.checkpoints import tokenizer_files
    from evalkit.checkpoints.pretrained import load
    from evalkit.models.formats import export as hugging_face
    from evalkit.tasks.text.tokenizers import Bytes

    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; give another folder")
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m evalkit.export", description=__doc__)
    parser.add_argument("run", help="the folder of a run")
    parser.add_argument("folder", type=Path, help="where to write; made if it is not there")
    given = parser.parse_args(arguments)
    try:
        export(given.run, given.folder)
    except UserError as error:
        print(f"evalkit: {error}", file=sys.stderr)
        return error.exit_code
    print(f"written to {given.folder}; transformers.RecurrentGemmaForCausalLM.from_pretrained reads it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
