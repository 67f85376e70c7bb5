"""The sentences of a page of Markdown, for the tests of how it is written."""

import re

FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
PICTURE, LINK, CODE = re.compile(r"!\[[^]]*\]\([^)]*\)"), re.compile(r"\[([^]]*)\]\([^)]*\)"), re.compile(r"`[^`]*`")
COMMENT, INDENTED = re.compile(r"<!--.*?-->", re.DOTALL), re.compile(r"^ {4}.*$", re.MULTILINE)
BEGINS = re.compile(r"^ *(?:[-*] |\d+\. |#+ |\||> )")
ENDS = re.compile(r"[.?!:]+(?=[\s*)”]|$)")


def sentences(page: str) -> list[str]:
    """Returns its sentences: of paragraphs, list items, headings and the cells of tables; code is one word.

    A sentence ends at `. ? ! :` before a space. Fenced and indented blocks, pictures and comments are left out.
    """
    for left_out in (COMMENT, FENCED, INDENTED, PICTURE):
        page = left_out.sub("", page)
    plain = LINK.sub(r"\1", CODE.sub("code", page))
    parts = [part for block in _blocks(plain) for part in (block.split("|") if block.startswith("|") else [block])]
    found = [" ".join(text.split()).strip(" -*#>") for part in parts for text in ENDS.split(part)]
    return [text for text in found if re.search(r"\w", text)]


def words(sentence: str) -> int:
    """Returns how many words it has; signs alone are none."""
    return len([word for word in sentence.split() if re.search(r"\w", word)])


def _blocks(plain: str) -> list[str]:
    """Its paragraphs, items, headings and rows of tables, each on one line."""
    blocks = [""]
    for line in plain.splitlines():
        if not line.strip() or BEGINS.match(line) or blocks[-1].startswith(("#", "|")):
            blocks.append("")
        blocks[-1] = f"{blocks[-1]} {line.strip()}".strip()
    return blocks
