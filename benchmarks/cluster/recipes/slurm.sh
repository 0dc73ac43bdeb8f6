#!/usr/bin/env bash
# Two machines with eight GPUs each, a process a GPU: sbatch benchmarks/cluster/recipes/slurm.sh [other options of pytest benchmarks]
# Start it in the checkout, on a file system that all of them have, in an environment with `pip install -e '.[gpu]'`.
#SBATCH --job-name=meshmark
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=01:00:00
set -euo pipefail

srun --kill-on-bad-exit=1 python -m pytest benchmarks --distributed \
    --preset gpt2-xl --dtype bfloat16 --batch-size 64 --devices 16 \
    --benchmark-json "results/runs/slurm-$SLURM_JOB_ID.json" "$@"
