"""A compiled schedule is simulated as by hand: a matmul takes two seconds, and a gather three."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.devices.chips import CHIPS
from benchmarks.program.compiled import read_program
from benchmarks.program.work import Event, Work
from benchmarks.simulate.kernels import Kernel
from benchmarks.simulate.links import mesh_group
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.program import Priced, ideal, replay
from benchmarks.simulate.queues import Timeline
from strategies import STRATEGIES, GPTConfig, TrainConfig
from strategies.core.sizes import BYTES
from tests.benchmarks.program.fragments import DONE, DOT, GATHER, H100S, LOOP, LOOPING, MATMUL, program
from tests.strategies.quick import compiled

ENDLESS = 1e30
CHIP = replace(
    ideal("h100").chip,
    flops_per_second=MATMUL.flops / 2,
    memory_bytes_per_second=ENDLESS,
    link_bytes_per_second=1536 / 3,
    network_bytes_per_second=1536 / 3,
)
MACHINE = replace(ideal("h100"), chip=CHIP)
OTHER = GATHER.replace("%s", "%s.2"), DONE.replace("%d", "%d.2").replace("%s", "%s.2")
"""A second gather."""
SYNCHRONOUS = GATHER.replace("-start", "").replace("(f32[8,16], f32[32,16])", "f32[32,16]")


def spent(found: Timeline) -> tuple[float, ...]:
    """Seconds of compute, of memory traffic, exposed."""
    return tuple(found.parts.get(part, 0.0) for part in ("compute", "memory", "exposed"))


def with_chip(**figures: float) -> Machine:
    """The machine with other figures of its chip."""
    return replace(MACHINE, chip=replace(CHIP, **figures))


def times(found: Timeline | None) -> tuple[float, ...]:
    """Seconds of compute, of memory traffic and exposed."""
    assert found
    assert found.step_seconds == pytest.approx(max(each.begin_seconds + each.seconds for each in found.spans()))
    return tuple(round(each, 9) for each in spent(found))


@pytest.mark.parametrize(
    ("lines", "exposed"),
    [
        ((GATHER, DOT, DONE), 1),
        ((DOT, GATHER, DONE), 3),
        ((SYNCHRONOUS, DOT), 3),
        ((GATHER, DOT, DOT.replace("%m", "%n"), DONE), 0),
        ((GATHER, OTHER[0], DOT, DONE, OTHER[1]), 4),  # the second begins after 3 s, and ends after 6
        ((GATHER, DOT, OTHER[0], DONE, DOT.replace("%m", "%n"), OTHER[1]), 2),  # each hides behind one matmul
        ((GATHER, DOT), 1),  # the step ends when all has been sent
    ],
)
def test_what_is_exposed_by_hand(lines: tuple[str, ...], exposed: float) -> None:
    """Collectives go one after another, and the device waits where they are needed: compute hides each second once."""
    matmuls = sum("dot" in line for line in lines)
    assert times(replay(program(*lines), H100S, MACHINE, "bfloat16")) == (2 * matmuls, 0, exposed)


def test_an_instruction_that_computes_and_sends_accesses_memory_while_it_computes() -> None:
    """The start of a collective that also multiplies takes the device's time as a matmul does, and then sends."""
    slow = with_chip(memory_bytes_per_second=MATMUL.memory_bytes / 5)
    sends = program(GATHER, DONE).events[0].work
    both = Event("both", Work(sends.collectives, MATMUL.flops, memory_bytes=MATMUL.memory_bytes), begins=("a", "b"))
    ends = Event("ends", Work(), waits_for=("a", "b"))
    for machine, expected in ((MACHINE, (2, 0, 3)), (slow, (0, 5, 3))):
        assert times(replay(replace(program(DOT), events=(both, ends)), H100S, machine, "bfloat16")) == expected


def test_a_collective_accesses_memory_while_it_sends() -> None:
    """Memory bounds an instruction that moves bytes for longer than it computes; a collective's own bytes delay it."""
    slow = with_chip(memory_bytes_per_second=MATMUL.memory_bytes / 5)
    assert times(replay(program(DOT), H100S, slow, "bfloat16")) == (0, 5, 0)
    sending = (512 + 2048) / MATMUL.memory_bytes * 5
    assert times(replay(program(SYNCHRONOUS, DOT), H100S, slow, "bfloat16")) == (0, 5, sending)


def test_iterations_of_a_loop_are_replayed() -> None:
    """Seven iterations take two seconds each and wait for one. Their spans are all there, in order."""
    found = replay(program(*LOOPING, before=LOOP), H100S, MACHINE, "bfloat16")
    assert times(found) == (14, 0, 7)
    assert found
    begins = [each.begin_seconds for each in found.spans() if each.lane == "compute"]
    assert begins == pytest.approx([3 * index for index in range(7)])


def test_what_is_in_flight_delays_the_first_iterations_of_a_loop() -> None:
    """A gather from before the loop delays that of the first iteration, and that one the next: 3, 4 and then 1 each."""
    found = replay(program(OTHER[0], *LOOPING, OTHER[1], before=LOOP), H100S, MACHINE, "bfloat16")
    assert times(found) == (14, 0, 3 + 1 + 6)


def test_links_work_side_by_side() -> None:
    """Collectives on different kinds of links overlap, and those on one kind wait for each other."""
    devices = np.array([SimpleNamespace(process_index=index // 4) for index in range(8)]).reshape(2, 4)
    hosts: Any = SimpleNamespace(axis_names=("data", "fsdp"), devices=devices)
    between = OTHER[0].replace("{{0,1,2,3},{4,5,6,7}}", "{{0,4},{1,5},{2,6},{3,7}}").replace("f32[32,16]", "f32[16,16]")
    lines = GATHER, between, DONE, OTHER[1]
    assert times(replay(program(*lines), hosts, MACHINE, "bfloat16")) == (0, 0, 3)
    assert times(replay(program(*lines), H100S, MACHINE, "bfloat16")) == (0, 0, 4)
    assert mesh_group(CHIP, hosts, ("data", "fsdp")).links == ("inside a host", "between hosts")


def test_a_torus_has_a_queue_for_each_dim() -> None:
    """A collective uses the dims of the torus that its group spans; the cores of one chip need none."""
    places = np.array([SimpleNamespace(coords=tuple(place)) for place in np.ndindex(4, 4, 4)], dtype=object)
    cube: Any = SimpleNamespace(axis_names=("data", "fsdp"), devices=places.reshape(16, 4))
    assert mesh_group(CHIPS["v5p"], cube, ("data",)).links == ("torus x", "torus y")
    assert mesh_group(CHIPS["v5p"], cube, ("fsdp",)).links == ("torus z",)
    cores: Any = SimpleNamespace(axis_names=("data",), devices=np.array([SimpleNamespace(coords=(0, 0, 0))] * 2))
    assert mesh_group(CHIPS["tpu7x"], cores, ("data",)).links == ("between cores",)


@pytest.mark.parametrize(("kind", "seconds"), [("v5p", {True: 3, False: 6}), ("h100", {True: 6, False: 6})])
def test_permutes_in_opposite_directions_go_side_by_side(kind: str, seconds: dict[bool, float]) -> None:
    """A link of a torus has two directions, and a GPU sends to all from one port. Collectives use both directions."""
    places = [SimpleNamespace(coords=(0, 0, index), process_index=0) for index in range(8)]
    line: Any = SimpleNamespace(axis_names=("data", "fsdp"), devices=np.array(places, dtype=object).reshape(2, 4))
    machine = replace(
        ideal(kind), chip=replace(CHIPS[kind], memory_bytes_per_second=ENDLESS, link_bytes_per_second=512 / 3)
    )
    up = "{{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}"
    down = "{{1,0},{2,1},{3,2},{0,3},{5,4},{6,5},{7,6},{4,7}}"
    for second in (up, down):
        sends = [
            f"%{name} = (f32[8,16], f32[8,16]) collective-permute-start(%p), source_target_pairs={pairs}"
            for name, pairs in (("s", up), ("s.2", second))
        ]
        dones = [f"%d{name} = f32[8,16] collective-permute-done(%s{name})" for name in ("", ".2")]
        assert times(replay(program(*sends, *dones), line, machine, "bfloat16")) == (0, 0, seconds[second == down])


def test_a_pipeline_stage_is_idle_in_its_bubble() -> None:
    """A bubble of a third adds half of the time in which the device computes."""
    found = replay(program(SYNCHRONOUS, DOT), H100S, MACHINE, "bfloat16", bubble=1 / 3)
    assert found
    assert (found.parts["exposed"], found.parts["idle"], found.step_seconds) == pytest.approx((3, 1, 6))


def test_an_unscheduled_program_is_not_replayed() -> None:
    """The order of an unscheduled program means nothing."""
    assert replay(program(GATHER, DOT, DONE, header=""), H100S, MACHINE, "bfloat16") is None


@pytest.mark.parametrize(
    ("strategy", "mesh", "options"),
    [("fsdp", "fsdp=2", {}), ("pipeline", "pipeline=2", {"microbatches": 4, "schedule": "zb-h1"})],
)
def test_all_work_of_a_step_is_replayed(strategy: str, mesh: str, options: dict[str, Any]) -> None:
    """Loops, and branches as often as they are taken: compute adds up to the step's FLOPs, and synchronous collectives
    to the bytes that it sends.
    """
    config = GPTConfig(layers=2, embed=32, heads=2, vocab=64, sequence=16)
    step = STRATEGIES[strategy].build(config, mesh, TrainConfig(batch_size=8, **options))
    found = read_program(compiled(step.lower()).as_text() or "", step.mesh.shape)
    machine = with_chip(link_bytes_per_second=1.0)
    replayed = replay(found, step.mesh, machine, "bfloat16")
    assert replayed
    assert replayed.parts["compute"] == pytest.approx(found.flops / CHIP.flops_per_second)
    assert replayed.parts["exposed"] == pytest.approx(found.sent_bytes)
    least = Priced(step.mesh, machine, "bfloat16").roofline(found)
    parts = least.compute_seconds, least.network_seconds
    assert parts == pytest.approx((replayed.parts["compute"], replayed.parts["exposed"]))


def test_a_collective_has_the_latency_of_the_machine() -> None:
    """A gather of four devices takes three steps of a ring; matmuls take the rate that the machine reaches for them."""
    slower = replace(MACHINE.constants, link_seconds=0.5, matmul_efficiency=0.5)
    machine = replace(MACHINE, constants=slower, chip=replace(CHIP, float32_share=0.25))
    assert times(replay(program(SYNCHRONOUS, DOT), H100S, machine, "bfloat16")) == (4, 0, 3 + 3 * 0.5)
    assert times(replay(program(SYNCHRONOUS, DOT), H100S, machine, "float32")) == (16, 0, 3 + 3 * 0.5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", CHIPS)
def test_compiled_and_predicted_matmuls_have_one_price(kind: str, dtype: str) -> None:
    """On every kind of chip and in each dtype a FLOP of a compiled program takes as long as one of the formulas."""
    its, flops = ideal(kind), 10**15
    predicted = Kernel("attention", flops, 0, itemsize=BYTES[dtype]).seconds(its)
    assert Priced(H100S, its, dtype).compute_seconds(Work(flops=flops)) == predicted > 0


@pytest.mark.parametrize("lines", [(GATHER, DOT, DONE), (DOT, GATHER, DONE), (GATHER, OTHER[0], DOT, DONE, OTHER[1])])
def test_no_simulated_step_is_faster_than_its_busiest_resource(lines: tuple[str, ...]) -> None:
    """Whatever overlaps, a step takes as long as its compute, and as long as its busiest link."""
    compiled_step = program(*lines)
    found = replay(compiled_step, H100S, MACHINE, "bfloat16")
    assert found
    assert found.step_seconds >= Priced(H100S, MACHINE, "bfloat16").roofline(compiled_step).step_seconds > 0
