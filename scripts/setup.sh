#!/bin/sh
# Make .venv and install the locked dependencies into it. Needs python3 (3.11 or newer) and a package registry.
set -eu
python=${PYTHON:-python3}
. scripts/torch.sh

fail() { echo "setup: $1" >&2; exit 1; }

command -v "$python" >/dev/null || fail "$python was not found: install Python 3.11 or newer, or name it with 'make PYTHON=...'"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$("$python" --version) is too old: Slipstream needs Python 3.11 or newer; name one with 'make PYTHON=...'"

# Debian keeps ensurepip, which venv needs, in a package of its own.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  package="$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "setup: installing $package"
    { apt-get -qq update && apt-get -qq install -y --no-install-recommends "$package"; } >/dev/null ||
      fail "$package could not be installed: install it, then run make again"
  else
    fail "python's venv module is missing: install $package (sudo apt-get install $package), then run make again"
  fi
fi

rm -rf .venv
"$python" -m venv .venv
echo "setup: installing dependencies into .venv"
pip=".venv/bin/python -m pip --quiet --disable-pip-version-check"
$pip install --no-deps --require-hashes -r requirements.lock
install_torch "$pip" || fail "torch could not be installed: see pip's message above"
$pip install --no-deps -e .
touch .venv/.installed
