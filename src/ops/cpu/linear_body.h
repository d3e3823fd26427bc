// Panels of 64 outputs. Included inside an anonymous namespace after these names:
//   V, kWidth              a vector of kWidth fp32 lanes
//   load, store, set1, fma
//   pair_low, pair_high    fp32 values of the even and odd elements of kWidth bf16 pairs
//   kVectors<rows>         accumulator vectors per row, so that the block fits the registers
//   prefetch(p), prefetch_far(p)
//
// A block holds rows x (kVectors * kWidth) sums in registers and walks i upwards: every output is
// one sequential sum, so blocking and chunking leave the bits alone.

constexpr int64_t kPanelWidth = 64;
constexpr int64_t kBlockRows = 6;
constexpr int64_t kStepBytes = 256;  // one step of i (or pair of i) of a panel
constexpr int64_t kChunkSteps = 64;  // 16 KB of weight stay in L1 for all blocks of rows
constexpr int64_t kPrefetchBytes = 16 * kStepBytes;
constexpr int64_t kPrefetchFarBytes = 8 * kPrefetchBytes;

struct Fp32Weight {
  using X = float;
  static constexpr int64_t kStep = 1;
  template <int kRows, int kVecs>
  static inline __attribute__((always_inline)) void step(V (&sum)[kRows][kVecs], const char* weight,
                                                         const float* x, int64_t x_stride) {
    const float* w = reinterpret_cast<const float*>(weight);
    V wv[kVecs];
    for (int v = 0; v < kVecs; ++v) wv[v] = load(w + v * kWidth);
    for (int r = 0; r < kRows; ++r) {
      const V xv = set1(x[r * x_stride]);
      for (int v = 0; v < kVecs; ++v) sum[r][v] = fma(wv[v], xv, sum[r][v]);
    }
  }
  template <int kRows, int kVecs>
  static inline __attribute__((always_inline)) void tail(V (&)[kRows][kVecs], const char*,
                                                         const float*, int64_t) {}
};

struct Bf16Weight {
  using X = float;
  static constexpr int64_t kStep = 2;
  template <int kRows, int kVecs>
  static inline __attribute__((always_inline)) void tail(V (&sum)[kRows][kVecs], const char* weight,
                                                         const float* x, int64_t x_stride) {
    V wv[kVecs];
    for (int v = 0; v < kVecs; ++v) wv[v] = pair_low(weight + v * kWidth * 4);
    for (int r = 0; r < kRows; ++r) {
      const V xv = set1(x[r * x_stride]);
      for (int v = 0; v < kVecs; ++v) sum[r][v] = fma(wv[v], xv, sum[r][v]);
    }
  }
  template <int kRows, int kVecs>
  static inline __attribute__((always_inline)) void step(V (&sum)[kRows][kVecs], const char* weight,
                                                         const float* x, int64_t x_stride) {
    tail(sum, weight, x, x_stride);
    V wv[kVecs];
    for (int v = 0; v < kVecs; ++v) wv[v] = pair_high(weight + v * kWidth * 4);
    for (int r = 0; r < kRows; ++r) {
      const V xv = set1(x[r * x_stride + 1]);
      for (int v = 0; v < kVecs; ++v) sum[r][v] = fma(wv[v], xv, sum[r][v]);
    }
  }
};

// One block over n elements of i. sums: [kRows][64], read unless `first`, written always.
template <class Weight, int kRows, bool kStream>
void block(const char* weight, int64_t n, const typename Weight::X* x, int64_t x_stride,
           float* sums, bool first) {
  constexpr int kVecs = kVectors<kRows>;
  for (int64_t column = 0; column < kPanelWidth; column += kVecs * kWidth) {
    V sum[kRows][kVecs];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecs; ++v) {
        sum[r][v] = first ? set1(0.0f) : load(sums + r * kPanelWidth + column + v * kWidth);
      }
    }
    const char* w = weight + column * 4;
    const typename Weight::X* xi = x;
    for (int64_t i = 0; i + Weight::kStep <= n; i += Weight::kStep) {
      if constexpr (kStream) {
        for (int64_t b = 0; b < kVecs * kWidth * 4; b += 64) {
          prefetch(w + kPrefetchBytes + b);
          prefetch_far(w + kPrefetchFarBytes + b);
        }
      }
      Weight::step(sum, w, xi, x_stride);
      w += kStepBytes;
      xi += Weight::kStep;
    }
    if (n % Weight::kStep != 0) Weight::tail(sum, w, xi, x_stride);
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecs; ++v) {
        store(sums + r * kPanelWidth + column + v * kWidth, sum[r][v]);
      }
    }
  }
}

template <class Weight, bool kStream>
void blocks_of(int64_t rows, const char* weight, int64_t n, const typename Weight::X* x,
               int64_t x_stride, float* sums, bool first) {
  switch (rows) {
    case 1:
      return block<Weight, 1, kStream>(weight, n, x, x_stride, sums, first);
    case 2:
      return block<Weight, 2, kStream>(weight, n, x, x_stride, sums, first);
    case 3:
      return block<Weight, 3, kStream>(weight, n, x, x_stride, sums, first);
    case 4:
      return block<Weight, 4, kStream>(weight, n, x, x_stride, sums, first);
    case 5:
      return block<Weight, 5, kStream>(weight, n, x, x_stride, sums, first);
    default:
      return block<Weight, 6, kStream>(weight, n, x, x_stride, sums, first);
  }
}

inline uint16_t round_bf16(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u : rounded);
}

void finish(const PanelArgs& args, int64_t panel, const float* sums) {
  const int64_t first = panel * kPanelWidth;
  const int64_t left = args.n_out - first;
  const int64_t n = left < kPanelWidth ? left : kPanelWidth;
  for (int64_t r = 0; r < args.n_rows; ++r) {
    float row[kPanelWidth];
    for (int64_t o = 0; o < kPanelWidth; ++o) row[o] = sums[r * kPanelWidth + o];
    if (args.bias != nullptr) {
      for (int64_t o = 0; o < kPanelWidth; ++o) row[o] += args.bias[first + o];
    }
    if (args.y_bf16) {
      uint16_t* y = static_cast<uint16_t*>(args.y) + r * args.y_stride + first;
      for (int64_t o = 0; o < n; ++o) y[o] = round_bf16(row[o]);
    } else {
      float* y = static_cast<float*>(args.y) + r * args.y_stride + first;
      for (int64_t o = 0; o < n; ++o) y[o] = row[o];
    }
  }
}

// x of all rows, elements [i, i + n): in place where the types agree, else widened in scratch.
inline const float* x_chunk(const PanelArgs& args, int64_t i, int64_t n, float* widened,
                            int64_t& stride, const float*) {
  if (!args.x_bf16) {
    stride = args.x_stride;
    return static_cast<const float*>(args.x) + i;
  }
  stride = n;
  for (int64_t r = 0; r < args.n_rows; ++r) {
    const uint16_t* from = static_cast<const uint16_t*>(args.x) + r * args.x_stride + i;
    for (int64_t j = 0; j < n; ++j) {
      const uint32_t bits = static_cast<uint32_t>(from[j]) << 16;
      __builtin_memcpy(widened + r * n + j, &bits, 4);
    }
  }
  return widened;
}

inline const uint16_t* x_chunk(const PanelArgs& args, int64_t i, int64_t, float*, int64_t& stride,
                               const uint16_t*) {
  stride = args.x_stride;
  return static_cast<const uint16_t*>(args.x) + i;
}

// Few rows: the weight streams from memory once, sums stay in registers.
template <class Weight>
void stream_panels(const PanelArgs& args, float* sums, float* widened) {
  const typename Weight::X* kind = nullptr;
  const int64_t panel_bytes = (args.n_in + Weight::kStep - 1) / Weight::kStep * kStepBytes;
  const int64_t limit = kConvertElements / kBlockRows;
  const int64_t chunk = args.n_in < limit ? args.n_in : limit;
  const int64_t n_panels = (args.n_out + kPanelWidth - 1) / kPanelWidth;
  int64_t stride = 0;
  const typename Weight::X* x = nullptr;
  for (int64_t panel = 0; panel < n_panels; ++panel) {
    const char* weight = static_cast<const char*>(args.weight) + panel * panel_bytes;
    for (int64_t i = 0; i < args.n_in; i += chunk) {
      const int64_t n = args.n_in - i < chunk ? args.n_in - i : chunk;
      if (panel == 0 || chunk < args.n_in) x = x_chunk(args, i, n, widened, stride, kind);
      blocks_of<Weight, true>(args.n_rows, weight + i / Weight::kStep * kStepBytes, n, x, stride,
                              sums, i == 0);
    }
    finish(args, panel, sums);
  }
}

// Many rows: a chunk of a panel serves all blocks of rows from L1 while the next one is fetched.
template <class Weight>
void tile_panels(const PanelArgs& args, float* sums, float* widened) {
  const typename Weight::X* kind = nullptr;
  constexpr int64_t kChunk = kChunkSteps * Weight::kStep;
  const int64_t panel_bytes = (args.n_in + Weight::kStep - 1) / Weight::kStep * kStepBytes;
  const int64_t n_panels = (args.n_out + kPanelWidth - 1) / kPanelWidth;
  const int64_t n_blocks = (args.n_rows + kBlockRows - 1) / kBlockRows;
  const int64_t ahead = (kChunkSteps * kStepBytes / 64 + n_blocks - 1) / n_blocks * 64;
  for (int64_t panel = 0; panel < n_panels; ++panel) {
    const char* weight = static_cast<const char*>(args.weight) + panel * panel_bytes;
    for (int64_t i = 0; i < args.n_in; i += kChunk) {
      const int64_t n = args.n_in - i < kChunk ? args.n_in - i : kChunk;
      int64_t stride = 0;
      const typename Weight::X* x = x_chunk(args, i, n, widened, stride, kind);
      const char* next = weight + kChunkSteps * kStepBytes;
      for (int64_t b = 0; b < n_blocks; ++b) {
        // Blocks of even height: 64 rows are nine blocks of six and two of five.
        const int64_t row = args.n_rows * b / n_blocks;
        const int64_t rows = args.n_rows * (b + 1) / n_blocks - row;
        for (int64_t line = 0; line < ahead; line += 64) prefetch_far(next + b * ahead + line);
        blocks_of<Weight, false>(rows, weight, n, x + row * stride, stride,
                                 sums + row * kPanelWidth, i == 0);
      }
      weight = next;
    }
    finish(args, panel, sums);
  }
}

template <class Weight>
void panels(const PanelArgs& args) {
  float* sums = static_cast<float*>(args.scratch);
  float* widened = sums + kMaxPanelRows * kPanelWidth;
  if (args.n_rows <= kBlockRows) return stream_panels<Weight>(args, sums, widened);
  tile_panels<Weight>(args, sums, widened);
}
