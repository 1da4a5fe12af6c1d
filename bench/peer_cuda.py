# peer_cuda.py - decode attention over BF16 caches by FlashInfer and PyTorch, whichever can be imported, at shapes of
# bench/cuda.c: a figure a shape, batch and context, under the names that bench/report.c puts beside ours.
#
#     python3 bench/peer_cuda.py [SECONDS]          starts nothing more after that time, 60 by default
#
# A step is timed with events around a graph of launches over several caches in turn, so that none comes from the second
# cache; the median of RUNS. What fails is skipped by name.

import sys
import time

RUNS = 7
PAGE = 64
KV_HEADS = 8
BYTES_MOST = 40e9
SHAPES = [(128, 4), (128, 8), (64, 8), (256, 4), (128, 1)]
POINTS = [(64, 32768), (16, 4096), (1, 131072), (256, 4096), (1, 4096), (16, 32768)]

started = time.monotonic()
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60

try:
    import torch
except Exception as why:                         # also a library that it cannot load
    print("skip sdpa, flashinfer: PyTorch is not there (%s)" % why)
    sys.exit(0)
if not torch.cuda.is_available():
    print("skip sdpa, flashinfer: PyTorch sees no GPU")
    sys.exit(0)
try:
    import flashinfer
except Exception as why:
    flashinfer = None
    print("skip flashinfer: %s" % why)


def graph_of(calls):
    """All calls as one graph; None where they cannot be captured."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for call in calls:
                call()
    except RuntimeError:
        return None
    return graph


def microseconds(calls):
    graph = graph_of(calls)
    samples = []
    for _ in range(RUNS + 1):                    # the first one warms up
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        if graph:
            graph.replay()
        else:
            for call in calls:
                call()
        last.record()
        last.synchronize()
        samples.append(1000 * first.elapsed_time(last) / len(calls))
    return sorted(samples[1:])[RUNS // 2]


def caches_for(bytes_of_one, shape):
    second_cache = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 64 << 20)
    count = int(4 * second_cache // bytes_of_one) + 1
    return [torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(min(count, 64))]


def reference(q, k, v):
    """Of one sequence: q [heads][D], k and v [KV heads][tokens][D]."""
    group = q.shape[0] // k.shape[0]
    k, v = (x.float().repeat_interleave(group, 0) for x in (k, v))
    weights = torch.softmax((k @ q.float().unsqueeze(-1)).squeeze(-1) * q.shape[1] ** -0.5, -1)
    return (weights.unsqueeze(1) @ v).squeeze(1)


def check(name, got, want):
    error = ((got.float() - want).norm() / want.norm()).item()
    if not error <= 1e-2:
        raise ValueError("%s differs from float by %.2g" % (name, error))


def time_sdpa(dim, group, batch, context):
    bytes_of_one = 4 * batch * context * KV_HEADS * dim
    caches = caches_for(bytes_of_one, (2, batch, KV_HEADS, context, dim))
    q = torch.randn(batch, KV_HEADS * group, 1, dim, dtype=torch.bfloat16, device="cuda")

    def call(cache):
        return torch.nn.functional.scaled_dot_product_attention(q, cache[0], cache[1], enable_gqa=group > 1)
    check("sdpa", call(caches[0])[0, :, 0], reference(q[0, :, 0], caches[0][0, 0], caches[0][1, 0]))
    return microseconds([lambda cache=cache: call(cache) for cache in caches])


def flashinfer_wrapper(dim, group, batch, context, table, tensor_cores):
    pages = context // PAGE
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=tensor_cores)
    first = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * pages
    last = torch.full((batch,), PAGE, dtype=torch.int32, device="cuda")
    wrapper.plan(first, table, last, KV_HEADS * group, KV_HEADS, dim, PAGE, q_data_type=torch.bfloat16,
                 kv_data_type=torch.bfloat16)
    return wrapper


def time_flashinfer(dim, group, batch, context):
    """The faster of its kernels with and without tensor cores."""
    pages = batch * context // PAGE
    bytes_of_one = 4 * batch * context * KV_HEADS * dim
    caches = caches_for(bytes_of_one, (pages, 2, KV_HEADS, PAGE, dim))
    table = torch.randperm(pages, device="cuda").to(torch.int32)
    q = torch.randn(batch, KV_HEADS * group, dim, dtype=torch.bfloat16, device="cuda")
    rows = caches[0][table[:context // PAGE].long()].permute(1, 2, 0, 3, 4).reshape(2, KV_HEADS, context, dim)
    want = reference(q[0], rows[0], rows[1])
    best = None
    for tensor_cores in (True, False):
        try:
            wrapper = flashinfer_wrapper(dim, group, batch, context, table, tensor_cores)
            check("flashinfer", wrapper.run(q, caches[0])[0], want)
            us = microseconds([lambda cache=cache: wrapper.run(q, cache) for cache in caches])
            best = us if best is None else min(best, us)
        except Exception as why:
            print("skip flashinfer, tensor cores %s: %s" % (tensor_cores, str(why).split("\n")[0]))
    return best


def time_peer(peer, name, call, *arguments):
    try:
        us = call(*arguments)
        if us is not None:
            print("figure cuda.%s_us.%s %.4g us" % (peer, name, us), flush=True)
    except Exception as why:                     # memory, a shape that it does not take
        print("skip %s.%s: %s" % (peer, name, str(why).split("\n")[0]), flush=True)
    torch.cuda.empty_cache()


def time_all(peer, call):
    for dim, group in SHAPES:
        for batch, context in POINTS if (dim, group) == SHAPES[0] else POINTS[:2]:
            name = "D%d.G%d.b%d.%dk" % (dim, group, batch, context // 1024)
            if time.monotonic() - started > seconds:
                print("skip %s.%s: the time is over" % (peer, name))
            elif 4.0 * batch * context * KV_HEADS * dim > BYTES_MOST:
                print("skip %s.%s: more than %.0f GB" % (peer, name, BYTES_MOST / 1e9))
            else:
                time_peer(peer, name, call, dim, group, batch, context)


print("# PyTorch %s, FlashInfer %s" % (torch.__version__, flashinfer.__version__ if flashinfer else "none"))
time_all("sdpa", time_sdpa)
if flashinfer:                                   # last: it may have to compile first
    time_all("flashinfer", time_flashinfer)
