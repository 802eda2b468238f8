"""Formats of JSON schemas as patterns, in the library's syntax and exact where the library's own are laxer than their RFCs."""

from __future__ import annotations

_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TIME_PARTS = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION = f"P(?:(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:{_TIME_PARTS})?|{_TIME_PARTS}|[0-9]+W)"
# A label of RFC 1123 without "--" at its third place: such labels are Punycode (RFC 5890), which no regular expression checks.
_ALNUM = "[A-Za-z0-9]"
_HYPHEN = "[A-Za-z0-9\\-]"
_LABEL = f"{_ALNUM}(?:{_HYPHEN}{{0,2}}{_ALNUM}|{_HYPHEN}(?:{_ALNUM}{_HYPHEN}|\\-{_ALNUM}){_HYPHEN}{{0,58}}{_ALNUM})?"
_HOST = f"{_LABEL}(?:\\.{_LABEL})*"
_ATOM = r"[A-Za-z0-9!\x23$%\x26'*+\-/=?^_`{|}\x7E]+".replace("{|}", r"\{\|\}").replace("^_", r"\^_")
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = f"(?:{_BYTE}\\.){{3}}{_BYTE}"
_H16 = "[0-9A-Fa-f]{1,4}"
_LAST = f"(?:{_H16}:{_H16}|{_IPV4})"
# RFC 3986, section 3.2.2
_IPV6 = (
    f"(?:(?:{_H16}:){{6}}{_LAST}|::(?:{_H16}:){{5}}{_LAST}|(?:{_H16})?::(?:{_H16}:){{4}}{_LAST}"
    + "".join(f"|(?:(?:{_H16}:){{0,{n}}}{_H16})?::(?:{_H16}:){{{4 - n}}}{_LAST}" for n in (1, 2))
    + f"|(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LAST}|(?:(?:{_H16}:){{0,4}}{_H16})?::{_LAST}"
    + f"|(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}|(?:(?:{_H16}:){{0,6}}{_H16})?::)"
)
_HEX = "[0-9A-Fa-f]"
_PERCENT = f"%{_HEX}{{2}}"
_UNRESERVED = r"A-Za-z0-9\-._\x7E!$\x26'()*+,;="
_PCHAR = f"(?:[{_UNRESERVED}:@]|{_PERCENT})"
_AUTHORITY = (
    f"(?:(?:[{_UNRESERVED}:]|{_PERCENT})*@)?(?:\\[(?:{_IPV6}|v{_HEX}+\\.[{_UNRESERVED}:]+)\\]|(?:[{_UNRESERVED}]|{_PERCENT})*)(?::[0-9]*)?"
)
_PATH = f"(?:/{_PCHAR}*)*"
_ROOTED = f"/(?:{_PCHAR}+{_PATH})?"
_TAIL = f"(?:\\?(?:{_PCHAR}|[/?])*)?(?:\\x23(?:{_PCHAR}|[/?])*)?"
_URI = f"[A-Za-z][A-Za-z0-9+\\-.]*:(?://{_AUTHORITY}{_PATH}|{_ROOTED}|{_PCHAR}+{_PATH}|){_TAIL}"
_RELATIVE = f"(?://{_AUTHORITY}{_PATH}|{_ROOTED}|(?:[{_UNRESERVED}@]|{_PERCENT})+{_PATH}|){_TAIL}"
_POINTER = r"(?:/(?:[^~/]|~[01])*)*".replace("~", r"\x7E")

#: format: (patterns that a text matches whole, all of them; its longest length).
FORMATS: dict[str, tuple[list[str], int | None]] = {
    "date": ([_DATE], None),  # RFC 3339 (year 0000 is left out: Python and others have none)
    "time": ([_TIME], None),  # RFC 3339 without leap seconds, whose place depends on the offset
    "date-time": ([f"{_DATE}[Tt]{_TIME}"], None),
    "duration": ([_DURATION], None),  # RFC 3339, appendix A
    "hostname": ([_HOST], 253),  # RFC 1123
    "email": ([f"{_ATOM}(?:\\.{_ATOM})*@{_HOST}", "[^@]{1,64}@[^@]{1,253}"], None),  # RFC 5321 with a dot-string and a domain
    "ipv4": ([_IPV4], None),  # RFC 2673
    "ipv6": ([_IPV6], None),  # RFC 4291
    "uuid": ([f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"], None),  # RFC 4122
    "uri": ([_URI], None),  # RFC 3986
    "uri-reference": ([f"(?:{_URI}|{_RELATIVE})"], None),
    "json-pointer": ([_POINTER], None),  # RFC 6901
    "relative-json-pointer": ([f"(?:0|[1-9][0-9]*)(?:\\x23|{_POINTER})"], None),
}


def format_schemas(name: str) -> list[dict[str, object]] | None:
    """What a text of this format fits, as schemas with `pattern` (in the library's syntax) and `maxLength`; None for others."""
    if name not in FORMATS:
        return None
    patterns, longest = FORMATS[name]
    limits = {} if longest is None else {"maxLength": longest}
    return [{"pattern": f"^(?:{pattern})$", **limits} for pattern in patterns]
