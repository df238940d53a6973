#!/usr/bin/env bash
# install.sh PYTHON FOLDER PIP-ARGUMENT…: a virtual environment in FOLDER with what pip is asked for.
# A line every five seconds says what pip does; the whole output is in FOLDER/install.log.
set -euo pipefail
python=$1 folder=$2; shift 2

[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
log=$folder/install.log
: >"$log"
set -m # A process group for the lines of progress, so that all of it ends with this script.
while sleep 5; do
  printf '  %3d s, %4d MB: %.80s\n' "$SECONDS" "$(du -sm "$folder" | cut -f 1)" "$(tail -n 1 "$log")"
done &
progress=$!
trap 'kill -- "-$progress" 2>/dev/null' EXIT
if ! "$folder/bin/python" -m pip install --no-compile --disable-pip-version-check --progress-bar off "$@" >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "pip could not install $*: all that it said is in $log" >&2
  exit 1
fi
echo "  installed in $SECONDS s: $(du -sm "$folder" | cut -f 1) MB in $folder"
