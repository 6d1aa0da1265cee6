"""Kept results: what must last of many runs in a few files, small enough to lie beside the code.

results/<group>/runs.jsonl.xz         one run a line: settings, inputs, environment, command, commit, results
results/<group>/logs.jsonl.xz         the same runs' metrics, schedules and curves, compressed
results/<group>/answers.npz           right answers of every episode of every result, one after the other
results/<group>/weights.safetensors   weights of the runs that are kept with them; equal tensors are stored once
results/environments.json             the machines and versions that runs refer to
results/data_sets.jsonl               class indexes, from which anyone can draw the same episodes again
results/manifest.json                 sha256 of all of these
"""
