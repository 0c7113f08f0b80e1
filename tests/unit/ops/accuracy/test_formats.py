"""Every way that the settings offer is measured."""

from __future__ import annotations

from ullage.base.config import settings_of
from ullage.engine.build import EngineOptions
from ullage.ops.accuracy.formats import all_formats, format_choices


def test_the_choices_are_those_of_the_engine_s_settings():
    choices = format_choices()
    offered = settings_of(EngineOptions)["weight_type"].choices
    assert set(choices["weight_type"]) == set(offered) - {"auto"}
    assert {"bf16", "int8"} <= set(choices["weight_type"])


def test_each_weight_type_meets_each_kv_type():
    formats = all_formats({"weight_type": ("a", "b"), "kv_cache_dtype": ("x", "y")})
    assert [tuple(chosen.values()) for chosen in formats] == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]
    assert formats[1] == {"weight_type": "a", "kv_cache_dtype": "y"}
