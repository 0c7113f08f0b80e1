"""The page and the plots from a folder of results."""

from __future__ import annotations

from click.testing import CliRunner
from tests.unit.ops.bench.known_result import known_result

from ullage.cli.bench import bench
from ullage.ops.bench.result import write_result


def test_page_and_plots_are_written(tmp_path):
    write_result(known_result("decode-batch"), tmp_path / "benchmarks" / "results")
    done = CliRunner().invoke(bench, ["report", "--root", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "decode-batch" in (tmp_path / "BENCHMARKS.md").read_text("utf-8")
    assert {path.suffix for path in (tmp_path / "benchmarks" / "plots").iterdir()} == {".png", ".svg"}
