"""Parts of a page that scripts write, each between its own markers, so that one script leaves the parts of others alone."""

import re


def with_section(page, name, text):
    """The page with `text` in place of what stood between the markers of `name`; at its end if it has none."""
    begin, end = f"<!-- {name} writes this -->", f"<!-- end of {name} -->"
    section = f"{begin}\n\n{text.strip()}\n\n{end}"
    changed, count = re.subn(re.escape(begin) + ".*?" + re.escape(end), lambda _: section, page, flags=re.DOTALL)
    return changed if count else page.rstrip() + "\n\n" * bool(page.strip()) + section + "\n"


def write_section(path, name, text):
    path.write_text(with_section(path.read_text(encoding="utf-8") if path.exists() else "", name, text), encoding="utf-8")
