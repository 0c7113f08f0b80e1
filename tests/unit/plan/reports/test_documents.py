"""What a reader sees: the sum, the verdict, and settings that can be pasted."""

from __future__ import annotations

import tomllib
from xml.etree import ElementTree

from ullage.base.config import load_settings
from ullage.engine.build import EngineOptions
from ullage.plan.deployment import PlanOptions, load_model, plan_deployment
from ullage.plan.reports.documents import plan_html, plan_markdown
from ullage.plan.reports.engine_settings import ready_settings
from ullage.plan.reports.picture import plan_svg

LLAMA = load_model("Llama-3.1-8B")


def plan(**options):
    return plan_deployment(LLAMA, PlanOptions(max_model_len=8192, **options))


def test_the_formula_stands_filled_in():
    text = plan_markdown(plan(memory="80GiB", concurrency=16))
    assert "2 (K, V) x 32 layers x 8 KV heads x 128 x 8,192 tokens x 2 B = 1.0 GiB" in text
    assert "8.03 B parameters x 2 B" in text
    assert "49 requests of 8,192 tokens at once" in text


def test_the_picture_is_xml_and_says_whether_it_fits():
    for memory, words in (("80GiB", "fits"), ("24GiB", "missing")):
        picture = plan_svg(plan(memory=memory, concurrency=16))
        ElementTree.fromstring(picture)
        assert words in picture


def test_the_page_holds_the_picture_and_escapes_names():
    page = plan_html(plan(memory="80GiB"))
    assert "<svg" in page
    assert "Ready to start" in page


def test_flags_of_each_engine_carry_the_plan():
    assert "--kv-cache-memory-bytes" in ready_settings(plan(memory="80GiB"))
    assert "--gpu-memory-utilization 0.9" in ready_settings(plan(memory="80GiB", memory_utilization=0.9))
    assert "--context-length 8192" in ready_settings(plan(memory="80GiB", engine="sglang"))
    assert "--ctx-size 16384" in ready_settings(plan(memory="80GiB", engine="llamacpp", concurrency=2))


def test_the_file_for_our_own_server_is_taken_by_it():
    text = ready_settings(plan(memory="80GiB", engine="ullage", concurrency=4))
    options = load_settings(EngineOptions, file=tomllib.loads(text))
    assert options.max_model_len == 8192
    assert options.kv_memory == 4 * 2**30
