#!/bin/sh
# python.sh - what a second program says. Run from the root of the repository:
#
#     sh tests/python.sh golden PYTHON                     golden vectors from NumPy are those of tests/golden.h
#     sh tests/python.sh safetensors PYTHON TEST_FILES     rotations files and the safetensors package, both ways
#                                                          (TEST_FILES: the built tests/test_files.c)
. tests/check.sh

step=$1 python=$2
mkdir -p build/python

golden() { "$python" tests/golden.py build/python/golden.h && cmp tests/golden.h build/python/golden.h; }

if ! command -v "$python" >/dev/null 2>&1; then skip "$step" "no $python"
elif [ "$step" = safetensors ] && [ ! -x "$3" ]; then skip "$step" "$3 is not built"
elif [ "$step" = safetensors ]; then exec "$python" tests/safetensors_check.py "$3"
elif "$python" -c "import numpy" >/dev/null 2>&1; then check_ok "tests/golden.h is what golden.py writes" golden
else skip "golden.py" "$python has no numpy"
fi

check_end "$step"
