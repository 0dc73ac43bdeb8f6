"""Two records of a case: of one that was measured, and of one of which nothing is known."""

from benchmarks.cases.case import Case
from benchmarks.run.measure import BlockTimes, Interval
from benchmarks.run.record import Record
from strategies import PRESETS, MeshSpec

CASE = Case("fsdp", MeshSpec.parse("fsdp=8"), "nano", PRESETS["nano"], 16, 2, "float32", "dots")
NOTHING_KNOWN = Record(CASE, platform="cpu", device_kind="cpu", virtual_devices=True)
MEASURED = Record(
    CASE,
    platform="cpu",
    device_kind="cpu",
    virtual_devices=True,
    status="ok",
    model_flops_per_step=1000,
    matmul_flops_per_second=4000.0,
    columns={"compiled.flops": 12, "experts.balance_loss": 1.5, "matches_single": True},
    timed=BlockTimes(3, [0.5, 0.4, 9.0], [0.01, 0.02, 0.09]),
    relative_to_single=Interval(2.0, 1.8, 2.1),
    canary=Interval(1.01, 0.98, 1.04),
)
