#!/usr/bin/env bash
# Install what Python packages cannot bring: Java 17 and Python's venv module; with the argument `servers`
# also the servers and the browser of tests and bench, Maven, which fetches the servers written in Java, and
# npm, which fetches the schema of AsyncAPI.
# On Debian and Ubuntu through apt; elsewhere it says what is missing and stops.
set -euo pipefail

missing=()
java_version() { java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'; }
if ! command -v java >/dev/null || [ "$(java_version)" -lt 17 ]; then missing+=(openjdk-17-jre-headless); fi
python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
if [ "${1:-}" = servers ]; then
  command -v redis-server >/dev/null || missing+=(redis-server)
  command -v promtool >/dev/null || missing+=(prometheus)
  command -v prometheus-pushgateway >/dev/null || missing+=(prometheus-pushgateway)
  command -v mvn >/dev/null || missing+=(maven)
  command -v npm >/dev/null || missing+=(npm)
  [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || missing+=(rabbitmq-server)
  [ -x /usr/sbin/mariadbd ] || missing+=(mariadb-server)
  command -v chromium chromium-browser google-chrome >/dev/null || missing+=(chromium)
  compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || missing+=(postgresql)
fi
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null && as_root=(sudo)
fi
if ! command -v apt-get >/dev/null || { [ "$(id -u)" -ne 0 ] && [ ${#as_root[@]} -eq 0 ]; }; then
  echo "Missing here: ${missing[*]} (the names are Debian's). Install them and run the command again." >&2
  exit 1
fi
echo "Installing ${missing[*]}"
# The tests start servers of their own: none of these packages is to start one.
policy=/usr/sbin/policy-rc.d
made_policy=no
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod +x "$policy"
  made_policy=yes
fi
trap '[ "$made_policy" = no ] || "${as_root[@]}" rm -f "$policy"' EXIT
"${as_root[@]}" apt-get update -qq
# Newer releases of Debian have no Java 17, but one that serves as well.
for i in "${!missing[@]}"; do
  if [ "${missing[$i]}" = openjdk-17-jre-headless ] && ! apt-cache show openjdk-17-jre-headless >/dev/null 2>&1; then
    missing[$i]=openjdk-21-jre-headless
  fi
done
# Ubuntu has its browser as a snap only.
if [[ " ${missing[*]} " = *" chromium "* ]] && ! apt-cache show chromium >/dev/null 2>&1; then
  echo "Missing here: a browser for the tests of the live page: snap install chromium"
  for i in "${!missing[@]}"; do [ "${missing[$i]}" != chromium ] || unset "missing[$i]"; done
  [ ${#missing[@]} -eq 0 ] && exit 0
fi
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
