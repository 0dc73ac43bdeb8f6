"""Two hosts with a slow network between them, on one machine: namespaces of Linux, which nothing leaves.

Each has a device and its end of a pair of virtual network interfaces, whose rate is limited, and which delays packets
where the kernel has `netem`. It takes root. Gloo talks to where a host's own name leads, so each has a name, too.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.test_run import PLUGINS, rows
from tests.processes import environment, finish_together, free_port

ROOT = Path(__file__).parents[2]
FAST_BITS, SLOW_BITS = 400e6, 20e6
DELAY_MS = 1
HOSTS = [f"meshmark-{os.getpid()}-{index}" for index in range(2)]
ADDRESSES = ["10.77.0.1", "10.77.0.2"]
MODEL = ("--layers=2", "--embed=128", "--heads=2", "--sequence=16", "--batch-size=8", "--case-seconds=0.05")


def command(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, timeout=60)


def limit(bits_per_second: float) -> None:
    """Let no more through in either direction."""
    for host in HOSTS:
        own = "tc", "-n", host, "qdisc", "replace", "dev", "eth0", "root"
        rate = f"{round(bits_per_second)}bit"
        if command(*own, "netem", "rate", rate, "delay", f"{DELAY_MS}ms").returncode:
            done = command(*own, "tbf", "rate", rate, "burst", 2**13, "latency", "400ms")
            assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two hosts that know of nobody but each other; the file of their names."""
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


def step_seconds(names: Path, report: Path, bits_per_second: float) -> dict[str, tuple[float, int]]:
    """Of strategies over two hosts with such a network: seconds of a step, and bytes that a host is said to send."""
    limit(bits_per_second)
    selected = "--strategy=data,pipeline", "--devices=2", "--microbatches=1", f"--benchmark-json={report}"
    by_hand = f"--coordinator={ADDRESSES[0]}:{free_port()}", "--processes=2", "--process-id"
    benchmarks = sys.executable, "-m", "pytest", *PLUGINS, "benchmarks", *MODEL, *selected, *by_hand
    begin = f'hostname "$0" && mount --bind {names} /etc/hosts && exec "$@"'
    started = [
        subprocess.Popen(
            [*f"ip netns exec {host} unshare --uts --mount sh -c".split(), begin, host, *benchmarks, str(index)],
            **{"cwd": ROOT, "env": environment(1, SINGLE=""), "stdout": -1, "stderr": -1, "text": True},
        )
        for index, host in enumerate(HOSTS)
    ]
    for ended in finish_together(started, timeout_seconds=600):
        assert ended.returncode == 0, ended.stdout + ended.stderr
    infos = [row["extra_info"] for row in rows(report).values()]
    return {i["strategy"]: (i["step_seconds_median"], i["predicted.sent_bytes"]) for i in infos}


@pytest.mark.processes
def test_throughput_falls_as_the_bytes_say(hosts: Path, tmp_path: Path) -> None:
    """What a step takes longer on a slower network is the bytes that it sends, over what the network carries less.

    For each strategy within a factor that leaves room for headers, delays and what a limiter lets through at once; and
    of two strategies the one that sends more loses more, in proportion.
    """
    fast, slow = (step_seconds(hosts, tmp_path / f"{bits:.0f}.json", bits) for bits in (FAST_BITS, SLOW_BITS))
    over_bytes = {}
    for name, (seconds, sent_bytes) in fast.items():
        explained = 8 * sent_bytes * (1 / SLOW_BITS - 1 / FAST_BITS)
        over_bytes[name] = (slow[name][0] - seconds) / explained
        assert 0.7 < over_bytes[name] < 2
    assert 1 / 1.5 < over_bytes["data"] / over_bytes["pipeline"] < 1.5
    assert fast["data"][1] > 3 * fast["pipeline"][1]
