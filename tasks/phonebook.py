"""Phonebook lookup in text: find a name's number in a book (Jelassi et al. 2024; De et al. 2024, fig. 6c)."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np

from evalkit.checks import at_least, one_of

DIGITS = 10
EXAMPLES = 2
FEWEST = EXAMPLES + 1
PROBES, CORRECTIONS = 8, 4  # `entries_for` takes means of 8 prompts, and corrects its guess at most 4 times

# {a} and {b} are entries given as examples, {name} is the queried name. The answer follows after a space.
VARIANTS = {
    "jelassi": "{book}\n\n{a}\n{b}\n\n{name}:",
    "question_first": "{name}:\n\n{book}\n\n{a}\n{b}\n\n{name}:",
    "jrt": "{book}\n\n{book}\n\n{a}\n{b}\n\n{name}:",
    "waleffe": (
        "{book}\n\n"
        "What is the phone number for {a.name}?\nAnswer: {a.number}\n\n"
        "What is the phone number for {b.name}?\nAnswer: {b.number}\n\n"
        "What is the phone number for {name}?\nAnswer:"
    ),
    "waleffe_reversed": (
        "A phone book with entries such as\n{a}\n{b}\nfollows. Remember the phone number for {name}.\n\n"
        "{book}\n\n"
        "What is the phone number for {name}?\nAnswer:"
    ),
}


class Entry(NamedTuple):
    """One line of the book."""

    name: str
    number: str

    def __str__(self) -> str:
        return f"{self.name}: {self.number}"


class Lookup(NamedTuple):
    """One prompt and its answer of ten digits.

    `depth` is the place of the answer in the book: 0 is the first entry, 1 the last. `entries` is its size.
    `place` counts the characters of the prompt before the entry with the answer; if there are several, the last one.
    """

    prompt: str
    answer: str
    depth: float
    entries: int
    place: int


@dataclass(frozen=True, kw_only=True)
class Phonebook:
    """Books of unique names with numbers of ten digits, and the question for one of the numbers.

    A book has one line for each entry, `First Last: 6123456789`; the first digit is 6 to 9. After the book stand two
    entries again, as examples of the question, and then a third entry's name with a colon, without a space. The same
    (`seed`, entries, index) always gives the same text.

    This is the layout `jelassi`. `question_first` puts the name before the book too; `jrt` repeats the book (Arora et
    al. 2024); `waleffe` asks in words after the book, `waleffe_reversed` before it too (Waleffe et al. 2024, sec.
    3.3.3, with other words). Raises ValueError for an impossible value.

    Options:
      variant: the layout: `jelassi`, `question_first`, `jrt`, `waleffe` or `waleffe_reversed`.
      depth (share of the book): where the answer stands, from 0, the first entry, to 1, the last; null: anywhere.
      seed: the seed of names, numbers and questions.

    >>> lookup = Phonebook().example(entries=4, index=0)
    >>> lookup.prompt.count("\\n"), len(lookup.answer), lookup.prompt[-1]
    (8, 10, ':')
    """

    variant: str = "jelassi"
    depth: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        one_of(self, "variant", tuple(VARIANTS))
        if self.depth is not None and not 0 <= self.depth <= 1:
            raise ValueError(f"depth={self.depth}; allowed: 0 (the first entry) to 1 (the last), or null for anywhere")
        at_least(self, 0, "seed")

    def example(self, entries: int, index: int) -> Lookup:
        """Returns lookup `index` in a book of `entries`; raises ValueError for too few, or more than names exist."""
        names = len(FIRST) * len(LAST)
        if not FEWEST <= entries <= names:
            raise ValueError(f"entries={entries}; allowed: {FEWEST} to {names} (there are no more names)")
        random = np.random.default_rng([self.seed, entries, index])
        book = _book(random, entries)
        queried = int(random.integers(entries)) if self.depth is None else round(self.depth * (entries - 1))
        others = np.delete(np.arange(entries), queried)
        a, b = (book[i] for i in random.choice(others, EXAMPLES, replace=False))
        prompt = VARIANTS[self.variant].format(book="\n".join(map(str, book)), a=a, b=b, name=book[queried].name)
        return Lookup(prompt, book[queried].number, queried / (entries - 1), entries, prompt.rindex(str(book[queried])))

    def entries_for(self, tokens: int, count: Callable[[str], int]) -> int:
        """Returns how many entries give prompts of about `tokens` tokens on average; `count` counts a text's tokens.

        Raises ValueError if the shortest book is longer.
        """
        shortest, longer = self._mean(FEWEST, count), self._mean(FEWEST + PROBES, count)
        if tokens < shortest:
            raise ValueError(f"length={tokens}; allowed: at least {int(shortest) + 1}, the tokens of {FEWEST} entries")
        # Tokens of an entry, from two sizes; a few corrections make up for the error of this line.
        rate = (longer - shortest) / PROBES
        entries = FEWEST + int((tokens - shortest) / rate)
        for _ in range(CORRECTIONS):
            missing = round((tokens - self._mean(entries, count)) / rate)
            entries = max(FEWEST, entries + missing)
            if not missing:
                break
        return entries

    def _mean(self, entries: int, count: Callable[[str], int]) -> float:
        return fmean(count(self.example(entries, index).prompt) for index in range(PROBES))


def _book(random: np.random.Generator, entries: int) -> list[Entry]:
    """Draws entries with unique names and independent numbers."""
    names = random.choice(len(FIRST) * len(LAST), entries, replace=False)
    digits = random.integers(0, 10, (entries, DIGITS))
    digits[:, 0] = random.integers(6, 10, entries)
    return [
        Entry(f"{FIRST[name // len(LAST)]} {LAST[name % len(LAST)]}", "".join(map(str, number)))
        for name, number in zip(names, digits, strict=True)
    ]


# First and last names, enough for 60,000 full names.
FIRST_NAMES = """
Aaron Abigail Adam Adrian Agnes Alan Albert Alice Alma Amanda Amber Amos Amy Andrea Andrew Angela Anita Ann Anna
Anthony Arnold Arthur Audrey Barbara Barry Beatrice Benjamin Bernard Bertha Beth Betty Beverly Blanche Bradley
Brandon Brenda Brian Bridget Bruce Calvin Carl Carla Carmen Carol Caroline Cecil Celia Charles Charlotte Chester
Christina Clara Clarence Claude Clifford Clyde Connie Cora Craig Crystal Curtis Cynthia Daisy Dale Dana Daniel
Darlene David Dawn Deborah Dennis Derek Diana Dolores Donald Donna Doris Dorothy Douglas Duane Earl Edgar Edith
Edna Edward Eileen Elaine Eleanor Elizabeth Ella Elmer Elsie Emily Emma Eric Ernest Erin Esther Ethel Eugene Eva
Evelyn Felix Fiona Floyd Frances Frank Frederick Gail Gary George Gerald Gina Gladys Glenn Gloria Gordon Grace
Greg Gwen Harold Harriet Harry Harvey Hazel Heather Helen Henry Herbert Herman Howard Ian Ida Irene Iris Isaac
Ivan Jack Jacob James Jane Janet Jason Jean Jeffrey Jenny Jerome Jessica Joan Joel John Jonathan Joseph Joyce
Juan Judith Julia Karen Karl Keith Kelly Kenneth Kevin Larry Laura Lawrence Leah Leo Leonard Lillian Linda Lloyd
Lois Louise Lucy Luis Lydia Marcus Maria Marion Mark Martha Martin Mary Matthew Megan Miriam Mona Nathan Nina
Norman
"""
LAST_NAMES = """
Abbott Acosta Adkins Aguilar Alexander Allison Alvarez Anderson Andrews Armstrong Arnold Ashby Atkins Austin Avery
Ayers Bailey Baker Baldwin Ballard Banks Barber Barker Barnes Barrett Barton Bates Baxter Beck Becker Bell Bennett
Benson Berry Bishop Black Blair Blake Boone Bowen Bowman Boyd Bradford Bradley Brady Brewer Briggs Brooks Brown
Bryant Buchanan Burgess Burke Burns Burton Bush Butler Byrd Caldwell Campbell Cannon Carlson Carpenter Carr Carroll
Carson Carter Casey Castillo Castro Chambers Chandler Chapman Chavez Christensen Clark Clayton Cobb Cohen Cole
Coleman Collins Conner Cook Cooper Copeland Cortez Cox Craig Crawford Cross Cruz Cummings Cunningham Curry Curtis
Dalton Daniels Davidson Davis Dawson Day Dean Delgado Dennis Diaz Dixon Dominguez Douglas Doyle Drake Duncan Dunn
Duran Eaton Edwards Elliott Ellis Erickson Espinoza Estrada Evans Farmer Ferguson Fernandez Fields Figueroa Fisher
Fitzgerald Fleming Fletcher Flores Flynn Forbes Ford Foster Fowler Fox Francis Franklin Frazier Freeman French
Fuller Garcia Gardner Garner Garrett Garza Gibbs Gibson Gilbert Gill Glover Gomez Gonzalez Goodman Goodwin Graham
Grant Graves Gray Green Greene Greer Griffin Griffith Gross Guerrero Gutierrez Guzman Hale Hall Hamilton Hammond
Hampton Hanson Hardin Hardy Harmon Harper Harrington Harris Harrison Hart Hartman Harvey Hawkins Hayes Haynes
Henderson Hensley Herrera Hicks Higgins Hill Hines Hodges Hoffman Holland Holloway Holmes Holt Hopkins Horton
Houston Howell Hubbard Hudson Huff Hughes Hunt Hunter Ingram Jackson Jacobs Jenkins Jennings Jensen Jimenez Johnson
Johnston Jones Jordan Joseph Keller Kelley Kennedy Klein Knight Lambert Lane Larson Lawson Leonard Lewis Lindsey
Little Logan Long Lopez Love Lowe Lucas Luna Lynch Lyons Mack Maldonado Malone Mann Manning Marsh Marshall Martin
Mason Matthews Maxwell McBride McCarthy McCormick McCoy McDaniel McDonald McGee McGuire McKinney Medina Mendez
Mendoza Meyer Miles Miller Mitchell Monroe Montgomery Moody Moore Morales Moran Moreno Morgan Morris Morrison
Morton Moss Mullins Murphy Murray Myers Nash Navarro Neal Nelson Newman Newton Nguyen Nichols Norman Norris Norton
Obrien Oliver Olson Ortega Ortiz Osborne Owen Padilla Palmer Parker Parks Parsons Patterson Payne Pearson Pena
Perez Perkins Perry
"""

FIRST, LAST = tuple(FIRST_NAMES.split()), tuple(LAST_NAMES.split())
