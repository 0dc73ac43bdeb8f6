"""The exact gate across versions: counters side by side, and a verdict on what got worse by more than a tolerance."""

from pathlib import Path
from typing import Any

import pytest

from tests.commands import command
from tests.results.synthetic import MACHINE, edited, row, write_run

NEWER = {
    "counters_fingerprint": "compiler-b",
    "versions": MACHINE["versions"] | {"jax": "0.12.0.1", "jaxlib": "0.12.0.1"},
    "jax_settings": "jax_enable_x64=False jax_new=1",
}
TEMP = "memory.temp_bytes"


def compared(folder: Path, change: float, *options: str, facts: dict[str, Any] = NEWER) -> int:
    """Compare a run with one of other versions, in which the temporaries of one case changed by a factor."""
    base = [row("fsdp", "fsdp=8"), row("data", "data=8")]
    temporaries = int(base[0]["extra_info"][TEMP] * change)
    head = [edited(base[0], {TEMP: temporaries}), base[1]]
    paths = [write_run(folder / "base.json", base), write_run(folder / "head.json", head, **facts)]
    return command("regress exact")([*map(str, paths), *options])


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [(1.06, 1, "worse"), (1.04, 0, "within tolerance"), (0.96, 0, "within tolerance"), (0.94, 0, "better")],
)
def test_what_got_worse_by_more_than_the_tolerance_is_red(
    change: float, code: int, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A planted worsening beyond the tolerance exits with 1, one within it with 0; both are listed with both values."""
    assert compared(tmp_path, change, "--across-versions=5%") == code
    said = capsys.readouterr().out
    before = row("fsdp", "fsdp=8")["extra_info"][TEMP]
    assert f"{before:,} -> {int(before * change):,} bytes" in said
    assert f"{TEMP} differs in 1 case, {change:.3f}x to {change:.3f}x; 1 {word}" in said
    assert "jaxlib is 0.10.2 in BASE and 0.12.0.1 in HEAD" in said
    assert compared(tmp_path, change, "--across-versions=5%", f"--allow={TEMP}=10%") == 0


def test_a_refusal_of_other_versions_names_the_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the option, runs of two versions are not comparable; other devices never are."""
    assert compared(tmp_path, 1) == 4
    assert "--across-versions 5% compares two versions" in capsys.readouterr().out
    other = NEWER | {"device_kind": "H100"}
    assert compared(tmp_path, 1, "--across-versions=5%", facts=other) == 4
    said = capsys.readouterr().out
    assert "device_kind is cpu in BASE and H100 in HEAD: versions compare only where these are equal" in said
    assert "jaxlib" not in said
