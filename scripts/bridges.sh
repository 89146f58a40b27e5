#!/bin/sh
# bridges.sh [NAME]: make .venv-NAME from requirements-NAME.txt, one of the environments that test Slipstream against
# other trainers' own code; NAME is `bridges` if it is not given. Needs python3 (3.11 or newer; 3.12 where a trainer
# insists on it), a package registry, and the CPU build of torch, from a registry that pip is set to use or from
# PyTorch's.
set -eu
name=${1:-bridges}
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
  $pip check || fail "the pins of $2 do not fit together: resolve them anew with 'make lock-$name'"
  touch "$1/.installed"
}

# python_312: Python 3.12, for what does not run on 3.11.
python_312() {
  for found in "${PYTHON312:-}" "$python" python3.12 "$HOME"/.pyenv/versions/3.12*/bin/python3.12; do
    if [ -n "$found" ] && command -v "$found" >/dev/null &&
      "$found" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then
      echo "$found"
      return
    fi
  done
  fail "$name needs Python 3.12, which was not found: install it, or name it with 'make PYTHON312=...'"
}

case "$name" in
  tinker | skyrl) python=$(python_312) ;;
esac

command -v "$python" >/dev/null || fail "$python was not found: install Python 3.11 or newer, or name it with 'make PYTHON=...'"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$("$python" --version) is too old: name Python 3.11 or newer with 'make PYTHON=...'"
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail "python's venv module is missing: 'make test' installs it or says how"

make_environment ".venv-$name" "requirements-$name.txt"
