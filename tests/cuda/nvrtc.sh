#!/bin/sh
# nvrtc.sh - fetches several versions of NVRTC, NVIDIA's run-time compiler, for the compile matrix of cuda.sh, and its
# disassembler for count.sh (build/nvrtc/nvdisasm):
#
#     sh tests/cuda/nvrtc.sh [VERSION...]        or: make nvrtc; PYTHON as in the Makefile
#
# They are wheels of PyPI (nvidia-cuda-nvrtc-cu11, -cu12, nvidia-cuda-nvrtc), about 25 to 90 MB each, unpacked to
# build/nvrtc/VERSION; nothing is installed. What is there already is not fetched again; what cannot be had is skipped
# by name, with the reason.
python=${PYTHON:-python3}
folder=build/nvrtc
[ $# -gt 0 ] || set -- 11.8.89 12.1.105 12.4.127 12.9.86 13.5.37 nvdisasm
mkdir -p $folder

# The wheel's libraries, or its program, and no more, to a new folder. The library is the file without "builtins" and
# ".alt".
unpack='
import os, sys, zipfile
wheel, to = sys.argv[1:]
os.makedirs(to)
for name in zipfile.ZipFile(wheel).namelist():
    base = os.path.basename(name)
    if base == "nvdisasm" or "nvrtc" in base and ".so" in base and ".alt" not in base:
        with open(os.path.join(to, base), "wb") as out: out.write(zipfile.ZipFile(wheel).read(name))
        os.chmod(os.path.join(to, base), 0o755)
'

fetch()   # VERSION
{
    version=$1
    case $1 in
    nvdisasm) package=nvidia-cuda-nvdisasm version=13.5.37 ;;
    11.*) package=nvidia-cuda-nvrtc-cu11 ;;
    12.*) package=nvidia-cuda-nvrtc-cu12 ;;
    *) package=nvidia-cuda-nvrtc ;;
    esac
    wheels=$folder/wheel.$1
    rm -rf "$wheels" "$folder/$1.new"
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: -d "$wheels" \
        "$package==$version" >"$folder/log.txt" 2>&1 &&
        "$python" -c "$unpack" "$wheels"/*.whl "$folder/$1.new" >>"$folder/log.txt" 2>&1 &&
        mv "$folder/$1.new" "$folder/$1" && rm -rf "$wheels" && return
    rm -rf "$wheels" "$folder/$1.new"
    return 1
}

for name; do
    if [ -d "$folder/$name" ]; then echo "$name: $folder/$name"
    elif fetch "$name"; then echo "$name: fetched to $folder/$name"
    else echo "skip $name: $(tail -n 1 "$folder/log.txt")"
    fi
done
rm -f "$folder/log.txt"
