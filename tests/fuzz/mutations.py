"""Mutations of files: damage as disks and transfers do it, and values as only somebody who means harm writes them.

`mutate` draws one mutation, or a few, of a seed. The same generator gives the same bytes, so a finding is a reader, a
seed of the campaign and a number.
"""

import contextlib
import copy
import gzip
import io
import json
import pickletools
import random
import re
import tomllib
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec

from trimaran.base.files import toml_text

NUMBERS = (
    *("NaN", "nan", "Infinity", "-Infinity", "inf", "-inf", "1e999", "-1e999", "1e308", "1e-320", "5e-324", "-0.0"),
    *("0", "-1", "1", "2", "0.5", "1e18", "65536", "2147483648", "4294967296", "9223372036854775807"),
    *("9223372036854775808", "-9223372036854775809", str(2**70), str(10**30), "1000000000", "9" * 400, "9" * 5000),
    *('""', '"1"', "null", "true", "false", "[]", "{}", "[[]]", "1_0", "0x10", "٣", "1979-05-27", "07:32:00", "--1"),
)
"""In place of a figure."""

TEXTS = (
    *("", " ", "\x00", "\n", "\x1b[31m", "\x1b]0;title\x07", "\u202eevil", "\ufeff", "\ud800", "..", "../../x", "/"),
    *("/dev/zero", "nan", "inf", "-1", "0", "1e999", "1e30 GB/s", "1000000000", "gpu0-1000000000", "x" * 10_000),
    *("{}", "[]", "None", "True", "%s%n", "{0.__class__}", "__class__", "gpu0", "cpu0", "GPU0", "0F0", "b0", "²", "١"),
)
"""In place of a text; one of them cannot be encoded, and stays as an escape."""

JUNK = (b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\x1b[2J", b'"', b"\\", b"{", b"[", b"\n", b"\r", b",", b"#")

Plain = Any


def mutate(content: bytes, others: Sequence[bytes], form: str, draw: random.Random) -> bytes:
    """One or a few mutations of a file.

    Args:
        content: of a seed
        others: seeds of any kind, for splices
        form: "json", "toml", "lines" (JSON a line), "msgpack", "gzip" (of JSON), "text", "binary", "pickle", "archive"
            (of torch.save) or "safetensors"
        draw: of everything random
    """
    if form == "gzip":
        return _mutate_packed(content, others, draw)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        content = _mutate_once(content, others, form, draw)
    return content


def _mutate_once(content: bytes, others: Sequence[bytes], form: str, draw: random.Random) -> bytes:
    kinds: list[Callable[[], bytes]] = [
        lambda: flip_bits(content, draw),
        lambda: content[: draw.randint(0, len(content))],
        lambda: drop(content, draw),
        lambda: repeat(content, draw),
        lambda: splice(content, others, draw),
        lambda: insert(content, draw.choice(JUNK) * draw.choice((1, 1, 1, 100)), draw),
    ]
    if form not in ("binary", "pickle", "archive", "safetensors"):
        kinds += 3 * [lambda: swap_token(content, draw)] + [lambda: swap_lines(content, draw)]
    structured = _STRUCTURED.get(form)
    if structured is not None:
        kinds += 8 * [lambda: structured(content, draw)]
    return draw.choice(kinds)()


def flip_bits(content: bytes, draw: random.Random) -> bytes:
    """Between one and eight bits."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 8) if changed else 0):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def drop(content: bytes, draw: random.Random) -> bytes:
    """A part left out."""
    start = draw.randint(0, len(content))
    return content[:start] + content[start + draw.choice((1, 4, 64, 1024)) :]


def repeat(content: bytes, draw: random.Random) -> bytes:
    """A part many times over."""
    start = draw.randint(0, len(content))
    part = content[start : start + draw.choice((1, 2, 16, 256))]
    times = min(draw.choice((2, 2, 3, 10, 10, 100, 100, 1000, 20_000)), 400_000 // max(1, len(part)))
    return content[:start] + part * times + content[start:]


def splice(content: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """The beginning of this file and the end of another, or a part of that in the middle of this."""
    other = draw.choice(others)
    cut, start = draw.randint(0, len(content)), draw.randint(0, len(other))
    return content[:cut] + (other[start:] if draw.random() < 0.5 else other[start : start + 200] + content[cut:])


def insert(content: bytes, junk: bytes, draw: random.Random) -> bytes:
    """Bytes that do not belong there."""
    cut = draw.randint(0, len(content))
    return content[:cut] + junk + content[cut:]


_TOKEN = re.compile(rb'-?\d[\d.eE+-]*|"(?:[^"\\\n]|\\.)*"|[A-Za-z_][\w.-]*')


def swap_token(content: bytes, draw: random.Random) -> bytes:
    """A figure, a text or a word replaced by a value that may be worse, or by another one of the file."""
    at, other = (_TOKEN.search(content, draw.randint(0, len(content))) for _ in range(2))
    if at is None or other is None:
        return content
    if draw.random() < 0.2:
        new = other[0]
    elif draw.random() < 0.6:
        new = draw.choice(NUMBERS).encode()
    else:
        text = draw.choice(TEXTS)
        quoted = at[0][:1] == b'"'
        new = json.dumps(text).encode() if quoted else text.encode(errors="replace")
    return content[: at.start()] + new + content[at.end() :]


def swap_lines(content: bytes, draw: random.Random) -> bytes:
    """A line left out, doubled, or exchanged for another one."""
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[at : at + 1] = draw.choice(([], [lines[at]] * 2, [lines[other]], [lines[at].rstrip(b"\n")]))
    return b"".join(lines)


# ---------------------------------------------------------------------------------------------------------------------
# Values inside of objects and lists


def _places(plain: Plain) -> list[tuple[Plain, Any]]:
    """Every place that holds a value: the object or list, and the key."""
    found: list[tuple[Plain, Any]] = []
    left = [plain]
    while left:
        value = left.pop()
        keys: Any = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        for key in keys:
            found.append((value, key))
            left.append(value[key])
    return found


_VALUES: tuple[Plain, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e18, 1e308, 1e-320, 10**9, 2**31, 2**63 - 1, 2**63, -(2**63) - 1),
    *(2**70, 10**30, 10**400, float("nan"), float("inf"), float("-inf"), [], {}, [[]], [None], {"": 0}, ["a"], [0, 0]),
)


def _new_value(draw: random.Random) -> Plain:
    """One that nothing else holds: trees are changed in place."""
    return copy.deepcopy(draw.choice(_VALUES))


def change_values(plain: Plain, draw: random.Random) -> Plain:
    """A tree of objects and lists with some of its values changed, in place where it can be."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        places = _places(plain)
        if not places:
            return _new_value(draw)
        holder, key = draw.choice(places)
        kind = draw.randrange(10)
        if kind == 0:
            del holder[key]
        elif kind == 1:
            other, where = draw.choice(places)
            holder[key] = other[where] if other[where] is not holder else None
            if _is_inside(holder, holder[key]):
                holder[key] = None
        elif kind == 2 and isinstance(holder, list):
            holder[key:key] = [holder[key]] * draw.choice((1, 2, 1000))
        elif kind == 3 and isinstance(holder, dict):
            holder[draw.choice(TEXTS)] = holder.pop(key) if draw.random() < 0.5 else _new_value(draw)
        elif kind == 4:
            holder[key] = draw.choice(TEXTS)
        elif kind == 5 and isinstance(holder[key], int | float):
            holder[key] = draw.choice(
                (-holder[key], holder[key] * 1000, holder[key] + 1, str(holder[key]), [holder[key]])
            )
        elif kind == 6 and isinstance(holder, list):
            draw.shuffle(holder)
        elif kind == 7 and isinstance(holder[key], str):
            text = holder[key]
            cut = draw.randint(0, len(text))
            holder[key] = draw.choice((text[:cut], text * 2, text[:cut] + draw.choice(TEXTS) + text[cut:]))
        else:
            holder[key] = _new_value(draw)
    return plain


def _is_inside(holder: Plain, value: Plain) -> bool:
    left = [value]
    while left:
        one = left.pop()
        if one is holder:
            return True
        left.extend(one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())
    return False


def _nest(text: str, draw: random.Random) -> str:
    """A value of the text inside of very many lists or objects."""
    depth = draw.choice((50, 90, 110, 200, 900, 1100, 1100, 5000, 100_000))
    head, tail = draw.choice((("[", "]"), ('{"a":', "}"), ("[[],", "]")))
    found = list(re.finditer(r"(?<=[:\[,])\s*-?\d[\d.e+-]*", text)) or list(re.finditer("", text))
    at = draw.choice(found)
    return text[: at.start()] + head * depth + (at[0].strip() or "0") + tail * depth + text[at.end() :]


def change_json(content: bytes, draw: random.Random) -> bytes:
    """JSON with other values, doubled keys or very deep values."""
    kind = draw.randrange(12)
    if kind == 0:
        return _nest(content.decode(errors="replace"), draw).encode()
    if kind == 1:
        pairs = list(re.finditer(rb'"\w+"\s*:\s*(?:-?\d[\d.e+-]*|"[^"\\]*")', content))
        if pairs:
            at = draw.choice(pairs)
            return content[: at.end()] + b", " + at[0].split(b":")[0] + b": 7" + content[at.end() :]
    try:
        plain = json.loads(content)
    except (ValueError, RecursionError):
        return content
    return json.dumps(change_values(plain, draw)).encode()


def change_lines(content: bytes, draw: random.Random) -> bytes:
    """One line of JSON lines changed."""
    lines = content.split(b"\n")
    at = draw.randrange(len(lines))
    lines[at] = change_json(lines[at], draw)
    return b"\n".join(lines)


_LONG_TOML = 15_000
"""What an earlier mutation nested may take the parser long here [characters]."""


def change_toml(content: bytes, draw: random.Random) -> bytes:
    """TOML with other values, doubled keys or very deep values."""
    kind = draw.randrange(12)
    text = content.decode(errors="replace")
    if kind == 0:
        depth = draw.choice((50, 200, 1100, 20_000))
        deep = (f"a = {'[' * depth}{']' * depth}\n", f"{'a.' * depth}a = 1\n", f"[{'a.' * depth}a]\nb = 1\n")
        deep = (*deep, f"a = {'{a = ' * depth}1{'}' * depth}\n")
        return (draw.choice(deep) + text if draw.random() < 0.5 else text + "\n" + draw.choice(deep)).encode()
    if len(text) > _LONG_TOML:
        return content
    try:
        plain = tomllib.loads(text)
        changed = change_values(plain, draw)
        return toml_text(changed if isinstance(changed, dict) else plain).encode(errors="replace")
    except (ValueError, RecursionError):
        return content


def change_msgpack(content: bytes, draw: random.Random) -> bytes:
    """MessagePack with other values."""
    try:
        changed = change_values(msgspec.msgpack.decode(content), draw)
        return msgspec.msgpack.encode(changed)
    except (msgspec.MsgspecError, OverflowError, ValueError, TypeError, RecursionError):
        return content


# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints of others


MARK = "trimaran.called"
"""Event that a call which a file has made leaves (`sys.audit`)."""

_CALLED: tuple[tuple[str, str, str], ...] = (
    ("sys", "audit", MARK),
    ("os", "system", "true"),
    ("posix", "system", "true"),
    ("subprocess", "getoutput", "true"),
    ("builtins", "eval", f"__import__('sys').audit('{MARK}')"),
    ("builtins", "exec", f"__import__('sys').audit('{MARK}')"),
    ("builtins", "__import__", "antigravity"),
    ("torch.hub", "load", "nobody/nothing"),
    ("torch", "load", "nothing.pt"),
    ("torch.storage", "_load_from_bytes", "x"),
    ("torch.serialization", "load", "nothing.pt"),
    ("torch._utils", "_import_dotted_name", "os.system"),
    ("torch.distributed.checkpoint.metadata", "os.system", "true"),
    ("torch.distributed.checkpoint.filesystem", "shutil.rmtree", "nothing"),
    ("torch", "Size", "x"),
    ("collections", "OrderedDict", "x"),
)
"""What a file may ask to have called, by module, name and argument."""


def _call(draw: random.Random) -> bytes:
    """The instructions of a pickle that call something, and leave what it returns."""
    module, name, argument = draw.choice(_CALLED)
    text = b"X" + len(argument.encode()).to_bytes(4, "little") + argument.encode()
    if draw.random() < 0.5:
        return f"c{module}\n{name}\n".encode() + text + b"\x85R"
    parts = b"".join(b"\x8c" + bytes([len(part)]) + part.encode() for part in (module, name))
    return parts + b"\x93" + text + draw.choice((b"\x85R", b"\x85\x81", b"\x85}\x92"))


def change_pickle(content: bytes, draw: random.Random) -> bytes:
    """A pickle with another instruction, name or number; or one that has something called, or is very deep."""
    places: list[int] = []
    with contextlib.suppress(Exception):  # of what an earlier mutation has left
        places += [place or 0 for _, _, place in pickletools.genops(content)]
    if len(places) < 4:
        return flip_bits(content, draw)
    number = draw.randrange(1, len(places) - 1)
    start, stop = places[number], places[number + 1]
    kind = draw.randrange(8)
    if kind < 3:
        return content[:start] + _call(draw) + content[start if draw.random() < 0.5 else stop :]
    if kind == 3:
        other = draw.randrange(len(places) - 1)
        return content[:start] + content[places[other] : places[other + 1]] + content[stop:]
    if kind == 4:
        size = draw.choice((2**31 - 1, -1, 2**20, 0, 255, 2**30))
        return content[:start] + b"J" + size.to_bytes(4, "little", signed=True) + content[stop:]
    if kind == 5:
        large = draw.choice((2**40, 2**62, 2**63, 2**70, -(2**70))).to_bytes(10, "little", signed=True)
        return content[:start] + b"\x8a\x0a" + large + content[stop:]
    if kind == 6:
        deep = draw.choice((b"\x85", b"]", b"(", b"2", b"\x86", b"N\x86", b"(l", b"}"))
        return content[:start] + b"N" + deep * draw.choice((10, 200, 5000, 200_000)) + content[start:]
    return content[:start] + content[start:stop] * draw.choice((2, 100, 20_000)) + content[stop:]


def change_archive(content: bytes, draw: random.Random) -> bytes:
    """An archive of torch.save whose records are others, of which the checksums are right."""
    changed = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as before, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            records = [(one.filename, before.read(one)) for one in before.infolist()]
            at = draw.randrange(len(records))
            kind, (name, record) = draw.randrange(8), records[at]
            if kind < 3:
                at = next((at for at, (name, _) in enumerate(records) if name.endswith("data.pkl")), at)
                records[at] = records[at][0], change_pickle(records[at][1], draw)
            elif kind == 3:
                del records[at]
            elif kind == 4:
                records[at] = name, record[: draw.randint(0, len(record))] + bytes(draw.choice((0, 1, 10**6)))
            elif kind == 5:
                records[at] = draw.choice((*TEXTS, "archive/../../x", "/etc/x", records[0][0])), record
            elif kind == 6:
                other = draw.choice((name, "archive/data.pkl", "archive/constants.pkl", "archive/.data/x"))
                records.append((other, record))
            else:
                records[at] = name, draw.choice(records)[1]
            packs = draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
            with zipfile.ZipFile(changed, "w", packs) as after:
                for name, record in records:
                    after.writestr(name.encode("ascii", "replace").decode() or "x", record)
    except Exception:  # noqa: BLE001 of what an earlier mutation has left
        return flip_bits(content, draw)
    return changed.getvalue()


def change_safetensors(content: bytes, draw: random.Random) -> bytes:
    """A safetensors file with another header, whose length is right."""
    size = int.from_bytes(content[:8], "little")
    header = change_json(content[8 : 8 + size], draw) if size < len(content) else content
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


_STRUCTURED: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "json": change_json,
    "lines": change_lines,
    "toml": change_toml,
    "msgpack": change_msgpack,
    "pickle": change_pickle,
    "archive": change_archive,
    "safetensors": change_safetensors,
}


# ---------------------------------------------------------------------------------------------------------------------
# Packed files


@cache
def _zeros() -> bytes:
    """Ten million zeros, packed; such parts one behind another are a file that unpacks to all of them."""
    return gzip.compress(bytes(10_000_000))


def _mutate_packed(content: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    kind = draw.randrange(8)
    if kind == 0:
        return content[: draw.randrange(2)] * 0 + content + _zeros() * draw.choice((1, 1, 20, 20, 400))
    if kind < 5:
        return gzip.compress(mutate(gzip.decompress(content), others, "json", draw), compresslevel=1)
    if kind == 5:
        return content + zlib.compress(draw.choice(others)[:1000])
    changed = content
    for _ in range(draw.choice((1, 1, 2))):
        changed = _mutate_once(changed, others, "binary", draw)
    return changed
