#!/bin/bash
# A training on several machines under SLURM:
#
#     sbatch --nodes 4 examples/slurm_train.sh /shared/runs/maml --preset small-maml-fc100-5shot-plain
#
# The first word is the run folder, on storage that all machines share; the others are those of `e3bm train`. One torchrun
# is started on each machine, with a process for each core. Workers that die are started again, a job that ends before its
# time is queued again, and either goes on from the last checkpoint. Without SLURM's own commands it was run on one
# machine only (tests/distributed/test_slurm.py): a real cluster is untested.
#SBATCH --job-name=e3bm
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
set -euo pipefail

run=${1:?give the run folder, then what e3bm train takes}
shift
nodes=${SLURM_NNODES:?start this with sbatch}
export OMP_NUM_THREADS=1
# Every start gets a meeting place of its own; a machine that stands still is given up after so many seconds.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
export E3BM_PATIENCE=${E3BM_PATIENCE:-600}
# Each machine reads the data set once, to its own disk; leave it unset where the data set lies there already.
if [ -n "${SLURM_TMPDIR:-}" ]; then export E3BM_SCRATCH=${E3BM_SCRATCH:-$SLURM_TMPDIR/e3bm}; fi

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --nodes "$nodes" --ntasks "$nodes" --ntasks-per-node 1 --kill-on-bad-exit=1 \
    torchrun --nnodes "$nodes" --nproc-per-node "${E3BM_PROCESSES:-${SLURM_CPUS_PER_TASK:-1}}" \
    --max-restarts 10 --rdzv-backend c10d --rdzv-endpoint "$first:${E3BM_PORT:-29400}" --rdzv-id "$SLURM_JOB_ID" \
    --no-python -- e3bm train --run "$run" "$@" &
# SLURM sends TERM before the time is over: the step at hand is finished and saved, and the job asks to be queued again.
job=$!
again=
trap 'again=yes; kill -TERM "$job" 2>/dev/null || true' TERM
status=0
wait "$job" || status=$?
if [ -n "$again" ]; then
    wait "$job" || true
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$status"
