"""A slow network between two simulated hosts: the step time grows by the bytes the formulas predict.

Each host is a Linux network namespace with one device and one end of a veth pair, whose rate is limited, and which
delays packets where the kernel has `netem`. It takes root. Gloo connects to the address of a host's name, so each has a
name in a hosts file of its own.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.running import PLUGINS, rows
from tests.processes import ROOT, finish_together, free_port, peer_environment

BITS_PER_SECOND = 20_000_000
DELAY_MS = 1
HOSTS = [f"meshmark-{os.getpid()}-{index}" for index in range(2)]
ADDRESSES = ["10.77.0.1", "10.77.0.2"]
MODEL = ("--model=layers=2,embed=128,heads=2,sequence=16", "--batch-size=8", "--rounds=6")


def command(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever its exit status."""
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, timeout=60)


def limit() -> None:
    """Limit the network to `BITS_PER_SECOND` in each direction."""
    for host in HOSTS:
        own = "tc", "-n", host, "qdisc", "add", "dev", "eth0", "root"
        if command(*own, "netem", "rate", BITS_PER_SECOND, "delay", f"{DELAY_MS}ms").returncode:
            done = command(*own, "tbf", "rate", BITS_PER_SECOND, "burst", 2**13, "latency", "400ms")
            assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two hosts that can reach each other only; yields the path of their hosts file."""
    if not all(map(shutil.which, ("ip", "tc", "unshare", "mount"))):
        pytest.skip("no network namespaces: install iproute2 and util-linux")
    made = [command("ip", "netns", "add", host) for host in HOSTS]
    try:
        made.append(
            command(
                "ip", "-n", HOSTS[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", HOSTS[1]
            )
        )
        for host, address in zip(HOSTS, ADDRESSES, strict=True):
            made.append(command("ip", "-n", host, "address", "add", f"{address}/24", "dev", "eth0"))
            made += [command("ip", "-n", host, "link", "set", link, "up") for link in ("eth0", "lo")]
        if failed := [done.stderr.strip() for done in made if done.returncode]:
            pytest.skip(f"no network namespaces, which take root: {failed[0]}")
        names = tmp_path_factory.mktemp("hosts") / "hosts"
        pairs = zip((*ADDRESSES, "127.0.0.1"), (*HOSTS, "localhost"), strict=True)
        names.write_text("".join(f"{address} {name}\n" for address, name in pairs))
        yield names
    finally:
        for host in HOSTS:
            command("ip", "netns", "delete", host)


def step_seconds(names: Path, report: Path) -> dict[str, tuple[float, int]]:
    """Run two strategies over both hosts: for each, the median step time in seconds and the predicted bytes sent."""
    selected = "--strategy=data,pipeline", "--devices=2", "--microbatches=1", f"--benchmark-json={report}"
    by_hand = f"--coordinator={ADDRESSES[0]}:{free_port()}", "--processes=2", "--process-id"
    benchmarks = sys.executable, "-m", "pytest", *PLUGINS, "benchmarks", *MODEL, *selected, *by_hand
    begin = f'hostname "$0" && mount --bind {names} /etc/hosts && exec "$@"'
    started = [
        subprocess.Popen(
            [*f"ip netns exec {host} unshare --uts --mount sh -c".split(), begin, host, *benchmarks, str(index)],
            **{"cwd": ROOT, "env": peer_environment(1, SINGLE=""), "stdout": -1, "stderr": -1, "text": True},
        )
        for index, host in enumerate(HOSTS)
    ]
    ended = finish_together(started, timeout_seconds=600)
    assert [process.returncode for process in ended] == [0, 0], ended
    infos = [row["extra_info"] for row in rows(report).values()]
    return {i["strategy"]: (i["step_seconds_median"], i["predicted.sent_bytes"]) for i in infos}


@pytest.mark.processes
def test_a_slow_network_costs_the_predicted_bytes(hosts: Path, tmp_path: Path) -> None:
    """On a slower network a step takes longer by its predicted bytes over the bandwidth.

    For each strategy this holds within 0.7 to 2, which leaves room for headers, delays and bursts; the ratio of two
    strategies' slowdowns is that of their bytes within 40%.
    """
    fast = step_seconds(hosts, tmp_path / "fast.json")
    limit()
    slow = step_seconds(hosts, tmp_path / "slow.json")
    lost = {name: slow[name][0] - seconds for name, (seconds, _) in fast.items()}
    explained = {name: 8 * sent_bytes / BITS_PER_SECOND for name, (_, sent_bytes) in fast.items()}
    for name in fast:
        assert 0.7 < lost[name] / explained[name] < 2, (fast, slow)
    assert explained["data"] > 3 * explained["pipeline"]
    assert lost["data"] / lost["pipeline"] == pytest.approx(explained["data"] / explained["pipeline"], rel=0.4)
