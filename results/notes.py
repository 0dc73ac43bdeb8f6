"""What the page of predictions says by hand: what was fitted and kept out, and what is known of the bad rows."""

CLUSTERS = "VIA-Research/vTrain data/ground_truth_multi.csv"
HOST = "VIA-Research/vTrain data/ground_truth_single.csv"
KORTHIKANTI = "Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer Models, tables 3 and 5"
FSDP = "mosaicml/llm-foundry scripts/train/benchmarking/README.md"

BEGIN = """# Predicted against published

This page is written by a command, from tables of measured training runs such as those in `results/published`:

    python -m benchmarks.predict results/published/*.csv --out predicted.csv
    python -m results.predictions predicted.csv --out docs

The tables have {rows} rows of {sources} sources. {known} of them are predicted and measured.
[Seconds](../guides/seconds.md) says how a step is predicted. The formulas of kernels, collectives and pipelines are
the same for all rows. What
differs is the machine file: ten constants for one kind of device under one software stack, such as the part of the
peak rate that a large matmul reaches, each within a plausible range.

Most machine files were fitted to the rows that they predict below, so the errors in the other tables are those of a
fit. The last column of the first table is the stricter error: of rows that the fit did not see, because all rows of
their model, or of their number of devices, were left out. `python -m benchmarks.fit` computes it."""

ABOUT_MEMORY = """\
Published is what `nvidia-smi` showed of the devices that held the most, with what CUDA and the allocator keep. None of
these runs shards its optimizer. Predicted is what [the formulas for Megatron-LM](../guides/seconds.md#memory) say.
Nothing
was fitted. All predictions are too low, six of them by 5 to 10 GB, which is what CUDA, NCCL and the allocator may
keep. The
run on 384 devices needed 16 GB more than predicted, and is the only one that sums gradients over a data axis. The
buffers of these sums may be a part of it; the source does not say."""

KEPT_OUT = {
    KORTHIKANTI: """\
For Korthikanti et al. two constants were fitted to the four rows with full recomputation: the efficiency of matmuls,
and the latency of links. The other constants are those of the clusters of A100s. The four rows with selective
recomputation were kept out: they are predictions, and the last column is their error.""",
}
"""Source -> what else was kept out of the fit of its machine file."""

NOTES = {
    CLUSTERS: """\
**Megatron-LM on 64 to 512 A100s.** The runs were made with microsoft/Megatron-DeepSpeed (data/README.md of the
source). 13 of the 88 predictions are over 10% too short; the other 75 are off by 2.3% on average, and by 10.8% at most.

- On 64 devices three rows stand alone. With `data=8,tensor=8` and 1 microbatch a step took 9.84 s; with 2, 4, 8 and
  16 microbatches it took 4.97 s, 5.02 s, 5.18 s and 5.62 s, and with 32 again 8.88 s. With `data=16,tensor=4` it
  took 4.76 s with 8 microbatches and 6.23 s with 16. Nothing in the table differs but the number of microbatches. A
  model that fits the neighbours cannot fit these rows. The source does not say what happened in them. Memory that
  is almost full, or a disturbed run, are guesses.
- On 512 devices the predictions of all six rows with `tensor=2`, and of four with `tensor=4`, are over 10% too short,
  while rows of the same batch with `tensor=1` and `tensor=8` agree. Here, too, the time jumps: with
  `data=32,pipeline=8,tensor=2` it rises from 19.07 s to 21.89 s as microbatches go from 16 to 24, although the bubble
  gets shorter; and with `data=16,pipeline=8,tensor=4` it falls from 17.41 s to 16.09 s as they go from 24 to 16. What
  is the reason is not known. Of the same software on another cluster BigScience report that the state of the network
  changed the throughput by up to 40% (bigscience-workshop/bigscience, experiments/performance.md).

Nothing in the table explains the ten rows. Other columns were tried:

- Network cards. All ten have groups that share network cards, because their data axis has two or four devices in a
  host. Of the 47 rows, the 27 without such groups have a mean error of 1.3%, a rank correlation of 0.97 and a regret of
  0.7%; the 20 with them 13.4%, 0.49 and 57.8%. But gradients are summed once a step, and the missing time grows with
  the number of passes: with `tensor=2` it is 140 to 250 ms for each microbatch and each one that fits into the bubble,
  whatever its size. And of six rows with `tensor=2` on 64 and 256 devices five agree, as do ten of fourteen with
  `tensor=4` on 512.
- Messages between stages. `tensor=1` sends twice as much as `tensor=2` in a message, and its row is off by 1.9%.
- Memory. By [the formulas for Megatron-LM](../guides/seconds.md#memory) seven of the ten need 28 to 45 GB of 86, and
  three
  58 to 69 GB. Two rows with `tensor=8` took longer than predicted, too, and need more than most: 256 devices with
  microbatches of 16 sequences need 67 GB, and the prediction is 9% too short; 512 devices with microbatches of 12 on
  two stages need 74 GB, and it is 5% too short. But the three rows of 64 devices with `data=64` need 74 to 81 GB, and
  are off by at most 1.4%.
- The size of a microbatch. A larger one cannot make the work for a sequence longer, since its matmuls are larger and
  its launches are fewer. With `data=8,pipeline=16,tensor=4` a stage takes 23% longer for a sequence in microbatches of
  12 than of 4.

These rows limit what a prediction can rank, and two aims are missed: a rank correlation of 0.9 and a regret of 2% for
the configurations of one model on one cluster. 64 devices have 0.97 and 0%, 256 have 0.85 and 9.4%, and 512 have 0.71
and 57.8%. A table above shows that no better account of meshes reaches the second of them: if each of the nine meshes
of 256 devices and of the ten of 512 had a factor of its own, the regret would still be 9.4% and 4.7%. The best of 512
devices is itself one of four numbers of microbatches on a mesh that took 13.88, 16.19, 15.63 and 18.53 s for 24, 16, 12
and 8. That of 256 devices was predicted for two microbatches of 16 sequences, which took 10.51 s; with four of 8 it
took 9.60 s, the least of all.""",
    HOST: """\
**Megatron-LM on 2 to 8 A100s of one host.** The errors repeat, so they are errors of the model, and not noise: rows
whose layers do the same work on a device have nearly the same error, whatever the number of layers and the batch. A
table below shows it. The worst rows have `tensor=8`. Most of their predicted time is the latency of sums over the
tensor axis, and the model has one latency for all sizes. The measured time does not even grow with the size of a
microbatch: with `tensor=8`, 16 layers of 1,024 features took 1.311 s for 16 microbatches of 1 sequence, which is 82
ms each, and 0.255 s for 4 microbatches of 4 sequences, which is 64 ms each. NCCL chooses algorithm and protocol by
the size of a message, and the model does not. It does not explain these rows: with `tensor=8` a layer takes 5.1 ms for
a microbatch of 1 sequence and 4.2 ms for one of 2, with 1,024 features and with 2,048 alike, and 2 sequences of 1,024
features are messages as large as 1 sequence of 2,048. The number of sequences matters, and not the bytes. A part of it
is in Megatron-LM's code, and is predicted: its fused softmax takes sequences times heads of a device in multiples of
four (megatron/model/fused_softmax.py, `attn_batch_size`), and with `tensor=8` 1 sequence has two. Then softmax has
five kernels in place of one, in each pass. The predictions of these ten rows are 18% to 23% too short with it, and were
25% to 31% too short without.""",
    KORTHIKANTI: """\
**Megatron-LM on 8 to 512 A100s, Korthikanti et al.** No row is bad.""",
    FSDP: """\
**PyTorch FSDP on 8 A100s.** Three rows are bad.

- 48 x 7168 with 8,192 tokens took 299.7 s, and with 4,096 tokens 105.7 s, with as many sequences and microbatches.
  It has about 2.1 times the FLOPs, and took 2.8 times as long. It is the largest model with the longest sequence
  that was measured for it, with one sequence in a microbatch. Memory that is almost full would explain it. The
  source does not say.
- 24 x 1536 with 512 and 1,024 tokens took 3.34 s and 3.30 s, and with 2,048 tokens 3.03 s. All three batches have
  the same number of tokens, and nothing is recomputed. Shorter sequences have fewer FLOPs, and take less time for
  each token with every other model of the table where as much is recomputed. The source does not say why they took
  longer here.""",
}
"""Source -> what is known of its bad rows. The seconds are those of the published table."""
