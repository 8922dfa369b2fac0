#!/bin/sh
# Ranks on several hosts by Open MPI's mpirun, four on each. Call it on the first of the hosts:
#
#     sh examples/engines/mpirun.sh node1,node2
#
# Open MPI does not tell ranks where rank 0 is, so this does. The key is in your home folder, which all hosts share here.
# MPICH and Intel MPI need neither: mpirun -hosts node1,node2 -n 8 -ppn 4 python examples/first_program.py
set -eu
first=${1%%,*}
export HOCKET_ADDRESS="$first:29400" HOCKET_KEY_FILE="$HOME/.hocket-key-$$"
trap 'rm -f "$HOCKET_KEY_FILE"' EXIT
(umask 077; head -c 32 /dev/urandom > "$HOCKET_KEY_FILE")
mpirun --host "$(echo "$1" | sed 's/,/:4,/g'):4" -x HOCKET_ADDRESS -x HOCKET_KEY_FILE python examples/first_program.py
