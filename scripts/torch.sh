# Sourced: install_torch PIP puts torch into an environment. On Linux the package index has it with CUDA alone, which is
# gigabytes that a machine without a GPU never touches, so the CPU build is looked for first: in the registries that pip
# is set to use, then in PyTorch's own.
torch=2.13.0
torch_cpu_index=https://download.pytorch.org/whl/cpu

install_torch() {
  $1 install --no-deps "torch==$torch+cpu" 2>/dev/null && return
  $1 install --no-deps --retries 1 --index-url "$torch_cpu_index" "torch==$torch" 2>/dev/null && return
  echo "torch $torch for CPU was found neither in pip's registries nor at $torch_cpu_index: taking the one with CUDA" >&2
  $1 install "torch==$torch"
}
