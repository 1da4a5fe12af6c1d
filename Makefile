# Makefile - tests, demo, benchmarks. The library needs none of it: copy oscar.h. GNU make; everything goes to build/.
#
#     make test CC=clang CXX=clang++         another compiler
#     make test_pages                        one test program
#     make test WERROR=-Werror               warnings in tests and examples are errors, too

WERROR =
WARN = -Wall -Wextra -pedantic -Wno-unused-function $(WERROR)   # not every test uses all of test.h
LIBS = -lm -pthread -ldl
PYTHON = $(firstword $(wildcard build/venv/bin/python3) python3)
JOBS := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
FUZZ_SECONDS = 120
SHAPES = 1000
BENCH_FLAGS = -O3
# Options for every benchmark: BENCH_ARGUMENTS=--full.
BENCH_ARGUMENTS =
# A program for this computer alone: contraction and wide vectors change no byte of the library's.
LLM_FLAGS = -O3 -march=native -ffp-contract=fast

TESTS := $(patsubst tests/%.c,%,$(sort $(wildcard tests/test_*.c)))
ASAN_TESTS := $(filter-out test_expected,$(TESTS))
NATIVE_TESTS := $(filter test_amx test_attend test_codec test_golden test_isa test_kernels test_llm test_math \
    test_pages,$(TESTS))
TSAN_TESTS := $(filter test_threads,$(TESTS))
FUZZERS := $(patsubst tests/%.c,%,$(filter-out tests/fuzz_main.c,$(sort $(wildcard tests/fuzz_*.c))))
BENCHES := $(patsubst bench/%.c,%,$(sort $(wildcard bench/bench_*.c)))
EXAMPLES := $(patsubst examples/%.c,%,$(sort $(wildcard examples/*.c)))
HEADERS := $(wildcard oscar.h oscar_cuda.h tests/*.h examples/*.h)
# Tests and fuzz targets include these programs.
PROGRAMS = examples/llm.c examples/import_rotation_zoo.c

.DEFAULT_GOAL := help
.PHONY: help demo llm models accuracy test test-cuda test-cuda-shapes test-gpu nvrtc mutations-cuda cuda-count asan \
    tsan fuzz bench bench-peers bench-cuda gpu-check examples cross neon coverage clean logs probe FORCE $(TESTS)

help:
	@echo 'make demo       build and run examples/quickstart.c: calibrate, compress, attend, one table'
	@echo 'make llm        build/examples/llm, a language model with a 2-bit cache; make models fetches two to run'
	@echo 'make accuracy   every method on both models: docs/accuracy.md and a plot (about an hour)'
	@echo 'make test       all tests that this computer can run, a list of what it skips, one closing line'
	@echo 'make test-cuda  the long form of its tests of CUDA kernels: on the CPU, as PTX, over a driver that is a mock'
	@echo 'make nvrtc      fetches five versions of NVRTC to build/nvrtc, for a compile matrix in make test-cuda'
	@echo 'make test-cuda-shapes   bytes of pages and attention on SHAPES=$(SHAPES) random layers (about half an hour)'
	@echo 'make test-gpu   the kernels and the cache on an NVIDIA GPU against the CPU; skips where there is none'
	@echo 'make mutations-cuda   whether those tests catch each fault that is put into a kernel'
	@echo 'make cuda-count   registers and instructions of attention on each GPU architecture (NVRTC and nvdisasm)'
	@echo 'make asan       the tests under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make tsan       the thread tests under ThreadSanitizer'
	@echo 'make fuzz       each fuzz target under libFuzzer (clang) for FUZZ_SECONDS=$(FUZZ_SECONDS)'
	@echo 'make bench      all benchmarks, one after the other: bench/results.md and a plot'
	@echo 'make bench-peers   fetches ggml, OpenBLAS and NumPy to build/peers and times them beside the library'
	@echo 'make bench-cuda   decode and writes on a GPU beside BF16: build/gpu/cuda.md and a plot'
	@echo 'make gpu-check    all tests and benchmarks that need a GPU, in eight minutes; logs in build/gpu'
	@echo 'make examples   build every example'
	@echo 'make cross      the tests of bytes on aarch64 and s390x (big endian) under qemu'
	@echo 'make neon       the tests of the NEON kernels on an emulated aarch64, with byte products and without'
	@echo 'make coverage   which lines of oscar.h the tests run (gcov)'
	@echo 'make test_NAME  one test program; TEST_VERBOSE=1 names its tests'
	@echo 'make clean      remove build/'

# == DEMO, EXAMPLES, BENCHMARKS ==

demo: build/examples/quickstart
	build/examples/quickstart

llm: build/examples/llm

models:
	PYTHON=$(PYTHON) sh examples/models.sh

accuracy: models build/bench/accuracy
	build/bench/accuracy

examples: $(EXAMPLES:%=build/examples/%)

build/examples/llm: EXAMPLE_FLAGS = $(LLM_FLAGS)
EXAMPLE_FLAGS = -O2
$(EXAMPLES:%=build/examples/%): build/examples/%: examples/%.c $(HEADERS)
	@mkdir -p $(@D)
	$(CC) -std=c99 $(EXAMPLE_FLAGS) $(WARN) -I. $< -o $@ $(LIBS)

build/bench/accuracy: bench/accuracy.c examples/llm.c $(HEADERS)
	@mkdir -p $(@D)
	$(CC) -std=c99 $(LLM_FLAGS) $(WARN) -I. $< -o $@ $(LIBS)

$(BENCHES:%=build/bench/%): build/bench/%: bench/%.c $(HEADERS) $(wildcard bench/*.h)
	@mkdir -p $(@D)
	$(CC) -std=c99 $(BENCH_FLAGS) -DBENCH_FLAGS='"$(CC) $(BENCH_FLAGS)"' $(WARN) -I. $< -o $@ $(LIBS)

# Each program's output is kept, also of `make bench-peers`; the figures in them become bench/results.md.
bench: $(BENCHES:%=build/bench/%) build/bench/report
	@for program in $(BENCHES:%=build/bench/%); do \
	    echo "== $$program"; rm -f $$program.failed; \
	    { $$program $(BENCH_ARGUMENTS) || touch $$program.failed; } | tee $$program.log; \
	    [ ! -e $$program.failed ] || exit 1; \
	done
	@build/bench/report bench/results.md bench/roofline.svg $(BENCHES:%=build/bench/%.log) \
	    $$(ls build/bench/peer_*.log 2>/dev/null)

bench-peers:
	@CC='$(CC)' CXX='$(CXX)' PYTHON='$(PYTHON)' BENCH_FLAGS='$(BENCH_FLAGS)' sh bench/peers.sh $(BENCH_ARGUMENTS)

build/bench/cuda: bench/cuda.c $(wildcard bench/*cuda*.h) $(HEADERS)
	@mkdir -p $(@D)
	$(CC) -std=c99 -O2 $(WARN) -I. $< -o $@ $(LIBS)

# A run over the mock driver has no figures to report: BENCH_ARGUMENTS='--driver build/cuda/bin/libmockcuda.so'.
bench-cuda: build/bench/cuda build/bench/report
	@mkdir -p build/gpu; rm -f build/gpu/cuda.failed
	@{ build/bench/cuda $(BENCH_ARGUMENTS) || touch build/gpu/cuda.failed; } | tee build/gpu/cuda.log
	@[ ! -e build/gpu/cuda.failed ]
	@! grep -q '^figure ' build/gpu/cuda.log || \
	    build/bench/report --cuda build/gpu/cuda.md build/gpu/cuda.svg build/gpu/cuda.log

gpu-check:
	@CC='$(CC)' PYTHON='$(PYTHON)' sh bench/gpu_check.sh

build/bench/report: bench/report.c
	@mkdir -p $(@D)
	$(CC) -std=c99 -O1 $(WARN) $< -o $@ -lm

# == TEST PROGRAMS: one rule for each way to build them ==

-include build/probe.mk

# plain: everything; asan: all but the long run over real activations; native: where the compiler could change bytes or
# sums; tsan: threads. Warnings are the business of the first.
FLAGS_plain = -O1 -g $(WARN)
FLAGS_native = -O3 -march=native -ffp-contract=fast -w
FLAGS_asan = -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -w
FLAGS_tsan = -O1 -g1 -fsanitize=thread -w
plain_CC = $(CC)
native_CC = $(NATIVE_CC)
asan_CC = $(ASAN_CC)
tsan_CC = $(TSAN_CC)

export ASAN_OPTIONS = allocator_may_return_null=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS = print_stacktrace=1
export TSAN_OPTIONS = halt_on_error=0:exitcode=66

define test_build
$(TESTS:%=build/test/$(1)/%): build/test/$(1)/%: tests/%.c $(HEADERS) $(PROGRAMS)
	@mkdir -p $$(@D); rm -f $$@
	@sh tests/run.sh compile $$@.build $$($(1)_CC) -std=c99 $$(FLAGS_$(1)) -I. $$< -o $$@ $$(LIBS)

$(TESTS:%=build/test/$(1)/%.log): build/test/$(1)/%.log: build/test/$(1)/% FORCE
	@sh tests/run.sh program $(1) $$* $$<
endef
$(foreach build,plain native asan tsan,$(eval $(call test_build,$(build))))
# It includes the other one.
$(foreach build,plain native asan tsan,build/test/$(build)/test_amx): tests/test_attend.c

$(TESTS): %: build/test/plain/%
	@cat $<.build 2>/dev/null || true
	$<

# Fuzz targets without libFuzzer: fuzz_main.c feeds them seeded random input for a few seconds.
$(FUZZERS:%=build/test/fuzz/%): build/test/fuzz/%: tests/%.c tests/fuzz_main.c $(HEADERS) $(PROGRAMS)
	@mkdir -p $(@D); rm -f $@
	@sh tests/run.sh compile $@.build $(or $(ASAN_CC),$(CC)) -std=c99 $(if $(ASAN_CC),$(FLAGS_asan),$(FLAGS_plain)) \
	    -I. $< tests/fuzz_main.c -o $@ $(LIBS)

$(FUZZERS:%=build/test/fuzz/%.log): build/test/fuzz/%.log: build/test/fuzz/% FORCE
	@sh tests/run.sh program fuzz $* $<

# == ALL TESTS ==

# A third compiler, where CC is one: cc is mostly one of the two.
OTHER_CC = $(filter-out gcc clang $(if $(shell command -v gcc || command -v clang),cc),$(CC))
COMMAND_packaging-gcc = sh tests/packaging.sh gcc
COMMAND_packaging-clang = sh tests/packaging.sh "clang $(OTHER_CC)"
COMMAND_bytes = sh tests/bytes.sh "gcc clang $(OTHER_CC)"
COMMAND_cross = sh tests/cross.sh
COMMAND_neon = sh tests/neon.sh short
COMMAND_golden = sh tests/python.sh golden $(PYTHON)
COMMAND_safetensors = sh tests/python.sh safetensors $(PYTHON) build/test/plain/test_files
COMMAND_examples = sh tests/examples.sh $(CC)
COMMAND_cuda-tools = sh tests/cuda.sh $(CC) short tools
COMMAND_cuda-kernels = sh tests/cuda.sh $(CC) short kernels
COMMAND_style = sh tests/style.sh
SCRIPTS = packaging-gcc packaging-clang cross neon cuda-tools cuda-kernels bytes examples golden safetensors style

$(SCRIPTS:%=build/test/scripts/%.log): build/test/scripts/%.log: FORCE
	@sh tests/run.sh program scripts $* $(COMMAND_$*)
build/test/scripts/safetensors.log: $(filter %/test_files,$(TESTS:%=build/test/plain/%))

build/test/asan/none.log: FORCE
	@sh tests/run.sh missing asan "$(CC) builds no running program with -fsanitize=address,undefined"
build/test/native/none.log: FORCE
	@sh tests/run.sh missing native "$(CC) builds no running program with -march=native"
build/test/tsan/none.log: FORCE
	@sh tests/run.sh missing tsan "neither $(CC) nor clang nor gcc builds a running program with -fsanitize=thread"

# Long ones first, so that all cores end at about the same time.
ASAN_LOGS = $(if $(ASAN_CC),$(ASAN_TESTS:%=build/test/asan/%.log),build/test/asan/none.log)
TSAN_LOGS = $(if $(TSAN_CC),$(TSAN_TESTS:%=build/test/tsan/%.log),build/test/tsan/none.log)
NATIVE_LOGS = $(if $(NATIVE_CC),$(NATIVE_TESTS:%=build/test/native/%.log),build/test/native/none.log)
PLAIN_LOGS = $(TESTS:%=build/test/plain/%.log)
ALL_LOGS = $(SCRIPTS:%=build/test/scripts/%.log) $(filter %_expected.log,$(PLAIN_LOGS)) \
    $(ASAN_LOGS) $(FUZZERS:%=build/test/fuzz/%.log) $(TSAN_LOGS) $(NATIVE_LOGS) \
    $(filter-out %_expected.log,$(PLAIN_LOGS))

# Make reads the results of the probe when it starts, so the tests run in a second make.
PARALLEL = @$(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(JOBS))
test: probe
	$(PARALLEL) logs LOGS='$$(ALL_LOGS)'
asan: probe
	$(PARALLEL) logs LOGS='$$(ASAN_LOGS)'
tsan: probe
	$(PARALLEL) logs LOGS='$$(TSAN_LOGS)'

test-cuda:
	@sh tests/cuda.sh $(CC)
nvrtc:
	@PYTHON='$(PYTHON)' sh tests/cuda/nvrtc.sh
test-cuda-shapes:
	@sh tests/cuda/shapes.sh $(CC) $(SHAPES)
test-gpu: build/test/test_device
	$<
build/test/test_device: tests/cuda/test_device.c $(HEADERS) $(wildcard tests/cuda/*.h)
	@mkdir -p $(@D)
	$(CC) -std=c99 -O1 -g $(WARN) -I. $< -o $@ $(LIBS)
mutations-cuda:
	@sh tests/cuda/mutations.sh $(CC)
cuda-count:
	@CC=$(CC) sh tests/cuda/count.sh table

probe:
	@mkdir -p build
	@sh tests/run.sh probe $(CC) > build/probe.mk

logs: $(LOGS)
	@sh tests/run.sh sum $(LOGS)

# == OTHER MACHINES, FUZZ, COVERAGE ==

cross:
	sh tests/cross.sh

# All of it; `make test` runs the short form.
neon:
	sh tests/neon.sh

FLAGS_fuzz = -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -DOSCAR_LIBFUZZER

fuzz: $(FUZZERS:%=build/fuzz/%)
	@for program in $^; do \
	    corpus=build/fuzz/corpus/$$(basename $$program); mkdir -p $$corpus; echo "== $$program"; \
	    $$program -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=build/fuzz/ -print_final_stats=1 $$corpus || exit 1; \
	done

$(FUZZERS:%=build/fuzz/%): build/fuzz/%: tests/%.c $(HEADERS) $(PROGRAMS)
	@mkdir -p $(@D)
	clang -std=c99 $(FLAGS_fuzz) $(WARN) -I. $< -o $@ $(LIBS)

# gcov adds up the counts of one header over all programs when it is given all of them at once. Each line that no test
# ran stands in build/coverage/not_run.txt. gcov runs there, so the sources need their full paths.
coverage:
	@rm -f build/coverage/*.gcda
	$(PARALLEL) $(ASAN_TESTS:%=build/coverage/%.log)
	@cd build/coverage && gcov *.gcda > gcov.txt && grep -A 1 "^File '.*oscar.h'" gcov.txt
	@awk -F: '$$1 ~ /[0-9]/ { run[$$2 + 0] = 1 } $$1 ~ /#####/ { text[$$2 + 0] = $$0 } \
	    END { for (line in text) if (!run[line]) print "oscar.h" substr(text[line], 10) }' \
	    build/coverage/oscar.h.gcov | sort > build/coverage/not_run.txt; wc -l build/coverage/not_run.txt

$(TESTS:%=build/coverage/%): build/coverage/%: tests/%.c $(HEADERS) $(PROGRAMS)
	@mkdir -p $(@D)
	@$(CC) -std=c99 -O0 --coverage -w -I$(CURDIR) $(CURDIR)/$< -o $@ $(LIBS)

$(TESTS:%=build/coverage/%.log): build/coverage/%.log: build/coverage/% FORCE
	@$< > $@ 2>&1; tail -n 1 $@

clean:
	rm -rf build demo.svg
