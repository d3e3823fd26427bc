// Included inside an anonymous namespace after `s` names the SIMD set.

inline s::V load_span(ConstSpan x, int64_t i, int n) {
  const uint16_t* narrow = static_cast<const uint16_t*>(x.data) + i;
  if (x.dtype == DType::kBF16) {
    return n == 16 ? s::load_bf16(narrow) : s::load_bf16_n(narrow, n);
  }
  if (x.dtype == DType::kF16) {
    return n == 16 ? s::load_half(narrow) : s::load_half_n(narrow, n);
  }
  const float* wide = static_cast<const float*>(x.data) + i;
  return n == 16 ? s::load(wide) : s::load_n(wide, n);
}

inline void store_span(Span y, int64_t i, s::V value, int n) {
  if (y.dtype == DType::kBF16) {
    return s::store_bf16(static_cast<uint16_t*>(y.data) + i, value, n);
  }
  float* wide = static_cast<float*>(y.data) + i;
  if (n == 16) return s::store(wide, value);
  s::store_n(wide, value, n);
}

// body(i, lanes) over [0, n) in steps of sixteen.
template <typename Body>
inline __attribute__((always_inline)) void each16(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) body(i, 16);
  if (i < n) body(i, static_cast<int>(n - i));
}

void silu_mul_row(ConstSpan gate, ConstSpan up, Span y, int64_t n) {
  each16(n, [&](int64_t i, int lanes) {
    store_span(y, i, s::mul(s::silu(load_span(gate, i, lanes)), load_span(up, i, lanes)), lanes);
  });
}

void relu2_row(ConstSpan x, Span y, int64_t n) {
  each16(n, [&](int64_t i, int lanes) {
    // max(0, x) with x second: a NaN stays one.
    const s::V positive = s::max(s::zero(), load_span(x, i, lanes));
    store_span(y, i, s::mul(positive, positive), lanes);
  });
}

void sigmoid_mul_row(ConstSpan x, ConstSpan gate, Span y, int64_t n) {
  each16(n, [&](int64_t i, int lanes) {
    store_span(y, i, s::mul(load_span(x, i, lanes), s::sigmoid(load_span(gate, i, lanes))), lanes);
  });
}

void add_row(float* x, ConstSpan y, float scale, int64_t n) {
  const s::V factor = s::set1(scale);
  each16(n, [&](int64_t i, int lanes) {
    const s::V old = load_span({x, DType::kF32}, i, lanes);
    store_span({x, DType::kF32}, i, s::fma(load_span(y, i, lanes), factor, old), lanes);
  });
}

void copy_row(ConstSpan x, Span y, float scale, int64_t n) {
  const s::V factor = s::set1(scale);
  each16(n, [&](int64_t i, int lanes) {
    store_span(y, i, s::mul(load_span(x, i, lanes), factor), lanes);
  });
}

inline float inverse_rms(float square_sum, const NormArgs& args) {
  const float mean = square_sum / static_cast<float>(args.n);
  return 1.0f / __builtin_sqrtf(mean + args.eps);
}

inline s::V apply_weight(s::V value, const NormArgs& args, int64_t i, int lanes) {
  if (args.weight == nullptr) return value;
  s::V weight = load_span({args.weight, DType::kF32}, i, lanes);
  if (args.zero_centred) weight = s::add(weight, s::set1(1.0f));
  return s::mul(value, weight);
}

void rms_norm_row(ConstSpan x, Span y, const NormArgs& args) {
  s::V squares = s::zero();
  each16(args.n, [&](int64_t i, int lanes) {
    const s::V v = load_span(x, i, lanes);
    squares = s::fma(v, v, squares);
  });
  const s::V factor = s::set1(inverse_rms(s::reduce_add(squares), args));
  each16(args.n, [&](int64_t i, int lanes) {
    const s::V v = s::mul(load_span(x, i, lanes), factor);
    store_span(y, i, apply_weight(v, args, i, lanes), lanes);
  });
}

inline s::V gated(s::V value, ConstSpan z, bool sigmoid, int64_t i, int lanes) {
  const s::V gate = load_span(z, i, lanes);
  return s::mul(value, sigmoid ? s::sigmoid(gate) : s::silu(gate));
}

void gated_norm_row(ConstSpan y, ConstSpan z, Span out, const NormArgs& norm,
                    const GateArgs& gate) {
  if (!gate.normalise) {
    each16(norm.n, [&](int64_t i, int lanes) {
      const s::V v = gated(load_span(y, i, lanes), z, gate.sigmoid, i, lanes);
      store_span(out, i, v, lanes);
    });
    return;
  }
  s::V squares = s::zero();
  each16(norm.n, [&](int64_t i, int lanes) {
    s::V v = load_span(y, i, lanes);
    if (gate.gate_first) v = gated(v, z, gate.sigmoid, i, lanes);
    squares = s::fma(v, v, squares);
    store_span({gate.work, DType::kF32}, i, v, lanes);
  });
  const s::V factor = s::set1(inverse_rms(s::reduce_add(squares), norm));
  each16(norm.n, [&](int64_t i, int lanes) {
    s::V v = s::mul(load_span({gate.work, DType::kF32}, i, lanes), factor);
    v = apply_weight(v, norm, i, lanes);
    if (!gate.gate_first) v = gated(v, z, gate.sigmoid, i, lanes);
    store_span(out, i, v, lanes);
  });
}

void rope_head(Span x, const float* cosine, const float* sine, int64_t n_pairs) {
  const ConstSpan from{x.data, x.dtype};
  each16(n_pairs, [&](int64_t i, int lanes) {
    const s::V a = load_span(from, i, lanes);
    const s::V b = load_span(from, i + n_pairs, lanes);
    const s::V c = load_span({cosine, DType::kF32}, i, lanes);
    const s::V sn = load_span({sine, DType::kF32}, i, lanes);
    store_span(x, i, s::fma(s::sub(s::zero(), b), sn, s::mul(a, c)), lanes);
    store_span(x, i + n_pairs, s::fma(a, sn, s::mul(b, c)), lanes);
  });
}

float max_row(const float* x, int64_t n) {
  s::V top = s::set1(-__builtin_inff());
  s::V nan = s::zero();
  each16(n, [&](int64_t i, int lanes) {
    s::V v = load_span({x, DType::kF32}, i, lanes);
    nan = s::select_nan(v, v, nan);
    if (lanes < 16) {  // the empty lanes repeat the first one
      float t[16];
      s::store(t, v);
      for (int lane = lanes; lane < 16; ++lane) t[lane] = t[0];
      v = s::load(t);
    }
    top = s::max(v, top);
  });
  const float bad = s::reduce_add(nan);
  if (bad != bad) return bad;
  float t[16];
  s::store(t, top);
  float max = t[0];
  for (int lane = 1; lane < 16; ++lane) max = t[lane] > max ? t[lane] : max;
  return max;
}

void exp_weights_row(const float* x, float max, float temperature, float* weights, int64_t n) {
  const s::V top = s::set1(max);
  const s::V divisor = s::set1(temperature);
  each16(n, [&](int64_t i, int lanes) {
    const s::V v = s::div(s::sub(load_span({x, DType::kF32}, i, lanes), top), divisor);
    store_span({weights, DType::kF32}, i, s::exp(v), lanes);
  });
}

// noise_block() of 16 blocks side by side.
void noise_row(uint64_t seed, int64_t position, uint32_t first, uint32_t* out) {
  constexpr int kBlocks = static_cast<int>(kNoiseTokens) / 4;
  uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int i = 0; i < kBlocks; ++i) {
    c0[i] = static_cast<uint32_t>(position);
    c1[i] = static_cast<uint32_t>(static_cast<uint64_t>(position) >> 32);
    c2[i] = first + static_cast<uint32_t>(i);
    c3[i] = 0;
  }
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kBlocks; ++i) {
      const uint64_t a = uint64_t{0xD2511F53u} * c0[i], b = uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<uint32_t>(b >> 32) ^ c1[i] ^ key0;
      c2[i] = static_cast<uint32_t>(a >> 32) ^ c3[i] ^ key1;
      c1[i] = static_cast<uint32_t>(b);
      c3[i] = static_cast<uint32_t>(a);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (int i = 0; i < kBlocks; ++i) {
    out[4 * i] = c0[i];
    out[4 * i + 1] = c1[i];
    out[4 * i + 2] = c2[i];
    out[4 * i + 3] = c3[i];
  }
}

constexpr VectorKernels kKernels = {silu_mul_row, relu2_row,       sigmoid_mul_row, add_row,
                                    copy_row,     rms_norm_row,    gated_norm_row,  rope_head,
                                    max_row,      exp_weights_row, noise_row};
