#!/usr/bin/env bash
# On the device machine: the packages that its python3 lacks, from wheels that were carried along, and kernsearch itself.
# `device_setup.sh fetch` downloads those wheels here, into build/wheels, which git ignores and the call must carry.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=(optuna msgspec platformdirs sqlalchemy alembic colorlog mako greenlet)
headers=nvidia-cuda-cccl # <nv/target>, which cuda_fp16.h includes; of the same release as NVRTC there

if [[ ${1:-} == fetch ]]; then
  mkdir -p build/wheels
  platforms=()
  for tag in manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014; do
    platforms+=(--platform "${tag}_x86_64")
  done
  python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp "${platforms[@]}" \
    -d build/wheels 'optuna>=5.0' "${packages[@]:1}" "$headers==13.0.85"
  exit
fi

# One call for the wheels: what is there already is left as it is. Nothing is looked for on a network.
python3 -m pip install -q --no-index --no-compile --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
  --find-links build/wheels "${packages[@]}" "$headers"
python3 -m pip install -q --no-index --no-deps --no-build-isolation --disable-pip-version-check \
  --root-user-action=ignore -e .
python3 -c 'import kernsearch, optuna, msgspec; print("kernsearch", kernsearch.__version__, "installed")'
