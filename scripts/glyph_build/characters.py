"""Which characters are candidates, what script each belongs to, and which split it goes to."""

import hashlib
import unicodedata

SYMBOLS = "#$%&?@{}[]()<>*+=~^/\\§¶©®¡¿«»±×÷¢£¥€¤½¼¾†‡‰™№℮∂√∞∫≈≠≤≥◊←↑→↓₽₺₹"
FURTHER_LATIN = "ƏəƒƠơƯư"  # the letters beyond Latin Extended-A that a hundred or more of the typefaces draw
SCRIPTS = ("Latin", "Digits", "Symbols", "Cyrillic", "Greek")
SPLITS = ("train", "val", "test")
VALIDATION_CLASSES = 45


def candidates() -> list[str]:
    """All characters that may become a class, first those that win against a look-alike."""
    blocks = [
        _letters(0x41, 0x7B, "LATIN"),
        [chr(code) for code in range(0x30, 0x3A)],
        _letters(0xC0, 0x100, "LATIN"),
        _letters(0x370, 0x3CF, "GREEK"),
        _letters(0x100, 0x180, "LATIN"),
        list(FURTHER_LATIN),
        list(SYMBOLS),
        _letters(0x400, 0x530, "CYRILLIC"),
    ]
    return [character for block in blocks for character in block]


def script_of(character: str) -> str:
    """The script, by the character's Unicode name."""
    if character in SYMBOLS:
        return "Symbols"
    return "Digits" if character.isdigit() else unicodedata.name(character).split()[0].title()


def is_small_letter(character: str) -> bool:
    """Whether a typeface of capitals only has no drawing of its own for it."""
    return unicodedata.category(character) == "Ll"


def letter_family(character: str) -> str:
    """The basic letter behind a variant: Zhe for its capital and small form and those with descender, breve, ..."""
    return unicodedata.name(character).split(" WITH ")[0].split()[-1]


def split_of(characters: list[str]) -> dict[str, str]:
    """Latin, digits and symbols train; whole Cyrillic letter families validate or test; Greek is in test alone."""
    cyrillic = [character for character in characters if script_of(character) == "Cyrillic"]
    families = sorted({letter_family(character) for character in cyrillic}, key=_drawn_lot)
    validation: set[str] = set()
    for family in families:
        if sum(letter_family(character) in validation for character in cyrillic) < VALIDATION_CLASSES:
            validation.add(family)
    split = dict.fromkeys(characters, "train")
    for character in characters:
        if script_of(character) == "Greek":
            split[character] = "test"
        elif script_of(character) == "Cyrillic":
            split[character] = "val" if letter_family(character) in validation else "test"
    return split


def _letters(first: int, end: int, script: str) -> list[str]:
    """Capital and small letters only: numeral signs and the like are little more than a stroke."""
    block = [chr(code) for code in range(first, end) if unicodedata.category(chr(code)) in ("Lu", "Ll")]
    return [character for character in block if unicodedata.name(character).startswith(script)]


def _drawn_lot(family: str) -> str:
    # An order that follows neither the alphabet nor the shapes, and never changes.
    return hashlib.sha256(family.encode()).hexdigest()
