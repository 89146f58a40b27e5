#!/bin/sh
# Make the environments that test Slipstream against other trainers' own code. Needs python3 (3.11 or newer), a package
# registry, and the CPU build of torch, from a registry that pip is set to use or from PyTorch's.
set -eu
python=${PYTHON:-python3}
. scripts/torch.sh

fail() { echo "bridges: $1" >&2; exit 1; }

# make_environment FOLDER REQUIREMENTS: a fresh environment with the locked requirements and the project itself.
make_environment() {
  rm -rf "$1"
  "$python" -m venv "$1"
  echo "bridges: installing $2 into $1"
  pip="$1/bin/python -m pip --quiet --disable-pip-version-check"
  $pip install --no-deps --require-hashes -r "$2" || fail "$2 could not be installed: see pip's message above"
  install_torch "$pip" || fail "torch could not be installed: see pip's message above"
  $pip install --no-deps -e . || fail "the project could not be installed: see pip's message above"
  $pip check || fail "the pins of $2 do not fit together: resolve them anew with 'make lock-bridges'"
  touch "$1/.installed"
}

command -v "$python" >/dev/null || fail "$python was not found: install Python 3.11 or newer, or name it with 'make PYTHON=...'"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$("$python" --version) is too old: name Python 3.11 or newer with 'make PYTHON=...'"
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail "python's venv module is missing: 'make test' installs it or says how"

make_environment .venv-bridges requirements-bridges.txt
