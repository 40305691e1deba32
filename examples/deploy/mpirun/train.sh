#!/bin/sh
# mpirun as a mere launcher: it starts the workers where it will. Each joins the driver by its address, and
# its rank is the driver's word; when one dies the others go on. train.sh WORKERS COMMAND...
#   TRAIN_AT        host:port of the driver, as the workers reach it; default: this machine, port 7300
#   MPIRUN_FLAGS  other flags of mpirun's, such as --hostfile hosts
set -eu
workers=$1
shift
at=${TRAIN_AT:-$(hostname):7300}
directory=$(mktemp -d "$PWD/train.XXXXXX")  # on a file system that the hosts share; nobody else reads it
trap 'rm -rf "$directory"' EXIT
(umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$directory/secret")

hvdrun --driver -np "$workers" --min-np 1 --max-np "$workers" --listen "0.0.0.0:${at##*:}" --secret-file "$directory/secret" &
driver=$!
# Open MPI would end all when one has died.
HVD_DRIVER=$at HVD_SECRET_FILE=$directory/secret mpirun --mca orte_enable_recovery 1 --mca orte_abort_on_non_zero_status 0 \
  ${MPIRUN_FLAGS:-} -x HVD_DRIVER -x HVD_SECRET_FILE -np "$workers" "$@" &
workers=$!
trap 'kill "$driver" "$workers" 2>/dev/null || true; rm -rf "$directory"' EXIT

# The driver's status is the job's. When it has ended well, so have the workers.
status=0
wait "$driver" || status=$?
[ "$status" = 0 ] || kill "$workers" 2>/dev/null || true
wait "$workers" || true
exit "$status"
