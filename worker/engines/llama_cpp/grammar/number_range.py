"""Numbers between bounds, as grammar: whole ones with any integer bounds, others with bounds that are whole."""

from typing import Final

from worker.engines.llama_cpp.grammar.json_values import DIGIT, FRACTION, WHOLE
from worker.engines.llama_cpp.grammar.tree import (
    Chars,
    Choice,
    Node,
    Repeat,
    Unsupported,
    choice,
    concat,
    optional,
    text,
)

MAX_DIGITS: Final = 16
_MOST: Final = 10**MAX_DIGITS - 1
_ZEROS: Final = optional(concat(text("."), Repeat(text("0"), 1, MAX_DIGITS)))


def whole_numbers(low: int | None, high: int | None) -> Node:
    """Integers from `low` to `high`, both included; None is no bound. They have at most 16 digits."""
    least, most = _bounds(low, high)
    options: list[Node] = []
    if least < 0:
        options.append(concat(text("-"), _natural(max(1, -most), -least)))
    if most >= 0:
        options.append(_natural(max(0, least), most))
    return choice(*options)


def numbers(low: int | None, high: int | None, *, above: bool = False, below: bool = False) -> Node:
    """Numbers from `low` to `high`, without exponents; `above` leaves `low` out, `below` leaves `high` out."""
    least, most = _bounds(low, high)
    options: list[Node] = []
    if least < 0:
        # Zero is on the other side, and -0.5 must stay possible: the magnitudes start behind it.
        nearest, open_end = (-most, below) if most < 0 else (0, True)
        magnitudes = _magnitudes(nearest, -least, above=open_end, below=above)
        options += [concat(text("-"), magnitude) for magnitude in magnitudes]
    if most >= 0:
        start, open_start = (least, above) if least >= 0 else (0, False)
        options += _magnitudes(start, most, above=open_start, below=below)
    if not options:
        raise Unsupported("The schema's bounds leave no number.")
    return choice(*options)


def _bounds(low: int | None, high: int | None) -> tuple[int, int]:
    least, most = -_MOST if low is None else low, _MOST if high is None else high
    if least > most or any(bound is not None and abs(bound) >= _MOST for bound in (low, high)):
        raise Unsupported("The schema's bounds leave no number of at most 16 digits.")
    return least, most


def _magnitudes(low: int, high: int, *, above: bool, below: bool) -> list[Node]:
    """Numbers of at least zero: each whole one with any fraction, but the last only with zeros."""
    options: list[Node] = []
    if low < high:
        options.append(concat(text(str(low)), _some_fraction() if above else optional(FRACTION)))
    if high == _MOST:
        # Not a bound, only the end of what has so many digits.
        options.append(concat(_natural(low + 1, high), optional(FRACTION)))
    elif low + 1 < high:
        options.append(concat(_natural(low + 1, high - 1), optional(FRACTION)))
    if high != _MOST and not below and (low < high or not above):
        options.append(concat(text(str(high)), _ZEROS))
    return options


def _some_fraction() -> Node:
    """A fraction that is not zero."""
    zeros = Repeat(text("0"), 0, MAX_DIGITS - 1)
    return concat(text("."), zeros, Chars(((0x31, 0x39),)), Repeat(DIGIT, 0, MAX_DIGITS - 1))


def _natural(low: int, high: int) -> Node:
    """Integers of at least zero, without leading zeros."""
    if (low, high) == (0, _MOST):
        return WHOLE
    options: list[Node] = []
    complete: list[int] = []
    for digits in range(len(str(low)), len(str(high)) + 1):
        smallest, largest = 0 if digits == 1 else 10 ** (digits - 1), 10**digits - 1
        if low <= max(smallest, 1) and largest <= high and low > 0:
            complete.append(digits)
        else:
            options.append(_same_length(str(max(low, smallest)), str(min(high, largest))))
    if complete:
        more = Repeat(DIGIT, complete[0] - 1, complete[-1] - 1)
        options.append(concat(_digits("1", "9"), *([more] if more.most else [])))
    return choice(*options)


def _same_length(low: str, high: str) -> Node:
    """Numbers between two with as many digits."""
    if not low:
        return concat()
    rest = len(low) - 1
    if low[1:] == "0" * rest and high[1:] == "9" * rest:
        return concat(_digits(low[0], high[0]), *([Repeat(DIGIT, rest, rest)] if rest else []))
    if low[0] == high[0]:
        return concat(text(low[0]), _same_length(low[1:], high[1:]))
    options: list[Node] = [concat(text(low[0]), _same_length(low[1:], "9" * rest))]
    if int(low[0]) + 1 < int(high[0]):
        options.append(
            concat(_digits(chr(ord(low[0]) + 1), chr(ord(high[0]) - 1)), *([Repeat(DIGIT, rest, rest)] if rest else []))
        )
    options.append(concat(text(high[0]), _same_length("0" * rest, high[1:])))
    return Choice(tuple(options))


def _digits(low: str, high: str) -> Node:
    return Chars(((ord(low), ord(high)),))
