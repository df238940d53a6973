#!/usr/bin/env bash
# beside.sh NAME BESIDE COMMAND…: run COMMAND, and beside it the shell command BESIDE, whose output and time follow.
name=$1; beside=$2; shift 2
log=$(mktemp)
set -m # A process group for what runs beside, so that all of it ends with this script.
"$(dirname "$0")/timed.sh" "$name" bash -c "$beside" </dev/null >"$log" 2>&1 &
process=$!
trap 'kill -- "-$process" 2>/dev/null; rm -f "$log"' EXIT
"$@"; code=$?
wait "$process"; beside_code=$?
cat "$log"
[ "$code" -ne 0 ] && exit "$code"
exit "$beside_code"
