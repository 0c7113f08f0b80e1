"""The settings tables of the READMEs are made from the code.

To write them anew: python tests/unit/cli/test_readme_tables.py
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ullage.base.config import settings_of
from ullage.cli.settings import SERVE

ROOT = Path(__file__).parents[3]
SECTION = re.compile(r"(<!-- settings: .*? -->\n).*?(<!-- /settings -->)", re.DOTALL)


def with_fresh_table(text: str, header: str) -> str:
    rows = [header, "|---|---|---|"]
    for cls in SERVE.values():
        for info in settings_of(cls).values():
            choices = f" One of {', '.join(f'`{choice}`' for choice in info.choices)}." if info.choices else ""
            rows.append(f"| `{info.name}` | {info.default_text} | {info.description}{choices} |")
    table = "\n".join(rows)
    return SECTION.sub(lambda match: f"{match[1]}{table}\n{match[2]}", text)


READMES = {
    "README.md": "| setting | default | what it does |",
    "README.zh-CN.md": "| 设置 | 默认值 | 作用（英文原文） |",
}


@pytest.mark.parametrize(("name", "header"), READMES.items())
def test_the_settings_table_is_up_to_date(name, header):
    text = (ROOT / name).read_text("utf-8")
    assert SECTION.search(text)
    assert with_fresh_table(text, header) == text


if __name__ == "__main__":
    for name, header in READMES.items():
        path = ROOT / name
        path.write_text(with_fresh_table(path.read_text("utf-8"), header), "utf-8")
