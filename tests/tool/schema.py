"""As much of JSON Schema as docs/compare.schema.json needs. A keyword that is not known here is an error: nothing goes
unchecked in silence."""

SAID = {"$schema", "$id", "$comment", "$defs", "title", "description", "examples"}
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def is_type(value, name):
    if name == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if name == "integer":
        return not isinstance(value, bool) and (isinstance(value, int) or isinstance(value, float) and value.is_integer())
    return isinstance(value, TYPES[name])


def same(a, b):
    """As JSON: true is not 1."""
    return type(a) is type(b) and a == b or is_type(a, "number") and is_type(b, "number") and a == b


def problems(value, schema, root=None, at="$"):
    """Sentences; none: it is valid."""
    root = schema if root is None else root
    if schema is True:
        return []
    found = []

    def wrong(sentence):
        found.append(f"{at}: {sentence}")

    for keyword, wanted in schema.items():
        if keyword in SAID:
            pass
        elif keyword == "type":
            names = wanted if isinstance(wanted, list) else [wanted]
            if not any(is_type(value, name) for name in names):
                wrong(f"{str(value)[:60]!r} is not {' or '.join(names)}")
        elif keyword == "const":
            if not same(value, wanted):
                wrong(f"{value!r} is not {wanted!r}")
        elif keyword == "enum":
            if not any(same(value, option) for option in wanted):
                wrong(f"{value!r} is none of {wanted}")
        elif keyword == "anyOf":
            tried = [problems(value, option, root, at) for option in wanted]
            if all(tried):
                wrong("fits nothing of anyOf: " + "; ".join(t[0] for t in tried))
        elif keyword == "$ref":
            if not wanted.startswith("#/$defs/"):
                raise ValueError(f"reference to {wanted}")
            found += problems(value, root["$defs"][wanted[len("#/$defs/"):]], root, at)
        elif keyword == "required":
            if isinstance(value, dict):
                for name in wanted:
                    if name not in value:
                        wrong(f"has no {name!r}")
        elif keyword == "properties":
            if isinstance(value, dict):
                for name, below in wanted.items():
                    if name in value:
                        found += problems(value[name], below, root, f"{at}.{name}")
        elif keyword == "additionalProperties":
            if isinstance(value, dict):
                for name in set(value) - set(schema.get("properties", {})):
                    if wanted is False:
                        wrong(f"has {name!r}, which is nowhere described")
                    else:
                        found += problems(value[name], wanted, root, f"{at}.{name}")
        elif keyword == "items":
            if isinstance(value, list):
                for i, item in enumerate(value):
                    found += problems(item, wanted, root, f"{at}[{i}]")
        elif keyword == "minItems":
            if isinstance(value, list) and len(value) < wanted:
                wrong(f"has {len(value)} items, must have at least {wanted}")
        elif keyword == "maxItems":
            if isinstance(value, list) and len(value) > wanted:
                wrong(f"has {len(value)} items, must have at most {wanted}")
        elif keyword == "minimum":
            if is_type(value, "number") and value < wanted:
                wrong(f"{value} is less than {wanted}")
        elif keyword == "maximum":
            if is_type(value, "number") and value > wanted:
                wrong(f"{value} is more than {wanted}")
        else:
            raise ValueError(f"{at}: keyword {keyword!r} is not known to tests/tool/schema.py")
    return found


def objects(schema, at="$"):
    """Every description of an object in a schema, with its place."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield at, schema
        for key, below in schema.items():
            yield from objects(below, f"{at}.{key}")
    elif isinstance(schema, list):
        for i, below in enumerate(schema):
            yield from objects(below, f"{at}[{i}]")
