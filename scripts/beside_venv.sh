#!/usr/bin/env bash
# beside_venv.sh VENV FOLDER REQUIREMENT: an environment in FOLDER with one package of its own; it takes all others,
# and the project, from the environment VENV.
set -euo pipefail
venv=$1 folder=$2 requirement=$3

"$venv/bin/python" -m venv "$folder"
packages='import sysconfig; print(sysconfig.get_path("purelib"))'
echo "import site; site.addsitedir('$("$venv/bin/python" -c "$packages")')" >"$("$folder/bin/python" -c "$packages")/shared.pth"
"$folder/bin/python" -m pip install --quiet --no-compile --no-deps --disable-pip-version-check "$requirement"
