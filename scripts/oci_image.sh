#!/bin/sh
# Makes the two images that `make sandboxes` tries containers with, unless they are there: Debian's smallest system,
# and the same with Python. Needs root, podman and debootstrap; no registry.
set -eu
suite=${SUITE:-bookworm}
plain=localhost/slipstream-debian:$suite
python=localhost/slipstream-debian:$suite-python

make_image() { # NAME, then further options of debootstrap
  name=$1
  shift
  if podman image exists "$name"; then
    return
  fi
  debootstrap --variant=minbase --cache-dir="$work/cache" "$@" "$suite" "$work/root" >"$work/log" 2>&1 || {
    tail -n 20 "$work/log" >&2
    exit 1
  }
  rm -rf "$work/root/var/cache/apt/archives" "$work/root/var/lib/apt/lists"
  tar -C "$work/root" -c . | podman import --quiet - "$name"
  rm -rf "$work/root"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
mkdir "$work/cache"
make_image "$plain"
make_image "$python" --include=python3
