#!/usr/bin/env bash
# A slice of Cloud TPUs, a process on each of its hosts: TPU=NAME ZONE=europe-west4-b benchmarks/cluster/recipes/cloud-tpu.sh
# On every host a checkout is expected in ~/meshmark, with `pip install -e '.[tpu]'`. The report is on the first.
set -euo pipefail

mkdir -p results/runs
status=0  # and 1 where a case has failed, which the report says, too
gcloud compute tpus tpu-vm ssh "$TPU" --zone "$ZONE" --worker=all --command '
    cd ~/meshmark && python3 -m pytest benchmarks --distributed \
        --preset gpt2-xl --dtype bfloat16 --batch-size 64 --devices 16 \
        --benchmark-json results/runs/tpu.json' || status=$?
gcloud compute tpus tpu-vm scp "$TPU:~/meshmark/results/runs/tpu.json" results/runs/tpu.json --zone "$ZONE" --worker=0
exit $status
