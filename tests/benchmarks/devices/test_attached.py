"""libtpu is left unloaded only where nothing hints at a TPU."""

from pathlib import Path

import jax
import pytest

from benchmarks.devices import attached
from benchmarks.devices.attached import skip_absent_tpus, tpu_hinted


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without accelerators: its bus has a network card."""
    for name in ("TPU_NAME", "TPU_WORKER_ID", attached.FORCED):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "0000:00:04.0").mkdir()
    (tmp_path / "0000:00:04.0" / "vendor").write_text("0x1af4\n")
    return tmp_path


def test_a_tpu_is_never_hidden(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its vendor on the bus, its device file, or one variable of its host is enough."""
    assert not tpu_hinted(machine, machine)
    with monkeypatch.context() as patch:
        patch.setenv("TPU_WORKER_ID", "0")
        assert tpu_hinted(machine, machine)
    (machine / "accel0").touch()
    assert tpu_hinted(machine, machine)
    (machine / "accel0").unlink()
    (machine / "0000:00:04.0" / "vendor").write_text("0x1ae0\n")
    assert tpu_hinted(machine, machine)


@pytest.mark.parametrize(("hinted", "others", "platforms", "chosen"), [
    (False, False, None, "cpu"),
    (True, False, None, None),
    (False, True, None, None),
    (False, False, "tpu", "tpu"),
])  # fmt: skip
def test_jax_keeps_its_choice_where_there_may_be_one(
    hinted: bool, others: bool, platforms: str | None, chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it does with plugins of other accelerators, and with platforms that the user named."""
    before = getattr(jax.config, "jax_platforms", None)
    monkeypatch.setattr(attached, "tpu_hinted", lambda: hinted)
    monkeypatch.setattr(attached, "other_accelerators", lambda: others)
    try:
        jax.config.update("jax_platforms", platforms)
        skip_absent_tpus()
        assert getattr(jax.config, "jax_platforms", None) == chosen
    finally:
        jax.config.update("jax_platforms", before)
