#!/bin/sh
# An elastic job on machines that ssh reaches: train.sh HOSTS COMMAND...
#   train.sh node1:2,node2:2 ./train
#   train.sh hosts.txt ./train                # a file of hosts, which may change
# Each has hvdrun and the program at the same path, and takes a key without asking (ssh-copy-id). TRAIN_SSH is
# another way there.
set -eu
hosts=$1
shift
if [ -f "$hosts" ]; then
  # Lines "node1 slots=2". The file is read every second: a line that goes drains its host, one that comes is
  # used.
  script=$(mktemp)
  trap 'rm -f "$script"' EXIT
  printf '#!/bin/sh\nsed -n "s/#.*//; s/^ *\\([^ ]*\\) *slots=\\([0-9]*\\).*/\\1:\\2/p" "%s"\n' "$(realpath "$hosts")" > "$script"
  chmod 700 "$script"
  set -- --host-discovery-script "$script" -- "$@"
else
  set -- -H "$hosts" -- "$@"
fi
hvdrun --min-np 1 --agent "${TRAIN_SSH:-ssh -o BatchMode=yes -o ServerAliveInterval=15} {host}" "$@"
