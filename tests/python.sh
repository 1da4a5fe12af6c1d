#!/bin/sh
# python.sh - what a second program says: golden vectors from NumPy, files read by the safetensors package.
# Run from the root of the repository: sh tests/python.sh [python, default python3]
. tests/check.sh

python=${1:-python3}
mkdir -p build/python
has() { "$python" -c "import $1" >/dev/null 2>&1; }

golden() { "$python" tests/golden.py build/python/golden.h && cmp tests/golden.h build/python/golden.h; }

if has numpy; then check_ok "tests/golden.h is what golden.py writes" golden
else skip "tests/golden.py" "$python has no numpy"
fi

check_end python
