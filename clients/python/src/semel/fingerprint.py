"""Fingerprints, scheme 1: what tells a retry from another intent under the same key.

A fingerprint is a scheme and the SHA-256 of the request in that scheme's normal form. Two requests that mean the same
have one fingerprint, however they were written. The digests are those of the service and of every other client: the
published vectors pin them.

>>> first = Fingerprint.json_text('{"amount": 100, "currency": "eur"}')
>>> first == Fingerprint.json({"currency": "eur", "amount": 1e2})
True
>>> first == Fingerprint.json({"currency": "eur", "amount": 101})
False
"""

from __future__ import annotations

import decimal
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, NoReturn, Optional, Sequence, Tuple, Union

__all__ = ["SCHEME", "Fingerprint", "FingerprintError", "Part", "canonical", "canonical_text"]

#: The scheme that this module computes.
SCHEME = 1

#: Digits of the longest integer that has a canonical form.
INTEGER_DIGITS_MAX = 1024
#: Arrays and objects within each other.
DEPTH_MAX = 64
#: Pointers that one request may leave out.
IGNORE_MAX = 16

# Beyond this many digits before the point, a number with a fraction is above the greatest double.
_POINT_MAX = 310
# With the first digit this far behind the point, a number is below half the least double, which rounds to zero.
_POINT_MIN = -330
# No text is long enough to have so many digits that an exponent beyond this one can be told from it.
_EXPONENT_DIGITS_MAX = 18
_ABSENT = b"\xff\xff\xff\xff"

_NUMBER = re.compile(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?\Z", re.ASCII)
_ESCAPED = re.compile('["\\\\\x00-\x1f]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}

Bytes = Union[bytes, bytearray, memoryview]
Text = Union[str, Bytes]


class FingerprintError(ValueError):
    """Why a request has no fingerprint. No content of the request is in it."""


class _Number(str):
    """A number as its exact source text: one that went through a double is another number."""


def _strict(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise FingerprintError("a member name that the object already has; send each member once")
    return members


def _no_constant(_: str) -> NoReturn:
    raise FingerprintError("NaN and Infinity are no JSON")


def _parse(text: Text) -> Any:
    if not isinstance(text, str):
        try:
            text = bytes(text).decode("utf-8")
        except UnicodeDecodeError:
            raise FingerprintError("the text is no UTF-8") from None
    if text.startswith("\ufeff"):
        raise FingerprintError("the text begins with a byte order mark")
    try:
        return json.loads(
            text, parse_int=_Number, parse_float=_Number, parse_constant=_no_constant, object_pairs_hook=_strict
        )
    except FingerprintError:
        raise
    except RecursionError:
        raise FingerprintError(f"arrays and objects are nested more than {DEPTH_MAX} deep") from None
    except json.JSONDecodeError as error:
        # Its own message quotes nothing of the text.
        raise FingerprintError(f"the text is no JSON: {error.msg}, character {error.pos}") from None


def _string(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise FingerprintError("a string holds half of a surrogate pair") from None

    def escape(found: "re.Match[str]") -> str:
        character = found.group()
        return _SHORT.get(character) or f"\\u{ord(character):04x}"

    return '"' + _ESCAPED.sub(escape, text) + '"'


def _number(text: str) -> str:
    if text.isdigit() and text.isascii() and len(text) <= INTEGER_DIGITS_MAX and (text[0] != "0" or text == "0"):
        return text
    match = _NUMBER.match(text)
    if match is None:
        raise FingerprintError("a number that JSON can't write")
    sign, whole, fraction, exponent_text = match.group(1), match.group(2), match.group(3) or "", match.group(4) or "0"
    digits = (whole + fraction).rstrip("0")
    leading = len(digits) - len(digits.lstrip("0"))
    digits = digits[leading:]
    if not digits:
        return "0"
    # The value is 0.DIGITS × 10^point, and an integer exactly if the point lies behind all digits.
    point = _exponent(exponent_text) + len(whole) - leading
    if point >= len(digits):
        if point > INTEGER_DIGITS_MAX:
            raise FingerprintError(f"an integer of more than {INTEGER_DIGITS_MAX} digits; send it as a string")
        return sign + digits + "0" * (point - len(digits))
    if point > _POINT_MAX:
        raise FingerprintError("a number with a fraction that is beyond a double; send it as a string")
    if point < _POINT_MIN:
        return "0"
    nearest = float(f"0.{digits}e{point}")
    if nearest == float("inf"):
        raise FingerprintError("a number with a fraction that is beyond a double; send it as a string")
    return sign + _ecmascript(nearest) if nearest else "0"


def _exponent(text: str) -> int:
    digits = text.lstrip("+-").lstrip("0")
    value = int(digits or "0") if len(digits) <= _EXPONENT_DIGITS_MAX else 10**_EXPONENT_DIGITS_MAX
    return -value if text.startswith("-") else value


def _ecmascript(value: float) -> str:
    """A positive double as ECMAScript's Number::toString writes it. Its digits are those of `repr`: the fewest that tell
    the double from its neighbours."""
    mantissa, _, exponent = repr(value).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    stripped = digits.lstrip("0")
    point = len(whole) - (len(digits) - len(stripped)) + int(exponent or 0)
    digits = stripped.rstrip("0")
    if len(digits) <= point <= 21:
        return digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    first, rest = digits[0], digits[1:]
    return first + ("." + rest if rest else "") + f"e{point - 1:+d}"


def _value_number(value: Union[int, float, decimal.Decimal]) -> str:
    """A number of Python by the text that `json.dumps` writes for it."""
    if isinstance(value, int):
        if value.bit_length() > 4 * INTEGER_DIGITS_MAX:
            raise FingerprintError(f"an integer of more than {INTEGER_DIGITS_MAX} digits; send it as a string")
        return _number(int.__repr__(value))
    if isinstance(value, float):
        return _number(float.__repr__(value))
    return _number(str(value))


_Rests = Sequence[Tuple[str, ...]]
#: A part that is left out.
_IGNORED = None


def _pointers(ignore: Iterable[str]) -> _Rests:
    if isinstance(ignore, str):
        raise FingerprintError("ignored pointers are a list")
    pointers: List[Tuple[str, ...]] = []
    for index, pointer in enumerate(ignore):
        if index == IGNORE_MAX:
            raise FingerprintError(f"more than {IGNORE_MAX} ignored pointers")
        if pointer == "":
            raise FingerprintError(f"ignored pointer {index}: the empty pointer is the whole request; name a part of it")
        if not pointer.startswith("/") or re.search(r"~(?![01])", pointer):
            raise FingerprintError(
                f"ignored pointer {index}: it must start with / and use ~ only as ~0 (for ~) and ~1 (for /)"
            )
        tokens = pointer[1:].split("/")
        pointers.append(tuple(token.replace("~1", "/").replace("~0", "~") for token in tokens))
    return pointers


def _step(rests: _Rests, token: str) -> Optional[_Rests]:
    """What applies below this token; nothing where the part itself is left out."""
    inner = [rest[1:] for rest in rests if rest[0] == token]
    return _IGNORED if any(not rest for rest in inner) else inner


def _deeper(depth_left: int) -> int:
    if depth_left == 0:
        raise FingerprintError(f"arrays and objects are nested more than {DEPTH_MAX} deep")
    return depth_left - 1


def _check(value: Any, depth_left: int) -> None:
    """Checks what isn't hashed, so that leaving a part out never changes which requests are acceptable."""
    if isinstance(value, dict):
        depth_left = _deeper(depth_left)
        for name, member in value.items():
            _name(name)
            _check(member, depth_left)
    elif isinstance(value, (list, tuple)):
        depth_left = _deeper(depth_left)
        for item in value:
            _check(item, depth_left)
    elif isinstance(value, str) and not isinstance(value, _Number):
        _string(value)


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise FingerprintError("a member name that is no string")
    return _string(name)


def _write(out: List[str], value: Any, rests: _Rests, depth_left: int) -> None:
    if value is None:
        out.append("null")
    elif value is True:
        out.append("true")
    elif value is False:
        out.append("false")
    elif isinstance(value, _Number):
        out.append(_number(str(value)))
    elif isinstance(value, str):
        out.append(_string(value))
    elif isinstance(value, (int, float, decimal.Decimal)):
        out.append(_value_number(value))
    elif isinstance(value, (list, tuple)):
        depth_left = _deeper(depth_left)
        separator = "["
        for index, item in enumerate(value):
            inner = _step(rests, str(index)) if rests else rests
            if inner is _IGNORED:
                _check(item, depth_left)
                continue
            out.append(separator)
            separator = ","
            _write(out, item, inner, depth_left)
        out.append("[]" if separator == "[" else "]")
    elif isinstance(value, dict):
        depth_left = _deeper(depth_left)
        names = {name: _name(name) for name in value}
        separator = "{"
        for name in sorted(names, key=lambda name: name.encode("utf-16-be")):
            inner = _step(rests, name) if rests else rests
            if inner is _IGNORED:
                _check(value[name], depth_left)
                continue
            out.append(separator + names[name] + ":")
            separator = ","
            _write(out, value[name], inner, depth_left)
        out.append("{}" if separator == "{" else "}")
    else:
        raise FingerprintError(f"a value that JSON hasn't got: {type(value).__name__}")


def canonical(value: Any, ignore: Iterable[str] = ()) -> str:
    """The canonical text of a JSON value: one text for all ways to write the value, and another for every other value.

    A float counts as the text that `json.dumps` writes for it; a Decimal keeps all its digits. `ignore` names parts that
    don't count, by JSON pointers (RFC 6901)."""
    out: List[str] = []
    _write(out, value, _pointers(ignore), DEPTH_MAX)
    return "".join(out)


def canonical_text(text: Text, ignore: Iterable[str] = ()) -> str:
    """The canonical text of JSON text."""
    return canonical(_parse(text), ignore)


@dataclass(frozen=True)
class Part:
    """One part of a multipart body."""

    content: bytes
    name: Optional[Text] = None
    filename: Optional[Text] = None
    content_type: Optional[Text] = None


def _bytes(value: Text) -> bytes:
    return value.encode("utf-8") if isinstance(value, str) else bytes(value)


def _add(value: Optional[Text]) -> bytes:
    """A value that may be absent, so that neighbours never run into each other."""
    if value is None:
        return _ABSENT
    data = _bytes(value)
    return len(data).to_bytes(4, "big") + data


def _digest(form: str, *content: Bytes) -> bytes:
    digest = hashlib.sha256(b"semel-fp\x01" + form.encode("ascii"))
    for part in content:
        digest.update(part)
    return digest.digest()


@dataclass(frozen=True)
class Fingerprint:
    """A scheme and the digest of one request under it."""

    scheme: int
    digest: bytes
    #: What kind of content it is of: `j` JSON, `r` raw, `m` multipart, `h` HTTP. Empty where it was computed elsewhere.
    form: str = ""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fingerprint):
            return NotImplemented
        return (self.scheme, self.digest) == (other.scheme, other.digest)

    def __hash__(self) -> int:
        return hash((self.scheme, self.digest))

    @property
    def hex(self) -> str:
        """The digest as 64 lower-case hexadecimal digits."""
        return self.digest.hex()

    @classmethod
    def json(cls, value: Any, ignore: Iterable[str] = ()) -> Fingerprint:
        """Of a JSON value, as Python holds it."""
        return cls(SCHEME, _digest("j", canonical(value, ignore).encode("utf-8")), "j")

    @classmethod
    def json_text(cls, text: Text, ignore: Iterable[str] = ()) -> Fingerprint:
        """Of JSON text. What leaves room for interpretation is refused: a member named twice, half of a surrogate pair, …"""
        return cls(SCHEME, _digest("j", canonical_text(text, ignore).encode("utf-8")), "j")

    @classmethod
    def raw(cls, data: Bytes) -> Fingerprint:
        """Of bytes as they are. JSON text hashed as bytes has another one than as JSON."""
        return cls(SCHEME, _digest("r", data), "r")

    @classmethod
    def multipart(cls, parts: Iterable[Part]) -> Fingerprint:
        """Of the parts of a multipart request in order, whatever the boundary."""
        content = bytearray()
        for part in parts:
            content += _add(part.name) + _add(part.filename) + _add(part.content_type)
            content += hashlib.sha256(part.content).digest()
        return cls(SCHEME, _digest("m", content), "m")

    @classmethod
    def http(
        cls,
        method: Text,
        path: Text,
        query: Optional[Text],
        headers: Iterable[Tuple[str, Optional[Text]]],
        body: Fingerprint,
    ) -> Fingerprint:
        """Of a whole HTTP request. Path and query as received; a path with a bare `?` has an empty query, which isn't none.
        `headers` are the chosen ones, in a fixed order: several lines of one joined by ", ", one that isn't there None."""
        if body.form not in ("j", "r", "m"):
            raise FingerprintError("a body's fingerprint is one of this module's json, json_text, raw or multipart")
        chosen = [_add(name.lower()) + _add(value) for name, value in headers]
        content = _add(method) + _add(path) + _add(query) + len(chosen).to_bytes(4, "big") + b"".join(chosen)
        return cls(SCHEME, _digest("h", content + body.form.encode("ascii") + body.digest), "h")
