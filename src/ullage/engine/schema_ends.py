"""Whether a recursive JSON schema has an instance that ends: the compiler doesn't ask, and a model would never stop."""

from __future__ import annotations

from collections.abc import Mapping


def has_ending_instance(schema: object) -> bool:
    """False for a schema that contains itself without a way out, like a node that requires a node.

    Only what recursion does is looked at; all else counts as possible. References are taken to have no end until one
    is found, again and again until nothing changes: the least fixed point.
    """
    ends: dict[str, bool] = {}
    while True:
        before = dict(ends)
        result = _ends(schema, ends)
        for pointer in list(ends):
            ends[pointer] = ends[pointer] or _ends(_resolve(schema, pointer), ends)
        if result or ends == before:
            return result


def _ends(schema: object, ends: dict[str, bool]) -> bool:
    """:param ends: by reference; a new one is added as False"""
    if not isinstance(schema, dict):
        return True
    pointer = schema.get("$ref")
    if isinstance(pointer, str) and pointer.startswith("#") and not ends.setdefault(pointer, False):
        return False
    if not all(_ends(part, ends) for part in _list(schema, "allOf")):
        return False
    for key in ("anyOf", "oneOf"):
        if _list(schema, key) and not any(_ends(part, ends) for part in _list(schema, key)):
            return False
    return _some_type_ends(schema, ends)


def _some_type_ends(schema: Mapping[str, object], ends: dict[str, bool]) -> bool:
    types = schema.get("type")
    if isinstance(types, list) and not {"object", "array"}.issuperset(map(str, types)):
        return True
    if types == "object" or (isinstance(types, list) and "object" in types):
        properties = schema.get("properties")
        required = [properties.get(name) for name in _list(schema, "required")] if isinstance(properties, dict) else []
        if all(_ends(part, ends) for part in required):
            return True
        return isinstance(types, list) and "array" in types
    if types == "array":
        at_least = schema.get("minItems")
        return not (isinstance(at_least, int) and at_least > 0) or _ends(schema.get("items"), ends)
    return True


def _list(schema: Mapping[str, object], key: str) -> list[object]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _resolve(schema: object, pointer: str) -> object:
    """What a reference names; True where there is nothing, which the compiler refuses."""
    for part in pointer.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(schema, dict) or name not in schema:
            return True
        schema = schema[name]
    return schema
