"""A report as a tree of elements, and what its numbers, images and references are."""

import base64
import html.parser
import re
import struct
import zlib

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
# What HTML lets end by itself: an element, and what begins or ends where it is still open.
ENDS = {"li": {"li"}, "option": {"option"}, "p": {"p", "ul", "ol", "table", "div", "section", "figure", "details"},
        "td": {"td", "th", "tr", "tbody", "tfoot"}, "th": {"td", "th", "tr", "tbody", "tfoot"},
        "tr": {"tr", "tbody", "tfoot"}, "thead": {"tbody", "tfoot"}, "tbody": {"tbody", "tfoot"}, "dt": {"dt", "dd"},
        "dd": {"dt", "dd"}, "colgroup": {"thead", "tbody", "tr"}, "head": {"body"}}
ENDED_BY_PARENT = set(ENDS) | {"body", "html"}


class Node:
    def __init__(self, tag, attributes, parent):
        self.tag = tag
        self.attributes = attributes
        self.parent = parent
        self.children = []  # nodes and text

    def __repr__(self):
        return f"<{self.tag} {self.attributes}>"

    def get(self, name, default=None):
        return self.attributes.get(name, default)

    def has(self, name):
        return name in self.attributes

    def nodes(self):
        """All below, in the order of the page."""
        for child in self.children:
            if isinstance(child, Node):
                yield child
                yield from child.nodes()

    @property
    def text(self):
        return "".join(child.text if isinstance(child, Node) else child for child in self.children)

    def find(self, selector):
        """A part of CSS: "table.errors tbody tr[data-i]", "tr[data-fact=model]", "th[scope=row]", "#search"."""
        found = [self]
        for step in selector.split():
            tag, rest = re.fullmatch(r"((?:[a-z][a-z0-9]*)?)(.*)", step).groups()
            wanted = []
            for part in re.findall(r"\.[\w-]+|#[\w-]+|\[[^\]]+\]", rest):
                name, _, value = part[1:].rstrip("]").partition("=")
                wanted.append({".": ("class", part[1:]), "#": ("id", part[1:]), "[": (name, value if "=" in part else None)}[part[0]])
            below = []
            for node in found:
                for child in node.nodes():
                    if (not tag or child.tag == tag) and all(child._is(*w) for w in wanted) and child not in below[-1:]:
                        below.append(child)
            found = list(dict.fromkeys(below))
        return found

    def _is(self, name, value):
        if name not in self.attributes:
            return False
        if name == "class":
            return value in self.attributes["class"].split()
        return value is None or self.attributes[name] == value

    def one(self, selector):
        found = self.find(selector)
        if len(found) != 1:
            raise AssertionError(f"{len(found)} elements in {self!r} are {selector!r}, must be one")
        return found[0]


class _Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.root = Node("", {}, None)
        self.open = [self.root]

    def handle_decl(self, decl):
        if decl.lower() != "doctype html" or self.root.children:
            raise AssertionError(f"declaration {decl!r}")

    def unknown_decl(self, data):
        raise AssertionError(f"declaration {data!r}")

    def handle_pi(self, data):
        raise AssertionError(f"instruction {data!r}")

    def _begin(self, tag, attributes):
        names = [name for name, _ in attributes]
        if len(set(names)) != len(names):
            raise AssertionError(f"<{tag}> has an attribute twice: {names}")
        while self.open[-1].tag in ENDS and tag in ENDS[self.open[-1].tag]:
            self.open.pop()
        node = Node(tag, {name: value or "" for name, value in attributes}, self.open[-1])
        self.open[-1].children.append(node)
        return node

    def handle_starttag(self, tag, attributes):
        node = self._begin(tag, attributes)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag, attributes):
        node = self._begin(tag, attributes)
        # "/>" ends an element of a drawing, but nothing of HTML.
        within = self.open + [node]
        if tag not in VOID and not any(n.tag == "svg" for n in within):
            self.open.append(node)

    def handle_endtag(self, tag):
        while self.open[-1].tag != tag:
            if self.open[-1].tag not in ENDED_BY_PARENT:
                raise AssertionError(f"</{tag}> at {self.getpos()} where {self.open[-1]!r} is open")
            self.open.pop()
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)


def read(path):
    """The tree of a page; refuses what a browser would have to repair."""
    with open(path, "rb") as file:
        text = file.read().decode("utf-8")
    if not text.lower().startswith("<!doctype html>"):
        raise AssertionError(f"{path} begins with {text[:40]!r}")
    reader = _Reader()
    reader.feed(text)
    reader.close()
    for node in reader.open[1:]:
        if node.tag not in ENDED_BY_PARENT:
            raise AssertionError(f"{path}: {node!r} has no end")
    return reader.root


def numbers(text):
    """Of a data-… list."""
    return [float(word) for word in text.split()]


# ---- Nothing from outside ------------------------------------------------------------------------------------------

ADDRESSES = {"src", "href", "xlink:href", "srcset", "action", "formaction", "data", "poster", "background", "cite", "ping"}
FORBIDDEN = {"link", "iframe", "frame", "object", "embed", "base", "form", "audio", "video", "applet", "portal"}
NAMESPACES = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink", "http://www.w3.org/1999/xhtml")


def outside_references(root):
    """What in a page would ask for something, or run something that is not the report's script."""
    found = []
    for node in root.nodes():
        if node.tag in FORBIDDEN:
            found.append(repr(node))
        if node.tag == "meta" and node.get("http-equiv", "").lower() == "refresh":
            found.append(repr(node))
        for name, value in node.attributes.items():
            if name.startswith("on"):
                found.append(f"{name} of {node!r}")
            if name in ADDRESSES and not re.match(r"#|data:image/", value):
                found.append(f"{name} of {node!r}")
            if name not in ADDRESSES and not name.startswith("data-") and re.search(r"url\((?!\s*[\"']?(?:#|data:image/))", value):
                found.append(f"{name} of {node!r}")
        if node.tag == "style":
            found += re.findall(r"@import[^;]*|url\((?!\s*[\"']?(?:#|data:image/))[^)]*\)?|https?:[^\s\"')]*", node.text)
        if node.tag == "script":
            text = node.text
            for namespace in NAMESPACES:
                text = text.replace(namespace, "")
            found += re.findall(r"https?:.{0,40}|[\"'`]//.{0,40}|\bfetch\s*\(|XMLHttpRequest|\bimport\s*\(|WebSocket|EventSource|"
                                r"sendBeacon|\beval\s*\(|new Function|document\.write", text)
    return found


# ---- Images --------------------------------------------------------------------------------------------------------

def data_of(address):
    kind, _, data = address.partition(",")
    if not kind.endswith(";base64"):
        raise AssertionError(f"not base64: {kind}")
    return kind[len("data:"):-len(";base64")], base64.b64decode(data, validate=True)


def read_png(data):
    """(width, height, rows of samples of 8 bits): grey, or the index of a palette."""
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        raise AssertionError("no PNG")
    at, chunks = 8, []
    while at < len(data):
        (length,), kind = struct.unpack(">I", data[at:at + 4]), data[at + 4:at + 8]
        body = data[at + 8:at + 8 + length]
        (check,) = struct.unpack(">I", data[at + 8 + length:at + 12 + length])
        if check != zlib.crc32(kind + body):
            raise AssertionError(f"{kind}: wrong checksum")
        chunks.append((kind, body))
        at += 12 + length
    if chunks[0][0] != b"IHDR" or chunks[-1] != (b"IEND", b""):
        raise AssertionError(f"chunks {[kind for kind, _ in chunks]}")
    width, height, depth, colour, compression, filters, interlace = struct.unpack(">IIBBBBB", chunks[0][1])
    if (depth, compression, filters, interlace) != (8, 0, 0, 0) or colour not in (0, 3):
        raise AssertionError(f"depth {depth}, colour type {colour}, interlace {interlace}")
    if colour == 3 and not any(kind == b"PLTE" for kind, _ in chunks):
        raise AssertionError("no palette")
    raw = zlib.decompress(b"".join(body for kind, body in chunks if kind == b"IDAT"))
    if len(raw) != height * (width + 1):
        raise AssertionError(f"{len(raw)} bytes of {height} rows of {width}")
    rows, above = [], bytes(width)
    for r in range(height):
        how, line = raw[r * (width + 1)], bytearray(raw[r * (width + 1) + 1:(r + 1) * (width + 1)])
        for i in range(width):
            left, up, corner = line[i - 1] if i else 0, above[i], above[i - 1] if i else 0
            estimate = left + up - corner
            paeth = min((abs(estimate - left), 0, left), (abs(estimate - up), 1, up), (abs(estimate - corner), 2, corner))[2]
            line[i] = (line[i] + (0, left, up, (left + up) // 2, paeth)[how]) & 255
        rows.append(list(line))
        above = line
    return width, height, rows
