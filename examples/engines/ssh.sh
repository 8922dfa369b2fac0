#!/bin/sh
# Ranks on several hosts by ssh, two on each. Call it on any machine that reaches them:
#
#     sh examples/engines/ssh.sh node1,node2
#
# The hosts need the same version of Hocket and these files, at the same places as here; otherwise give also
# --python FILE or --directory FOLDER. The key of the job is made here and goes through ssh.
set -eu
hosts=$1
shift
exec hocket run --hosts "$hosts" -n 2 "$@" -- examples/first_program.py
