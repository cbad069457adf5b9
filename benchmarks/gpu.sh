#!/usr/bin/env bash
# All that only a GPU can show, in one command of at most ten minutes: build, exactness, captured graphs, speed.
#   OUT=results bash benchmarks/gpu.sh
# What lands in $OUT: captured.txt and tests.txt (the loop's and the kernels' tests on the device), verify.json and verify.txt (the table against the
# goals), passport.json. The order is that of importance: what was reached is there if time runs out.
set -uo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-benchmarks/results/gpu}
mkdir -p "$OUT"
PYTHON=${PYTHON:-python3}
status=0

echo "== device"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || exit 1
$PYTHON -c 'import torch; assert torch.cuda.is_available(), "torch sees no CUDA device"' || exit 1

echo "== build"
$PYTHON -m pip install --quiet --no-deps --no-build-isolation --editable . || exit 1

echo "== exactness on the device"
timeout 120 $PYTHON -m pytest tests/decoding/test_captured.py -q -p no:cacheprovider 2>&1 | tee "$OUT/captured.txt" | tail -5
captured=${PIPESTATUS[0]}
timeout 300 $PYTHON -m pytest tests/kernels -q --maxfail=20 --durations=10 -p no:cacheprovider 2>&1 | tee "$OUT/tests.txt" | tail -25
status=${PIPESTATUS[0]}

echo "== speed"
if [ "$status" -eq 0 ]; then
  timeout 220 $PYTHON -m pytest benchmarks/bench_verify.py -q -s --benchmark-json "$OUT/verify.json" 2>&1 \
    | tee "$OUT/verify.txt" | tail -60
  status=${PIPESTATUS[0]}
else
  echo "the tests are red: no speed is measured"
fi

echo "== passport"
$PYTHON benchmarks/passport.py --json "$OUT/passport.json"
exit $((status | captured))
