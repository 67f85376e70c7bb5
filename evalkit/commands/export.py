"""`python -m evalkit export RUN FOLDER`: a run of model=griffin_released as a folder for transformers."""

from collections.abc import Sequence

from evalkit.commands.guide import Page
from evalkit.core.errors import typed_path


def main(arguments: Sequence[str]) -> int:
    """Writes the folder and returns 0; raises UserError for what cannot be exported."""
    parser = Page(
        "export",
        "Write a run of model=griffin_released as a folder for transformers; other models differ from RecurrentGemma.",
        "export runs/books/griffin_released/TIME exported",
    )
    parser.add_argument("run", help="the folder of a run")
    parser.add_argument("folder", type=typed_path, help="where to write; made if it is not there")
    parsed = parser.parse_args(arguments)
    from evalkit.checkpoints.pretrained import export

    export(parsed.run, parsed.folder)
    print(f"written to {parsed.folder}; transformers.RecurrentGemmaForCausalLM.from_pretrained reads it")
    return 0
