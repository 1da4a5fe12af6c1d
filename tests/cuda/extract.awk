# extract.awk - the kernel text of a header as a C file: the lines of its OSCAR_CU chunks, all others blank, so that
# compilers and sanitizers name the header's lines. A chunk starts with OSCAR_CU( and ends with ) in column 1.
#     awk -f tests/cuda/extract.awk oscar_cuda.h >build/cuda/text/oscar_cuda_text.h
FNR == 1 { printf "#line 1 \"%s\"\n", FILENAME }
/^\)/ { inside = 0 }
{ print inside ? $0 : "" }
/^OSCAR_CU\(/ { inside = 1 }
