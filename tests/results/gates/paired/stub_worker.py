"""A stand-in for `benchmarks/run/server.py` that runs nothing and answers by its `stub.json`, for made-up checkouts."""

import json
import os
import random
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUB = json.loads((ROOT / "stub.json").read_text())


def answer(do: str, steps: int | None, preparing: str) -> dict:
    """The answer to a request."""
    if do == "hello":
        facts = {"preset": "stub", "microbatches": 1, "dtype": "float32", "remat": "none"}
        facts |= {"sequence_tokens": 8, "param_count": 64}
        return {
            "protocol": STUB.get("protocol", 2),
            "root": STUB.get("root", str(ROOT)),
            "environment": {"python": STUB.get("python", "3")},
            "devices": STUB.get("devices", "8 cpu"),
            "cases": [{"id": case, "name": f"test_step[{case}]", **facts} for case in STUB["cases"]],
        }
    if do != "check":
        log(f"{do} {steps}")
    behave(STUB.get(do, {}).get(preparing))
    seconds = 0.01 * STUB.get("factor", 1) * random.lognormvariate(0, 0.01)
    begun = {"training": 1, "losses": (STUB.get("loss", 5.5),)}
    unchecked = {"unchecked": STUB.get("unchecked", "")}
    return {"check": unchecked, "prepare": begun, "size": {"steps": 2}, "block": {"seconds": 2 * seconds}}[do]


def log(event: str) -> None:
    """Append an event and the process id to the log file, if there is one."""
    if "log" in STUB:
        with Path(STUB["log"]).open("a") as lines:
            print(os.getpid(), event, file=lines)


def behave(how: str | None) -> None:
    """Die, hang or raise, as told."""
    if how == "die once":
        how = None if (ROOT / "died").exists() else "die"
        (ROOT / "died").touch()
    if how == "die":
        sys.exit("a stub that dies")
    if how == "hang":
        time.sleep(600)
    if how:
        raise RuntimeError(how)


def main() -> None:
    """Answer requests until there are no more."""
    log("start")
    if "refuse" in STUB:
        print(f"python -m benchmarks.run.server: {STUB['refuse']} in {sys.argv[1:]}", file=sys.stderr)
        sys.exit(2)
    preparing, connection = "", Connection(int(os.environ["MESHMARK_CONNECTION"]))
    with suppress(EOFError):
        while True:
            number, do, arguments = connection.recv()
            preparing = arguments.get("case", preparing)
            try:
                connection.send((number, answer(do, arguments.get("steps"), preparing), None))
            except RuntimeError as error:
                status = "mismatch" if do == "check" else "error"
                connection.send((number, None, (status, str(error))))


if __name__ == "__main__":
    main()
