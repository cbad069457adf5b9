#!/usr/bin/env bash
# All that only a GPU can show, in one command of at most ten minutes: build, exactness, captured graphs, speed.
#   OUT=results bash benchmarks/gpu.sh
# What lands in $OUT: captured.txt and tests.txt (the loop's and the kernels' tests on the device), loop.json (tokens a
# second of a target of 7B shape), verify.json and verify.txt (the table against the goals), swap.json, passport.json.
# The order is that of importance: what was reached is there if time runs out.
set -uo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-benchmarks/results/gpu}
mkdir -p "$OUT"
PYTHON=${PYTHON:-python3}
failed=0

step() {  # name, seconds at most, file, command ...
  local name=$1 seconds=$2 file=$3
  shift 3
  echo "== $name"
  timeout "$seconds" "$@" 2>&1 | tee "$OUT/$file" | tail -40
  if [ "${PIPESTATUS[0]}" -ne 0 ]; then failed=1; return 1; fi
}

echo "== device"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || exit 1
$PYTHON -c 'import torch; assert torch.cuda.is_available(), "torch sees no CUDA device"' || exit 1

echo "== build"
$PYTHON -m pip install --quiet --no-deps --no-build-isolation --editable . || exit 1

step "captured rounds" 100 captured.txt $PYTHON -m pytest tests/decoding/test_captured.py -q -p no:cacheprovider
step "exactness on the device" 200 tests.txt $PYTHON -m pytest tests/kernels -q --maxfail=20 -p no:cacheprovider
if [ "$failed" -eq 0 ]; then
  step "verify" 140 verify.txt $PYTHON -m pytest benchmarks/bench_verify.py -q -s --benchmark-json "$OUT/verify.json"
  step "the loop" 120 loop.txt $PYTHON benchmarks/gpu_loop.py --json "$OUT/loop.json"
  step "swap" 40 swap.txt $PYTHON -m pytest benchmarks/bench_swap.py -q -s --benchmark-json "$OUT/swap.json"
else
  echo "tests are red: no speed is measured"
fi

echo "== passport"
$PYTHON benchmarks/passport.py --json "$OUT/passport.json"
exit "$failed"
