#!/bin/sh
# Ranks on two hosts by torchrun, four on each. Make a key once; all hosts need it, for example in a shared home folder:
#
#     (umask 077; head -c 32 /dev/urandom > ~/hocket.key)
#
# Then call this on each host, with the name of the first host, and with 0 on the first host and 1 on the second:
#
#     sh examples/engines/torchrun.sh node1 0
#
# Everybody can read torchrun's store, so the key must come by a file.
set -eu
export HOCKET_KEY_FILE="${HOCKET_KEY_FILE:-$HOME/hocket.key}"
exec torchrun --nnodes=2 --nproc-per-node=4 --node-rank="$2" --master-addr="$1" --master-port=29500 \
    examples/first_program.py
