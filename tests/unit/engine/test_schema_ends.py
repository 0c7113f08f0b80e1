from __future__ import annotations

import pytest

from ullage.engine.schema_ends import has_ending_instance

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
        {"$ref": "#/$defs/node", "$defs": {"node": {"anyOf": [NODE, {"$ref": "#/$defs/node"}]}}},
        {"allOf": [{"$ref": "#/$defs/node"}], "$defs": {"node": NODE}},
        {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
    ],
    ids=str,
)
def test_a_schema_without_a_way_out_has_no_instance(schema: object) -> None:
    assert not has_ending_instance(schema)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"$ref": "#/$defs/node", "$defs": {"node": {**NODE, "required": []}}},
        {"$ref": "#/$defs/node", "$defs": {"node": {**NODE, "type": ["object", "null"]}}},
        {"$ref": "#/$defs/node", "$defs": {"node": {"anyOf": [NODE, {"type": "null"}]}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b~1c"}, "b/c": {"type": "string"}}},
        {"$ref": "#/$defs/missing"},
    ],
    ids=str,
)
def test_a_schema_with_a_way_out_has_an_instance(schema: object) -> None:
    assert has_ending_instance(schema)
