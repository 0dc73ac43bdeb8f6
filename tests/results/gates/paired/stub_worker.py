"""A stand-in for `benchmarks/worker.py` that runs nothing and answers by its `stub.json`, for made-up checkouts."""

import json
import os
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STUB = json.loads((ROOT / "stub.json").read_text())


def answer(request: dict, preparing: str) -> dict:
    """The answer to a request."""
    if request["do"] == "hello":
        facts = {"preset": "stub", "microbatches": 1, "dtype": "float32", "remat": "none"}
        facts |= {"sequence_tokens": 8, "param_count": 64}
        return {
            "protocol": STUB.get("protocol", 1),
            "root": STUB.get("root", str(ROOT)),
            "environment": {"python": STUB.get("python", "3")},
            "devices": STUB.get("devices", "8 cpu"),
            "cases": [{"id": case, "name": f"test_step[{case}]", **facts} for case in STUB["cases"]],
        }
    log(f"{request['do']} {request.get('steps')}")
    behave(STUB.get(request["do"], {}).get(preparing))
    seconds = 0.01 * STUB.get("factor", 1) * random.lognormvariate(0, 0.01)
    return {"prepare": {"loss": STUB.get("loss", 5.5)}, "size": {"steps": 2}, "block": {"seconds": 2 * seconds}}[
        request["do"]
    ]


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
        print(f"worker: error: {STUB['refuse']} in {sys.argv[1:]}", file=sys.stderr)
        sys.exit(2)
    preparing = ""
    for line in sys.stdin:
        request = json.loads(line)
        preparing = request.get("case", preparing)
        try:
            print(json.dumps(answer(request, preparing)), flush=True)
        except RuntimeError as error:
            print(json.dumps({"error": "error", "reason": str(error)}), flush=True)


if __name__ == "__main__":
    main()
