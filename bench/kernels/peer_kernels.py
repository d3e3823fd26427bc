"""Loads the peers' kernels out of .peers/ (tools/fetch_peers.sh) and sets up one cell's calls of
them: state pools in rotation, flush phases staggered, as bench_kernels does for our own."""
import functools
import importlib
import pathlib
import sys
import types

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PEERS = ROOT / ".peers"
DEVICE = "cuda"
ACTIVATION = torch.bfloat16
INTERVAL = 16  # tokens between flushes
POOL_BYTES = 320e6
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}


class Shape:
    def __init__(self, family, n_heads, n_key_heads, value_dim, key_dim=128):
        self.family, self.n_heads, self.n_key_heads = family, n_heads, n_key_heads
        self.value_dim, self.key_dim = value_dim, key_dim


SHAPES = {
    "qw4b": Shape("GDN", 32, 16, 128),
    "nano30b": Shape("Mamba-2", 64, 8, 64),
    "nano4b": Shape("Mamba-2", 96, 8, 80),
    "super": Shape("Mamba-2", 128, 8, 64),
    "granite": Shape("Mamba-2", 128, 1, 64),
    "qw122b": Shape("GDN", 64, 16, 128),
}


SWEEP = (2048, 16)  # tokens of each of so many sequences


def accepted_of(window):
    return {4: 3, 8: 4}.get(window, window)


# -- loading


def stub(name, **members):
    module = types.ModuleType(name)
    for key, value in members.items():
        setattr(module, key, value)
    sys.modules[name] = module
    return module


@functools.cache
def vllm_modules():
    """The few modules of vLLM that its kernels' files import, without vLLM itself."""
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice

    for package in ("vllm", "vllm.model_executor", "vllm.model_executor.layers",
                    "vllm.model_executor.layers.mamba", "vllm.model_executor.layers.mamba.ops",
                    "vllm.model_executor.layers.fla", "vllm.model_executor.layers.fla.ops",
                    "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends"):
        stub(package).__path__ = [str(PEERS / "replayssm" / package.replace(".", "/"))]
    stub("vllm.triton_utils", triton=triton, tl=tl, tldevice=libdevice, HAS_TRITON=True)
    stub("vllm.v1.attention.backends.utils", NULL_BLOCK_ID=0)
    stub("vllm.model_executor.layers.fla.ops.utils", is_gather_supported=True)
    platform = types.SimpleNamespace(
        is_xpu=lambda: False, is_device_capability_family=lambda family: False,
        get_device_name=lambda: torch.cuda.get_device_name() if DEVICE == "cuda" else "none")
    stub("vllm.platforms", current_platform=platform)
    sys.modules["vllm"].envs = stub("vllm.envs", VLLM_TUNED_CONFIG_FOLDER=None)
    sys.modules["vllm"]._custom_ops = stub("vllm._custom_ops")
    quiet = types.SimpleNamespace(info_once=lambda *a, **k: None, warning_once=lambda *a, **k: None)
    stub("vllm.logger", init_logger=lambda name: quiet)
    layers = "vllm.model_executor.layers."
    return {name: importlib.import_module(layers + name)
            for name in ("mamba.ops.mamba_ssm",
                         "mamba.ops.selective_state_update_replayssm_output_only",
                         "mamba.ops.selective_state_update_replayssm_state_and_output",
                         "mamba.ops.selective_state_update_replayssm_spec",
                         "fla.ops.fused_recurrent", "fla.ops.fused_sigmoid_gating",
                         "fla.ops.fused_recurrent_replayssm",
                         "fla.ops.gdn_replayssm_spec_decode")}


def site_on_path():
    if str(PEERS / "site") not in sys.path:
        sys.path.insert(0, str(PEERS / "site"))


@functools.cache
def flashinfer_module(name):
    """One of the compiled libraries; None if it was not built."""
    path = PEERS / "lib" / f"{name}.so"
    if not path.exists():
        return None
    site_on_path()
    import tvm_ffi

    return tvm_ffi.load_module(str(path))


# -- one cell's tensors


def flush_cycle(accepted, fill_of_flush, after_flush):
    """A steady sequence's tokens in the buffer before each step of its cycle: a step flushes when
    they are more than `fill_of_flush`, and leaves `after_flush`."""
    fills = [after_flush]
    while fills[-1] <= fill_of_flush:
        fills.append(fills[-1] + accepted)
    return fills


class Cell:
    """Inputs, state pools and cursors for one shape, dtype, window and batch."""

    def __init__(self, shape, window, dtype, batch, slots_each=1):
        s = SHAPES[shape]
        self.shape, self.window, self.batch, self.slots_each = s, window, batch, slots_each
        self.dtype = DTYPES[dtype]
        state_bytes = batch * s.n_heads * s.value_dim * s.key_dim * self.dtype.itemsize
        self.n_pools = 1 if batch >= 1024 else -(-int(POOL_BYTES) // state_bytes)
        self.n_slots = self.n_pools * batch * slots_each + 1  # slot 0 is the null block
        n = batch * window
        generator = torch.Generator(device=DEVICE).manual_seed(3)

        def normal(*dims, dtype=ACTIVATION, scale=1.0):
            return (torch.randn(*dims, device=DEVICE, generator=generator) * scale).to(dtype)

        self.normal = normal
        self.a_log = normal(s.n_heads, dtype=torch.float32, scale=0.5)
        self.dt_bias = normal(s.n_heads, dtype=torch.float32, scale=0.5) - 3
        self.skip = normal(s.n_heads, dtype=torch.float32)
        self.x = normal(n, s.n_heads, s.value_dim)
        self.keys = normal(n, s.n_key_heads, s.key_dim)
        self.queries = normal(n, s.n_key_heads, s.key_dim)
        self.gate = normal(n, s.n_heads, scale=0.5)
        self.beta = normal(n, s.n_heads, scale=0.5)
        self.out = torch.zeros_like(self.x)
        one = normal(s.n_heads, s.value_dim, s.key_dim, dtype=torch.float32, scale=0.3)
        if dtype == "int8":
            self.scale_one = one.abs().amax(-1) / 127
            one = (one / self.scale_one[..., None]).round()
            self.state_scale = self.scale_one.expand(self.n_slots, -1, -1).contiguous()
        self.state = one.to(self.dtype).expand(self.n_slots, -1, -1, -1).contiguous()
        self.starts = torch.arange(batch + 1, dtype=torch.int32, device=DEVICE) * window
        # [pool][batch, slots_each]
        self.slots = (torch.arange(self.n_pools * batch * slots_each, dtype=torch.int32,
                                   device=DEVICE) + 1).view(self.n_pools, batch, slots_each)
        self.n_phases = 1

    def make_cursors(self, fill_of_flush, after_flush, by_slot, ring=1):
        """For each step of the cycle the buffers' fills and flush flags, the rows at staggered
        phases; by slot, or by row of the batch. `ring`: rows of a circular buffer."""
        cycle = torch.tensor(flush_cycle(accepted_of(self.window), fill_of_flush, after_flush))
        self.n_phases = len(cycle)
        row = torch.arange(self.n_slots) - 1 if by_slot else torch.arange(self.batch)
        row %= self.batch
        self.cursors = []
        for phase in range(self.n_phases):
            fill = cycle[(row + phase) % self.n_phases]
            self.cursors.append((fill.to(torch.int32).to(DEVICE),
                                 (fill > fill_of_flush).to(torch.int8).to(DEVICE)))
        self.origin = (row * 5 % ring).to(torch.int32).to(DEVICE)

    # Mamba-2's A, dt_bias and D as the kernels want them: one number a head, broadcast.
    def head_views(self):
        s = self.shape
        a = (-torch.exp(self.a_log))[:, None, None].expand(-1, s.value_dim, s.key_dim)
        wide = [x[:, None].expand(-1, s.value_dim) for x in (self.dt_bias, self.skip)]
        return a, wide[0], wide[1]

    def mixed_qkv(self):
        n = self.batch * self.window
        return torch.cat([self.queries.reshape(n, -1), self.keys.reshape(n, -1),
                          self.x.reshape(n, -1)], dim=1).contiguous()


# -- the kernels; each returns (cell, step(i)) or None where a peer has no kernel


def mamba_plain_triton(shape, window, dtype, batch):
    run = vllm_modules()["mamba.ops.mamba_ssm"].selective_state_update
    cell = Cell(shape, window, dtype, batch, slots_each=window)
    a, dt_bias, skip = cell.head_views()
    dt = cell.gate[..., None].expand(-1, -1, cell.shape.value_dim)
    many = {}
    if window > 1:
        accepted = torch.full((batch,), accepted_of(window), dtype=torch.int32, device=DEVICE)
        many = {"num_accepted_tokens": accepted, "cu_seqlens": cell.starts}

    def step(i):
        slots = cell.slots[i % cell.n_pools]
        run(cell.state, cell.x, dt, a, cell.keys, cell.queries, skip, dt_bias, dt_softplus=True,
            state_batch_indices=slots if window > 1 else slots[:, 0], out=cell.out, **many)

    return cell, step


def mamba_plain_flashinfer(shape, window, dtype, batch):
    s = SHAPES[shape]
    module = flashinfer_module(f"ssu_{dtype}_d{s.value_dim}_t{window}")
    if module is None:
        return None
    cell = Cell(shape, window, dtype, batch)
    a, dt_bias, skip = cell.head_views()
    lead = (batch,) if window == 1 else (batch, window)
    x, out = (t.view(*lead, s.n_heads, s.value_dim) for t in (cell.x, cell.out))
    keys, queries = (t.view(*lead, s.n_key_heads, s.key_dim) for t in (cell.keys, cell.queries))
    dt = cell.gate.float().view(*lead, s.n_heads)[..., None].expand(*lead, -1, s.value_dim)
    snapshots = rows = None
    if window > 1:
        snapshots = torch.empty(cell.n_pools * batch, window, s.n_heads, s.value_dim, s.key_dim,
                                dtype=cell.dtype, device=DEVICE)
        rows = (cell.slots[:, :, 0] - 1).contiguous()

    def step(i):
        pool = i % cell.n_pools
        module.selective_state_update(
            cell.state, x, dt, a, keys, queries, skip, None, dt_bias, True,
            cell.slots[pool, :, 0], None, -1, None, out, window > 1, snapshots,
            None if rows is None else rows[pool], None, None, window if window > 1 else 0, None,
            None, 0)

    return cell, step


def mamba_replay_triton(name, shape, window, dtype, batch):
    module = vllm_modules()[f"mamba.ops.selective_state_update_replayssm_{name}"]
    run = getattr(module, f"selective_state_update_replayssm_{name}")
    s = SHAPES[shape]
    cell = Cell(shape, window, dtype, batch)
    cell.make_cursors(INTERVAL - 2, 0, by_slot=False)
    a, dt_bias, skip = cell.head_views()
    dt = cell.gate[..., None].expand(-1, -1, s.value_dim)
    caches = {
        "x_cache": cell.normal(cell.n_slots, s.n_heads, INTERVAL, s.value_dim),
        "dt_cache": cell.normal(cell.n_slots, s.n_heads, INTERVAL, dtype=torch.float32).abs() / 20,
        "B_cache": cell.normal(cell.n_slots, s.n_key_heads, INTERVAL, s.key_dim)}
    if name == "output_only":
        caches["bc_pre"] = torch.empty(batch, s.n_key_heads, INTERVAL, dtype=torch.float32,
                                       device=DEVICE)

    def step(i):
        fill, flush = cell.cursors[i % cell.n_phases]
        run(cell.state, cell.x, dt, a, cell.keys, cell.queries, skip, dt_bias, dt_softplus=True,
            write_pos=fill, is_flush=flush, max_cache_len=INTERVAL,
            state_batch_indices=cell.slots[i % cell.n_pools, :, 0], out=cell.out, **caches)

    return cell, step


def mamba_spec_triton(shape, window, dtype, batch):
    run = vllm_modules()["mamba.ops.selective_state_update_replayssm_spec"] \
        .selective_state_update_replayssm_spec
    s = SHAPES[shape]
    most = INTERVAL + window
    ring = 1 << (most - 1).bit_length()
    cell = Cell(shape, window, dtype, batch)
    cell.make_cursors(most - 2 * window, accepted_of(window), by_slot=True, ring=ring)
    a, dt_bias, skip = cell.head_views()
    n, inner, groups = batch * window, s.n_heads * s.value_dim, s.n_key_heads * s.key_dim
    conv_out = torch.cat([cell.x.reshape(n, inner), cell.keys.reshape(n, groups),
                          cell.queries.reshape(n, groups)], dim=1).contiguous()
    cache = cell.normal(cell.n_slots, ring, inner + groups)
    dt_cache = cell.normal(cell.n_slots, s.n_heads, ring, scale=0.5)
    scratch = torch.empty(batch, s.n_key_heads, ring, 1 << (window - 1).bit_length(),
                          dtype=ACTIVATION, device=DEVICE)

    def step(i):
        fill, flush = cell.cursors[i % cell.n_phases]
        run(cell.state, cache, dt_cache, conv_out, cell.gate, a, fill, cell.origin, flush,
            cell.starts, cell.slots[i % cell.n_pools, :, 0], most, window, inner, s.n_key_heads,
            s.key_dim, D=skip, dt_bias=dt_bias, out=cell.out, bc_pre=scratch)

    return cell, step


def mamba_replay_flashinfer(algorithm, shape, window, dtype, batch):
    s = SHAPES[shape]
    module = flashinfer_module(
        f"ck_{dtype}_t{window}_h{s.n_heads // s.n_key_heads}_g{s.n_key_heads}")
    two_kernels = algorithm == "two_kernels"
    if module is None or s.value_dim != 64 or (two_kernels and dtype == "int8"):
        return None
    ring = INTERVAL + window
    cell = Cell(shape, window, dtype, batch)
    cell.make_cursors(ring - 2 * window, accepted_of(window), by_slot=True, ring=ring)
    a, dt_bias, skip = cell.head_views()
    x, out = (t.view(batch, window, s.n_heads, s.value_dim) for t in (cell.x, cell.out))
    keys, queries = (t.view(batch, window, s.n_key_heads, s.key_dim)
                     for t in (cell.keys, cell.queries))
    dt = cell.gate.float().view(batch, window, s.n_heads)[..., None] \
        .expand(-1, -1, -1, s.value_dim)
    x_cache = cell.normal(cell.n_slots, s.n_heads, ring, s.value_dim)
    keys_cache = cell.normal(cell.n_slots, s.n_key_heads, ring, s.key_dim)
    dt_cache = cell.normal(cell.n_slots, s.n_heads, ring, dtype=torch.float32).abs() / 20
    scale = cell.state_scale if dtype == "int8" else None
    # FlashInfer's own choice of a split of a head's rows, by batch (its wrapper's rule).
    split = 2 if (algorithm == "monolith" and dtype == "fp32" and
                  batch * s.n_heads <= 8 * multiprocessors()) else 1
    scratch = [None, None, None]
    if two_kernels:
        scratch = [torch.empty(batch, s.n_heads, 32, 8, dtype=ACTIVATION, device=DEVICE),
                   torch.empty(batch, s.n_heads, 16, dtype=torch.float32, device=DEVICE),
                   torch.empty(batch, s.n_heads, 32, 8, dtype=ACTIVATION, device=DEVICE)]

    def step(i):
        fill, _ = cell.cursors[i % cell.n_phases]
        module.checkpointing_ssu(
            cell.state, x, dt, a, keys, queries, out, x_cache, keys_cache, dt_cache, cell.origin,
            fill, skip, None, dt_bias, True, cell.slots[i % cell.n_pools, :, 0], -1, scale, None,
            split, None, *scratch, 0, 0, 0)

    return cell, step


def multiprocessors():
    return torch.cuda.get_device_properties(0).multi_processor_count


def gdn_plain_triton(shape, window, dtype, batch):
    modules = vllm_modules()
    s = SHAPES[shape]
    cell = Cell(shape, window, dtype, batch, slots_each=window)
    if window == 1:
        run = modules["fla.ops.fused_recurrent"].fused_recurrent_gated_delta_rule_packed_decode
        mixed, out = cell.mixed_qkv(), cell.out.view(batch, 1, s.n_heads, s.value_dim)

        def step(i):
            run(mixed, cell.gate, cell.beta, cell.a_log, cell.dt_bias, s.key_dim ** -0.5,
                cell.state, out, cell.slots[i % cell.n_pools, :, 0], use_qk_l2norm_in_kernel=True)

        return cell, step
    run = modules["fla.ops.fused_sigmoid_gating"].fused_sigmoid_gating_delta_rule_update
    accepted = torch.full((batch,), accepted_of(window), dtype=torch.int32, device=DEVICE)

    def snapshots(i):
        run(cell.a_log, cell.gate, cell.beta, cell.dt_bias, cell.queries[None], cell.keys[None],
            cell.x[None], initial_state=cell.state, cu_seqlens=cell.starts,
            ssm_state_indices=cell.slots[i % cell.n_pools], num_accepted_tokens=accepted,
            use_qk_l2norm_in_kernel=True)

    return cell, snapshots


def gdn_caches(cell, ring):
    s = cell.shape
    return (cell.normal(cell.n_slots, s.n_heads, ring, s.value_dim, scale=0.5),
            cell.normal(cell.n_slots, s.n_key_heads, ring, s.key_dim, scale=s.key_dim ** -0.5),
            -cell.normal(cell.n_slots, s.n_heads, ring, dtype=torch.float32).abs() / 20)


def gdn_replay_triton(shape, window, dtype, batch):
    modules = vllm_modules()
    s = SHAPES[shape]
    if window == 1:
        run = modules["fla.ops.fused_recurrent_replayssm"] \
            .fused_recurrent_gated_delta_rule_replayssm
        cell = Cell(shape, window, dtype, batch)
        cell.make_cursors(INTERVAL - 2, 0, by_slot=False)
        caches, mixed = gdn_caches(cell, INTERVAL), cell.mixed_qkv()
        out = cell.out.view(batch, 1, s.n_heads, s.value_dim)

        def step(i):
            run(mixed, cell.gate, cell.beta, cell.a_log, cell.dt_bias, s.key_dim ** -0.5,
                cell.state, *caches, out, cell.slots[i % cell.n_pools, :, 0],
                cell.cursors[i % cell.n_phases][0], use_qk_l2norm_in_kernel=True)

        return cell, step
    run = modules["fla.ops.gdn_replayssm_spec_decode"].gdn_replayssm_spec_decode
    most = INTERVAL + window
    ring = 1 << (most - 1).bit_length()
    cell = Cell(shape, window, dtype, batch)
    cell.make_cursors(most - 2 * window, accepted_of(window), by_slot=True, ring=ring)
    caches, mixed = gdn_caches(cell, ring), cell.mixed_qkv()

    def verify(i):
        fill, flush = cell.cursors[i % cell.n_phases]
        run(mixed, cell.gate, cell.beta, cell.a_log, cell.dt_bias, cell.state, *caches, cell.out,
            cell.starts, cell.slots[i % cell.n_pools, :, 0], fill, cell.origin, flush, most, window)

    return cell, verify


def gdn_sweep_fla(shape, window, dtype, batch):
    """Prefill: raw gates in, from the zero state, final states out."""
    site_on_path()
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    s = SHAPES[shape]
    cell = Cell(shape, window, dtype, batch)
    lead = (batch, window)
    queries, keys = (t.view(*lead, s.n_key_heads, s.key_dim) for t in (cell.queries, cell.keys))
    values = cell.x.view(*lead, s.n_heads, s.value_dim)
    gate, beta = (t.view(*lead, s.n_heads) for t in (cell.gate, cell.beta))

    def step(i):
        cell.out, _ = chunk_gated_delta_rule(
            queries, keys, values, gate, beta, output_final_state=True,
            use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True,
            use_gate_in_kernel=True, A_log=cell.a_log, dt_bias=cell.dt_bias)

    return cell, step


def kernels_of(shape, window, dtype):
    """name -> (kind, make(batch)) of every peer kernel for a shape, window and state dtype."""
    bind = functools.partial
    at = (shape, window, dtype)
    if window == SWEEP[0]:
        gdn = SHAPES[shape].family == "GDN" and dtype == "fp32"
        return {"fla_chunk": ("sweep", bind(gdn_sweep_fla, *at))} if gdn else {}
    if SHAPES[shape].family == "GDN":
        found = {"vllm_triton": ("plain", bind(gdn_plain_triton, *at)),
                 "replayssm_triton": ("replay", bind(gdn_replay_triton, *at))}
    else:
        found = {"vllm_triton": ("plain", bind(mamba_plain_triton, *at)),
                 "flashinfer": ("plain", bind(mamba_plain_flashinfer, *at))}
        for name in ("monolith", "two_kernels"):
            found[f"flashinfer_{name}"] = ("replay", bind(mamba_replay_flashinfer, name, *at))
        if window > 1:
            found["replayssm_spec"] = ("replay", bind(mamba_spec_triton, *at))
        else:
            for name in ("output_only", "state_and_output"):
                found[f"replayssm_{name}"] = ("replay", bind(mamba_replay_triton, name, *at))
    if dtype == "int8":  # FlashInfer's alone
        found = {name: kernel for name, kernel in found.items() if name == "flashinfer_monolith"}
    return found
