"""The two hybrid families in plain PyTorch, for training.

Parameter names follow the published checkpoints (Qwen3.5 text models and Nemotron-H), so a
state_dict can be written to safetensors as it is. Recurrences run in chunks of 64 tokens with
float32 inside; the short causal convolution has width 4.
"""

import torch
import torch.nn.functional as F
from torch import nn

CHUNK = 64
COMPILE = {"on": False}


def compiled(fn):
    """Compiles a function on first use when COMPILE["on"] is set."""
    cache = {}

    def call(*args):
        if not COMPILE["on"]:
            return fn(*args)
        if "fn" not in cache:
            cache["fn"] = torch.compile(fn, dynamic=False)
        return cache["fn"](*args)

    return call


def linear(n_in, n_out, scale=1.0):
    layer = nn.Linear(n_in, n_out, bias=False)
    nn.init.normal_(layer.weight, std=scale * n_in**-0.5)
    return layer


@compiled
def rms(x, weight, eps, offset):
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return y * (offset + weight.float())


class Norm(nn.Module):
    """RMS norm; offset 1 is the zero-centred form, offset 0 the plain one."""

    def __init__(self, size, eps, offset):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 1.0 - offset))
        self.eps, self.offset = eps, offset

    def forward(self, x):
        return rms(x, self.weight, self.eps, self.offset)


class Conv(nn.Module):
    def __init__(self, channels, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, width).uniform_(-0.5, 0.5))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(self, x):
        return conv_silu(x, self.weight, self.bias)


@compiled
def conv_silu(x, weight, bias):
    width, length = weight.shape[-1], x.shape[1]
    padded = F.pad(x.float(), (0, 0, width - 1, 0))
    y = sum(padded[:, j:j + length] * weight[:, 0, j] for j in range(width))
    if bias is not None:
        y = y + bias
    return F.silu(y)


def initial_dt_bias(heads):
    """Inverse softplus of a step drawn log-uniformly from 0.001 to 0.1."""
    dt = torch.exp(torch.rand(heads) * (torch.tensor(0.1 / 0.001).log()) - 6.9077553)
    return dt + torch.log(-torch.expm1(-dt))


# ---------------------------------------------------------------------------------------------
# Gated delta net


class UnitLowerInverse(torch.autograd.Function):
    """Inverse of I + A for a strictly lower triangular A."""

    @staticmethod
    def forward(ctx, a):
        eye = torch.eye(a.shape[-1], device=a.device, dtype=a.dtype)
        inv = torch.linalg.solve_triangular(a + eye, eye.expand_as(a), upper=False,
                                            unitriangular=True)
        ctx.save_for_backward(inv)
        return inv

    @staticmethod
    def backward(ctx, grad):
        (inv,) = ctx.saved_tensors
        inv_t = inv.transpose(-1, -2)
        return -(inv_t @ grad @ inv_t).tril(-1)


class ChunkScan(torch.autograd.Function):
    """Carries the state over the chunks: new_i = u_i - w_i S_i, S_(i+1) = keep_i S_i + k_i^T new_i.

    u: [n, M, C, V]; w, k: [n, M, C, K]; keep: [n, M, 1, 1]. Returns every new_i and every S_i.
    """

    @staticmethod
    def forward(ctx, u, w, k, keep):
        n, m = u.shape[:2]
        new = torch.empty_like(u)
        state = u.new_zeros(n, m, w.shape[-1], u.shape[-1])
        for i in range(n):
            torch.baddbmm(u[i], w[i], state[i], alpha=-1.0, out=new[i])
            if i + 1 < n:
                torch.mul(state[i], keep[i], out=state[i + 1])
                state[i + 1].baddbmm_(k[i].transpose(1, 2), new[i])
        ctx.save_for_backward(w, k, keep, new, state)
        return new, state

    @staticmethod
    def backward(ctx, d_new, d_state):
        w, k, keep, new, state = ctx.saved_tensors
        n = w.shape[0]
        d_u = d_new.clone()
        after = torch.zeros_like(state)  # gradient of the state after chunk i
        for i in range(n - 1, -1, -1):
            if i + 1 < n:
                d_u[i].baddbmm_(k[i], after[i])
            if i:
                torch.addcmul(d_state[i], after[i], keep[i], out=after[i - 1])
                after[i - 1].baddbmm_(w[i].transpose(1, 2), d_u[i], alpha=-1.0)
        d_w = -(d_u @ state.transpose(-1, -2))
        d_k = new @ after.transpose(-1, -2)
        d_keep = (after * state).sum((-1, -2), keepdim=True)
        return d_u, d_w, d_k, d_keep


@compiled
def gdn_front(mixed, a, b, a_log, dt_bias, key_heads, value_heads, dk):
    """Splits, normalises and cuts into chunks: [n * B * Hv, C, ...], chunk number outermost."""
    batch, length, _ = mixed.shape
    n, repeat, keys = length // CHUNK, value_heads // key_heads, key_heads * dk
    q, k, v = mixed.float().split([keys, keys, mixed.shape[-1] - 2 * keys], -1)

    def heads(x, count):  # [B, T, count * D] -> [n, B, count, C, D]
        return x.reshape(batch, n, CHUNK, count, -1).permute(1, 0, 3, 2, 4)

    def spread(x):  # every key head serves `repeat` value heads
        x = x.unsqueeze(3).expand(-1, -1, -1, repeat, -1, -1)
        return x.reshape(n * batch * value_heads, CHUNK, dk)

    q, k = heads(q, key_heads), heads(k, key_heads)
    q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * dk**-0.5
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
    g = -torch.exp(a_log.float()) * F.softplus(a.float() + dt_bias.float())
    flat = n * batch * value_heads
    g = heads(g, value_heads).reshape(flat, CHUNK)
    beta = heads(torch.sigmoid(b.float()), value_heads).reshape(flat, CHUNK)
    return spread(q), spread(k), heads(v, value_heads).reshape(flat, CHUNK, -1), g, beta


@compiled
def gdn_before(q, k, v, g, beta):
    """q, k: [M, C, K]; v: [M, C, V]; g, beta: [M, C]. M counts chunks times rows times heads."""
    total = g.cumsum(-1)
    diff = total[:, :, None] - total[:, None, :]
    lower = torch.ones(diff.shape[-2:], dtype=torch.bool, device=q.device).tril()
    decay = torch.where(lower, torch.exp(torch.where(lower, diff, 0.0)), 0.0)
    kt = k.transpose(-1, -2)
    inner = (k @ kt * beta[..., None] * decay).tril(-1)
    attn = q @ kt * decay
    grow, last = torch.exp(total)[..., None], total[:, -1:]
    shrink = torch.exp(last - total)[..., None]
    return (inner, attn, v * beta[..., None], k * beta[..., None] * grow, q * grow, k * shrink,
            torch.exp(last)[..., None])


def gated_delta(q, k, v, g, beta, n):
    """Chunked gated delta rule over what gdn_front returns, n chunks a row."""
    inner, attn, vb, kb, qg, kd, keep = gdn_before(q, k, v, g, beta)
    inv = UnitLowerInverse.apply(inner)
    u, w = inv @ vb, inv @ kb
    new, state = ChunkScan.apply(*(x.unflatten(0, (n, -1)) for x in (u, w, kd, keep)))
    return torch.baddbmm(torch.bmm(qg, state.flatten(0, 1)), attn, new.flatten(0, 1))


@compiled
def gdn_output(o, z, weight, eps, heads):
    """o: [n * B * H, C, V] back to [B, T, H * V], normalised per head and gated."""
    batch, length, _ = z.shape
    o = o.reshape(-1, batch, heads, CHUNK, o.shape[-1]).permute(1, 0, 3, 2, 4)
    o = o.reshape(batch, -1, heads, o.shape[-1])[:, :length].float()
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + eps) * weight.float()
    return o.flatten(2) * F.silu(z.float())


class DeltaNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.hk, self.hv = c["linear_num_key_heads"], c["linear_num_value_heads"]
        self.dk, self.dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
        h, self.eps = c["hidden_size"], c["rms_norm_eps"]
        keys, values = self.hk * self.dk, self.hv * self.dv
        self.in_proj_qkv = linear(h, 2 * keys + values)
        self.in_proj_z = linear(h, values)
        self.in_proj_b = linear(h, self.hv)
        self.in_proj_a = linear(h, self.hv, 0.5)
        self.conv1d = Conv(2 * keys + values, c["linear_conv_kernel_dim"], bias=False)
        self.A_log = nn.Parameter(torch.empty(self.hv).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(initial_dt_bias(self.hv))
        self.norm = Norm(self.dv, self.eps, 0.0)
        self.out_proj = linear(values, h, (2 * c["num_hidden_layers"]) ** -0.5)

    def forward(self, x):
        mixed = self.conv1d(self.in_proj_qkv(x))
        z, b, a = self.in_proj_z(x), self.in_proj_b(x), self.in_proj_a(x)
        with torch.autocast(x.device.type, enabled=False):
            pad = -x.shape[1] % CHUNK
            if pad:
                mixed, a, b = (F.pad(y, (0, 0, 0, pad)) for y in (mixed, a, b))
            parts = gdn_front(mixed, a, b, self.A_log, self.dt_bias, self.hk, self.hv, self.dk)
            o = gated_delta(*parts, mixed.shape[1] // CHUNK)
            o = gdn_output(o, z, self.norm.weight, self.eps, self.hv)
        return self.out_proj(o)


# ---------------------------------------------------------------------------------------------
# Mamba-2


@compiled
def mamba_core(x, bm, cm, dt, a_log, dt_bias, d_skip):
    """x: [B, n, C, H, P]; bm, cm: [B, n, C, G, N]; dt: [B, n, C, H] raw. Float32 throughout."""
    per_group = x.shape[3] // bm.shape[3]
    dt = F.softplus(dt.float() + dt_bias.float())
    total = (dt * -torch.exp(a_log.float())).transpose(2, 3).cumsum(-1)  # [B, n, H, C]
    xd = (x * dt[..., None]).transpose(2, 3)  # [B, n, H, C, P]
    diff = total[..., :, None] - total[..., None, :]
    lower = torch.ones(diff.shape[-2:], dtype=torch.bool, device=x.device).tril()
    decay = torch.where(lower, torch.exp(torch.where(lower, diff, 0.0)), 0.0)
    bg, cg = bm.transpose(2, 3), cm.transpose(2, 3)  # [B, n, G, C, N]
    score = (cg @ bg.transpose(-1, -2)).repeat_interleave(per_group, 2)
    y = (score * decay) @ xd
    bh = bg.repeat_interleave(per_group, 2)
    ch = cg.repeat_interleave(per_group, 2)
    last = total[..., -1:]
    add = (bh * torch.exp(last - total)[..., None]).transpose(-1, -2) @ xd  # [B, n, H, N, P]
    # State before chunk i = sum over j < i of exp(sum of the chunks between) * add_j.
    run = last[..., 0].transpose(1, 2).cumsum(-1)  # [B, H, n]
    before = F.pad(run[..., :-1], (1, 0))
    gap = before[..., :, None] - run[..., None, :]
    earlier = torch.ones(gap.shape[-2:], dtype=torch.bool, device=x.device).tril(-1)
    carry = torch.where(earlier, torch.exp(torch.where(earlier, gap, 0.0)), 0.0)
    n_state, p = add.shape[-2:]
    state = carry @ add.transpose(1, 2).flatten(3)  # [B, H, n, N * P]
    state = state.unflatten(-1, (n_state, p)).transpose(1, 2)
    y = y + (ch * torch.exp(total)[..., None]) @ state
    return y.transpose(2, 3) + x * d_skip.float()[:, None]


@compiled
def mamba_gate(y, z, weight, eps, groups):
    y = y.float() * F.silu(z.float())
    y = y.unflatten(-1, (groups, -1))
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return y.flatten(-2) * weight.float()


class Mamba2(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.p = c["mamba_num_heads"], c["mamba_head_dim"]
        self.groups, self.n = c["n_groups"], c["ssm_state_size"]
        h, self.eps = c["hidden_size"], c["layer_norm_epsilon"]
        self.d = self.heads * self.p
        conv = self.d + 2 * self.groups * self.n
        self.in_proj = linear(h, self.d + conv + self.heads)
        self.conv1d = Conv(conv, c["conv_kernel"], bias=True)
        self.A_log = nn.Parameter(torch.empty(self.heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(self.heads))
        self.dt_bias = nn.Parameter(initial_dt_bias(self.heads))
        self.norm = Norm(self.d, self.eps, 0.0)
        self.out_proj = linear(self.d, h, c["num_hidden_layers"] ** -0.5)

    def forward(self, x):
        length = x.shape[1]
        z, xbc, dt = self.in_proj(x).split(
            [self.d, self.d + 2 * self.groups * self.n, self.heads], -1)
        xbc = self.conv1d(xbc)
        with torch.autocast(x.device.type, enabled=False):
            pad = -length % CHUNK
            if pad:
                xbc, dt = (F.pad(y, (0, 0, 0, pad)) for y in (xbc, dt))
            xbc, dt = (y.unflatten(1, (-1, CHUNK)) for y in (xbc, dt))
            xs, bm, cm = xbc.split([self.d, self.groups * self.n, self.groups * self.n], -1)
            y = mamba_core(xs.unflatten(-1, (self.heads, self.p)),
                           bm.unflatten(-1, (self.groups, self.n)),
                           cm.unflatten(-1, (self.groups, self.n)), dt,
                           self.A_log, self.dt_bias, self.D)
            y = y.flatten(1, 2).flatten(2)[:, :length]
            y = mamba_gate(y, z, self.norm.weight, self.eps, self.groups)
        return self.out_proj(y)


# ---------------------------------------------------------------------------------------------
# Attention and MLPs


def rope_tables(length, c, device):
    rope = c["rope_parameters"]
    size = int(c["head_dim"] * rope["partial_rotary_factor"])
    freq = rope["rope_theta"] ** (-torch.arange(0, size, 2, device=device).float() / size)
    angle = torch.arange(length, device=device).float()[:, None] * freq
    return angle.cos()[:, None], angle.sin()[:, None]  # [T, 1, size / 2]


@compiled
def rotate(x, cos, sin):
    half = cos.shape[-1]
    x = x.float()
    a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


class Attention(nn.Module):
    """Grouped-query attention; gated with q/k norms and RoPE (Qwen3.5) or bare (Nemotron-H)."""

    def __init__(self, c, gated):
        super().__init__()
        self.c, self.gated = c, gated
        self.heads, self.kv = c["num_attention_heads"], c["num_key_value_heads"]
        self.hd, h = c["head_dim"], c["hidden_size"]
        self.q_proj = linear(h, self.heads * self.hd * (2 if gated else 1))
        self.k_proj = linear(h, self.kv * self.hd)
        self.v_proj = linear(h, self.kv * self.hd)
        self.o_proj = linear(self.heads * self.hd, h, c["num_hidden_layers"] ** -0.5)
        if gated:
            self.q_norm = Norm(self.hd, c["rms_norm_eps"], 1.0)
            self.k_norm = Norm(self.hd, c["rms_norm_eps"], 1.0)

    def forward(self, x):
        batch, length, _ = x.shape
        q = self.q_proj(x).unflatten(-1, (self.heads, -1))
        k = self.k_proj(x).unflatten(-1, (self.kv, self.hd))
        v = self.v_proj(x).unflatten(-1, (self.kv, self.hd))
        if self.gated:
            q, gate = q.chunk(2, -1)
            cos, sin = rope_tables(length, self.c, x.device)
            q = rotate(self.q_norm(q), cos, sin).to(v.dtype)
            k = rotate(self.k_norm(k), cos, sin).to(v.dtype)
        repeat = self.heads // self.kv
        k, v = (y.repeat_interleave(repeat, 2) for y in (k, v))
        o = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2),
                                           v.transpose(1, 2), is_causal=True)
        if self.gated:
            return self.o_proj(gate_heads(o, gate))
        return self.o_proj(o.transpose(1, 2).reshape(batch, length, -1))


@compiled
def swiglu(gate, up):
    return F.silu(gate.float()) * up


@compiled
def relu2(x):
    return F.relu(x.float()).square()


@compiled
def gate_heads(o, gate):
    """o: [B, H, T, D]; gate: [B, T, H, D]. Returns [B, T, H * D]."""
    return (o.transpose(1, 2) * torch.sigmoid(gate.float())).flatten(2)


class GatedMLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, ff = c["hidden_size"], c["intermediate_size"]
        self.gate_proj, self.up_proj = linear(h, ff), linear(h, ff)
        self.down_proj = linear(ff, h, (2 * c["num_hidden_layers"]) ** -0.5)

    def forward(self, x):
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class Relu2MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, ff = c["hidden_size"], c["intermediate_size"]
        self.up_proj = linear(h, ff)
        self.down_proj = linear(ff, h, c["num_hidden_layers"] ** -0.5)

    def forward(self, x):
        return self.down_proj(relu2(self.up_proj(x)))


# ---------------------------------------------------------------------------------------------
# Whole models


class QwenLayer(nn.Module):
    def __init__(self, c, kind):
        super().__init__()
        h, eps = c["hidden_size"], c["rms_norm_eps"]
        self.input_layernorm = Norm(h, eps, 1.0)
        if kind == "linear_attention":
            self.linear_attn = DeltaNet(c)
        else:
            self.self_attn = Attention(c, gated=True)
        self.post_attention_layernorm = Norm(h, eps, 1.0)
        self.mlp = GatedMLP(c)

    def forward(self, x):
        mixer = self.linear_attn if hasattr(self, "linear_attn") else self.self_attn
        x = x + mixer(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class QwenBody(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList(QwenLayer(c, kind) for kind in c["layer_types"])
        self.norm = Norm(c["hidden_size"], c["rms_norm_eps"], 1.0)


class QwenMTP(nn.Module):
    """Predicts token t + 2 from the hidden state at t and the embedding of token t + 1."""

    def __init__(self, c):
        super().__init__()
        h, eps = c["hidden_size"], c["rms_norm_eps"]
        self.pre_fc_norm_embedding = Norm(h, eps, 1.0)
        self.pre_fc_norm_hidden = Norm(h, eps, 1.0)
        self.fc = linear(2 * h, h)
        self.layers = nn.ModuleList([QwenLayer(c, "full_attention")])
        self.norm = Norm(h, eps, 1.0)

    def forward(self, embedded, hidden):
        x = torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)], -1)
        return self.norm(self.layers[0](self.fc(x).float()))


class Qwen(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.model = QwenBody(c)
        if c.get("mtp_num_hidden_layers"):
            self.mtp = QwenMTP(c)

    def embed(self, ids):
        return self.model.embed_tokens(ids)

    def hidden(self, ids):
        x = self.embed(ids)
        for layer in self.model.layers:
            x = layer(x)
        return self.model.norm(x)

    def head(self, hidden):
        return F.linear(hidden, self.model.embed_tokens.weight)


class NemotronLayer(nn.Module):
    def __init__(self, c, kind):
        super().__init__()
        self.norm = Norm(c["hidden_size"], c["layer_norm_epsilon"], 0.0)
        if kind == "M":
            self.mixer = Mamba2(c)
        elif kind == "*":
            self.mixer = Attention(c, gated=False)
        else:
            self.mixer = Relu2MLP(c)

    def forward(self, x):
        return x + self.mixer(self.norm(x))


class NemotronBody(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embeddings = nn.Embedding(c["vocab_size"], c["hidden_size"])
        nn.init.normal_(self.embeddings.weight, std=0.02)
        self.layers = nn.ModuleList(NemotronLayer(c, k) for k in c["hybrid_override_pattern"])
        self.norm_f = Norm(c["hidden_size"], c["layer_norm_epsilon"], 0.0)


class Nemotron(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.backbone = NemotronBody(c)
        self.lm_head = linear(c["hidden_size"], c["vocab_size"], 0.32)

    def hidden(self, ids):
        x = self.backbone.embeddings(ids)
        for layer in self.backbone.layers:
            x = layer(x)
        return self.backbone.norm_f(x)

    def head(self, hidden):
        return self.lm_head(hidden)


def build(c):
    return (Nemotron if c["model_type"] == "nemotron_h" else Qwen)(c)
