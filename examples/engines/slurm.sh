#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=5
# Ranks on the nodes of a Slurm job. Submit it from a folder that all nodes share:
#
#     sbatch examples/engines/slurm.sh
#
# The key of the job is a file that only you can read; it is removed when the job ends.
set -eu
export HOCKET_KEY_FILE="$PWD/.hocket-key-$SLURM_JOB_ID"
trap 'rm -f "$HOCKET_KEY_FILE"' EXIT
(umask 077; head -c 32 /dev/urandom > "$HOCKET_KEY_FILE")
srun python examples/first_program.py
