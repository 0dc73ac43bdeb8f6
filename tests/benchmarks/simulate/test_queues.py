"""The queue simulator: what is repeated is as if it were written out, and all seconds add up to the step."""

import random

import pytest

from benchmarks.simulate.queues import Event, Item, Loop, Wait, simulate

LINKS = "inside a host", "between hosts"


def some_items(seed: int) -> list[Item]:
    """A loop of kernels and collectives, some of which are waited for at once, after something in flight."""
    draw = random.Random(seed)

    def collective(label: str) -> Event:
        queues = tuple(draw.sample(LINKS, draw.randint(1, 2)))
        return Event("exposed", draw.uniform(0, 3), queues, (label,) * draw.randint(0, 1))

    kernels = [Event("compute", draw.uniform(0, 2)) for _ in range(4)]
    sent = [collective("first"), collective("second")]
    waits = [Wait(label) for each in sent for label in each.labels]
    body = [sent[0], *kernels[:2], sent[1], *kernels[2:], *waits]
    return [Event("exposed", 5.0, LINKS, ("before",)), Loop(body, draw.randint(1, 9)), Wait("before")]


def unrolled(items: list[Item]) -> list[Item]:
    """The same without loops."""
    return [each for item in items for each in ([*item.items] * item.times if isinstance(item, Loop) else [item])]


@pytest.mark.parametrize("seed", range(20))
def test_a_loop_takes_as_long_as_its_iterations_one_by_one(seed: int) -> None:
    """Iterations that are alike are simulated once: parts and spans are those of all of them."""
    looped, plain = simulate(some_items(seed)), simulate(unrolled(some_items(seed)))
    assert looped.parts == pytest.approx(plain.parts)
    for one, other in zip(looped.spans(), plain.spans(), strict=True):
        assert (one.lane, one.name) == (other.lane, other.name)
        assert (one.begin_seconds, one.seconds) == pytest.approx((other.begin_seconds, other.seconds))


@pytest.mark.parametrize("seed", range(20))
def test_each_queue_does_one_thing_at_a_time(seed: int) -> None:
    """On no queue do spans overlap; the device's own has no gap, and ends when the last of the others does or later."""
    found = simulate(some_items(seed))
    own = [each for each in found.spans() if each.lane not in LINKS]
    assert sum(each.seconds for each in own) == pytest.approx(found.step_seconds)
    for queue in (own, *([each for each in found.spans() if each.lane == link] for link in LINKS)):
        now = 0.0
        for each in queue:
            assert each.begin_seconds >= now - 1e-9
            now = each.begin_seconds + each.seconds
        assert now <= found.step_seconds + 1e-9
