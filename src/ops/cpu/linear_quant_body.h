// Panels of few bits. Included inside an anonymous namespace after linear_body.h and these names:
//
//   load_f16, load_bf16, load_u8, load_i8, load_e4m3, load_e8m0   kWidth stored scales as fp32
//   Operand, XLane              a vector of weights and one of x spread: fp32, or pairs in bf16
//   spread(const X*)            x of one step in all lanes
//   mul_add(w, x, sum)
//   kQuantVectors<rows>         vectors of accumulators a row
//   X, kStep                    type of x, inputs of a step
//   Nibble, Int6, Int8, E4m3    decoders: kUnit inputs per Unit; kUnitBytes of all 64 outputs;
//                               Unit::load(tables, codes, column), operand(step); operands are
//                               weights over kFactor, a power of two that goes into the scale
//   DecodedWeight               Weight of linear_body.h on operands as stored by store_operand
//
// Order of an output's sum: for each group the products of its inputs upwards from 0, then
// sum = fma(dot, scale, sum), then sum = fma(min, sum of x, sum). Formats without scales go on in
// one sum. Weights decoded in registers or through memory are the same operands in the same order,
// so the number of rows leaves the bits alone.

// What a format has per group, and where.
struct GroupLayout {
  int64_t scale_bytes, min_bytes, super_bytes, code_bytes, bytes;

  explicit GroupLayout(const QuantArgs& args) {
    switch (args.scale) {
      case GroupScale::kNone:
        scale_bytes = 0;
        break;
      case GroupScale::kF16:
      case GroupScale::kBF16:
        scale_bytes = 128;
        break;
      case GroupScale::kF32:
        scale_bytes = 256;
        break;
      default:
        scale_bytes = 64;
    }
    min_bytes = args.min == GroupMin::kNone ? 0 : args.min == GroupMin::kAdded ? 128 : 64;
    super_bytes = !args.super ? 0 : args.min == GroupMin::kSuper ? 256 : 128;
    const int64_t bits = args.codes == Codes::kNibble ? 4 : args.codes == Codes::kInt6 ? 6 : 8;
    code_bytes = args.group * 8 * bits;
    bytes = scale_bytes + min_bytes + code_bytes;
  }
};

// The group at `at` (its super scales at `super`): scale [64] and min [64], to be added.
inline void unpack_group(const QuantArgs& args, const GroupLayout& layout, const char* at,
                         const char* super, float factor, float* scale, float* min) {
  if (args.scale == GroupScale::kNone) return;
  const char* mins = at + layout.scale_bytes;
  for (int64_t o = 0; o < kPanelWidth; o += kWidth) {
    V s = set1(1.0f);
    switch (args.scale) {
      case GroupScale::kNone:
        break;
      case GroupScale::kF16:
        s = load_f16(at + 2 * o);
        break;
      case GroupScale::kBF16:
        s = load_bf16(at + 2 * o);
        break;
      case GroupScale::kF32:
        s = load(reinterpret_cast<const float*>(at) + o);
        break;
      case GroupScale::kU8:
        s = load_u8(at + o);
        break;
      case GroupScale::kI8:
        s = load_i8(at + o);
        break;
      case GroupScale::kE4m3:
        s = load_e4m3(at + o);
        break;
      case GroupScale::kE8m0:
        s = load_e8m0(at + o);
        break;
    }
    if (args.super) s = s * load_f16(super + 2 * o);
    store(scale + o, s * set1(factor));
    switch (args.min) {
      case GroupMin::kNone:
        break;
      case GroupMin::kAdded:
        store(min + o, load_f16(mins + 2 * o));
        break;
      case GroupMin::kSuper:
        store(min + o, -load_u8(mins + o) * load_f16(super + 128 + 2 * o));
        break;
      case GroupMin::kZero:
        store(min + o, -load_u8(mins + o) * s);
        break;
    }
  }
}

// sums [rows][64] take a group's products.
template <int kRows, int kVecs>
inline __attribute__((always_inline)) void fold(const QuantArgs& args, V (&dot)[kRows][kVecs],
                                                const float* scale, const float* min,
                                                const float* x_sums, int64_t x_sums_stride,
                                                float* sums, int64_t column) {
  for (int v = 0; v < kVecs; ++v) {
    const int64_t o = column + v * kWidth;
    if (args.scale == GroupScale::kNone) {
      for (int r = 0; r < kRows; ++r) store(sums + r * kPanelWidth + o, dot[r][v]);
      continue;
    }
    const V s = load(scale + o);
    for (int r = 0; r < kRows; ++r) {
      float* to = sums + r * kPanelWidth + o;
      V sum = fma(dot[r][v], s, load(to));
      if (args.min != GroupMin::kNone) {
        sum = fma(load(min + o), set1(x_sums[r * x_sums_stride]), sum);
      }
      store(to, sum);
    }
  }
}

template <int kRows, int kVecs>
inline __attribute__((always_inline)) void start(const QuantArgs& args, V (&dot)[kRows][kVecs],
                                                 const float* sums, int64_t column) {
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) {
      dot[r][v] = args.scale == GroupScale::kNone
                      ? load(sums + r * kPanelWidth + column + v * kWidth)
                      : set1(0.0f);
    }
  }
}

inline float x_value(float x) { return x; }
inline float x_value(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

inline void copy_x(const PanelArgs& p, int64_t row, int64_t first, int64_t n, float* to) {
  if (!p.x_bf16) {
    const float* from = static_cast<const float*>(p.x) + row * p.x_stride + first;
    for (int64_t i = 0; i < n; ++i) to[i] = from[i];
    return;
  }
  const uint16_t* from = static_cast<const uint16_t*>(p.x) + row * p.x_stride + first;
  for (int64_t i = 0; i < n; ++i) to[i] = x_value(from[i]);
}
inline void copy_x(const PanelArgs& p, int64_t row, int64_t first, int64_t n, uint16_t* to) {
  const uint16_t* from = static_cast<const uint16_t*>(p.x) + row * p.x_stride + first;
  for (int64_t i = 0; i < n; ++i) to[i] = from[i];
}

// x of all rows made ready: [rows][stride] of X, zero behind n up to whole groups, and the sums of
// each group, [rows][kMaxGroups of the chunk].
struct ReadyX {
  const X* x;
  int64_t stride;
  float* sums;
  int64_t sums_stride;
};

// Eight sums side by side, then by halves: one order for every caller.
inline float sum_of(const X* x, int64_t n) {
  float part[8] = {};
  for (int64_t i = 0; i < n; i += 8) {
    for (int64_t j = 0; j < 8; ++j) part[j] += x_value(x[i + j]);
  }
  for (int64_t half = 4; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) part[j] += part[j + half];
  }
  return part[0];
}

inline ReadyX ready_x(const QuantArgs& args, int64_t first, int64_t n, float* room, float* sums) {
  const PanelArgs& p = args.panel;
  const int64_t n_groups = (n + args.group - 1) / args.group;
  const int64_t whole = n_groups * args.group;
  ReadyX out{reinterpret_cast<const X*>(room), whole, sums, n_groups};
  if (n == whole && p.x_bf16 == (sizeof(X) == 2)) {
    out.x = static_cast<const X*>(p.x) + first;
    out.stride = p.x_stride;
  } else {
    X* to = reinterpret_cast<X*>(room);
    for (int64_t r = 0; r < p.n_rows; ++r, to += whole) {
      copy_x(p, r, first, n, to);
      for (int64_t i = n; i < whole; ++i) to[i] = X{};
    }
  }
  if (args.min == GroupMin::kNone) return out;
  for (int64_t r = 0; r < p.n_rows; ++r) {
    for (int64_t g = 0; g < n_groups; ++g) {
      sums[r * n_groups + g] = sum_of(out.x + r * out.stride + g * args.group, args.group);
    }
  }
  return out;
}

// Fetches what comes at a distance behind these bytes.
inline void ahead(const char* at, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += 64) {
    prefetch(at + kPrefetchBytes + line);
    prefetch_far(at + kPrefetchFarBytes + line);
  }
}

template <class Decoder, int kRows>
void dot_group(const QuantArgs& args, const typename Decoder::Tables& tables, const char* codes,
               const X* x, int64_t x_stride, const float* scale, const float* min,
               const float* x_sums, int64_t x_sums_stride, float* sums) {
  constexpr int kVecs = kQuantVectors<kRows>;
  for (int64_t column = 0; column < kPanelWidth; column += kVecs * kWidth) {
    V dot[kRows][kVecs];
    start(args, dot, sums, column);
    const char* unit = codes;
    const X* xi = x;
    for (int64_t i = 0; i < args.group; i += Decoder::kUnit) {
      if (column == 0) ahead(unit, Decoder::kUnitBytes);
      typename Decoder::Unit units[kVecs];
      for (int v = 0; v < kVecs; ++v) units[v].load(tables, unit, column + v * kWidth);
#pragma GCC unroll 16
      for (int s = 0; s < Decoder::kUnit / kStep; ++s) {
        XLane xv[kRows];
        for (int r = 0; r < kRows; ++r) xv[r] = spread(xi + r * x_stride + s * kStep);
        for (int v = 0; v < kVecs; ++v) {
          const Operand w = units[v].operand(tables, s);
          for (int r = 0; r < kRows; ++r) dot[r][v] = mul_add(w, xv[r], dot[r][v]);
        }
      }
      unit += Decoder::kUnitBytes;
      xi += Decoder::kUnit;
    }
    fold(args, dot, scale, min, x_sums, x_sums_stride, sums, column);
  }
}

template <int kRows>
void decoded_group(const QuantArgs& args, const char* weight, const X* x, int64_t x_stride,
                   const float* scale, const float* min, const float* x_sums, int64_t x_sums_stride,
                   float* sums) {
  constexpr int kVecs = kVectors<kRows>;
  for (int64_t column = 0; column < kPanelWidth; column += kVecs * kWidth) {
    V dot[kRows][kVecs];
    start(args, dot, sums, column);
    const char* w = weight + column * 4;
    for (int64_t i = 0; i < args.group; i += kStep, w += kStepBytes) {
      DecodedWeight::step(dot, w, x + i, x_stride);
    }
    fold(args, dot, scale, min, x_sums, x_sums_stride, sums, column);
  }
}

inline void decoded_rows(int64_t rows, const QuantArgs& args, const char* weight, const X* x,
                         int64_t x_stride, const float* scale, const float* min,
                         const float* x_sums, int64_t x_sums_stride, float* sums) {
  const auto call = [&](auto* function) {
    function(args, weight, x, x_stride, scale, min, x_sums, x_sums_stride, sums);
  };
  switch (rows) {
    case 1:
      return call(decoded_group<1>);
    case 2:
      return call(decoded_group<2>);
    case 3:
      return call(decoded_group<3>);
    case 4:
      return call(decoded_group<4>);
    case 5:
      return call(decoded_group<5>);
    default:
      return call(decoded_group<6>);
  }
}

inline void finish_quant(const QuantArgs& args, int64_t panel, float* sums) {
  if (args.output_scale != nullptr) {
    const float* scale = args.output_scale + panel * kPanelWidth;
    for (int64_t r = 0; r < args.panel.n_rows; ++r) {
      for (int64_t o = 0; o < kPanelWidth; o += kWidth) {
        float* to = sums + r * kPanelWidth + o;
        store(to, load(to) * load(scale + o));
      }
    }
  }
  finish(args.panel, panel, sums);
}

struct QuantScratch {
  float *sums, *x, *x_sums, *decoded, *scale, *min;

  explicit QuantScratch(void* scratch) : sums(static_cast<float*>(scratch)) {
    x = sums + kQuantSums;
    x_sums = x + kQuantX;
    decoded = x_sums + kQuantXSums;
    scale = decoded + kQuantDecoded;
    min = scale + 8 * kPanelWidth;
  }
};

// Few rows: codes go through registers once.
template <class Decoder, int kRows>
void stream_quant(const QuantArgs& args) {
  const typename Decoder::Tables tables(args.tables);
  const GroupLayout layout(args);
  const QuantScratch scratch(args.panel.scratch);
  const int64_t n_in = args.panel.n_in;
  const int64_t n_panels = (args.panel.n_out + kPanelWidth - 1) / kPanelWidth;
  ReadyX x{};
  for (int64_t panel = 0; panel < n_panels; ++panel) {
    const char* at = static_cast<const char*>(args.panel.weight) + panel * args.panel_bytes;
    const char* super = at;
    for (int64_t i = 0; i < kRows * kPanelWidth; ++i) scratch.sums[i] = 0.0f;
    for (int64_t first = 0; first < n_in; first += kQuantChunk) {
      const int64_t n = n_in - first < kQuantChunk ? n_in - first : kQuantChunk;
      if (panel == 0 || n_in > kQuantChunk) {
        x = ready_x(args, first, n, scratch.x, scratch.x_sums);
      }
      for (int64_t i = 0, g = 0; i < n; i += args.group, ++g) {
        ahead(at, layout.scale_bytes + layout.min_bytes);
        if (args.super && i % kQuantSuper == 0) {
          super = at;
          at += layout.super_bytes;
        }
        unpack_group(args, layout, at, super, Decoder::kFactor, scratch.scale, scratch.min);
        dot_group<Decoder, kRows>(args, tables, at + layout.scale_bytes + layout.min_bytes, x.x + i,
                                  x.stride, scratch.scale, scratch.min, x.sums + g, x.sums_stride,
                                  scratch.sums);
        at += layout.bytes;
      }
    }
    finish_quant(args, panel, scratch.sums);
  }
}

// Many rows: a piece of a panel is decoded once and serves all blocks of rows from L1.
template <class Decoder>
void tile_quant(const QuantArgs& args) {
  const typename Decoder::Tables tables(args.tables);
  const GroupLayout layout(args);
  const QuantScratch scratch(args.panel.scratch);
  const int64_t n_in = args.panel.n_in, rows = args.panel.n_rows;
  const int64_t n_panels = (args.panel.n_out + kPanelWidth - 1) / kPanelWidth;
  const int64_t n_blocks = (rows + kBlockRows - 1) / kBlockRows;
  const int64_t piece = args.group > 16 * kStep * 4 ? args.group : 16 * kStep * 4;
  for (int64_t panel = 0; panel < n_panels; ++panel) {
    const char* at = static_cast<const char*>(args.panel.weight) + panel * args.panel_bytes;
    const char* super = at;
    for (int64_t i = 0; i < rows * kPanelWidth; ++i) scratch.sums[i] = 0.0f;
    for (int64_t first = 0; first < n_in; first += piece) {
      const int64_t n = n_in - first < piece ? n_in - first : piece;
      const ReadyX x = ready_x(args, first, n, scratch.x, scratch.x_sums);
      int64_t n_groups = 0;
      char* to = reinterpret_cast<char*>(scratch.decoded);
      for (int64_t i = 0; i < n; i += args.group, ++n_groups) {
        if (args.super && (first + i) % kQuantSuper == 0) {
          super = at;
          at += layout.super_bytes;
        }
        unpack_group(args, layout, at, super, Decoder::kFactor,
                     scratch.scale + n_groups * kPanelWidth, scratch.min + n_groups * kPanelWidth);
        const char* unit = at + layout.scale_bytes + layout.min_bytes;
        for (int64_t j = 0; j < args.group; j += Decoder::kUnit, unit += Decoder::kUnitBytes) {
          for (int64_t o = 0; o < kPanelWidth; o += kWidth) {
            typename Decoder::Unit codes;
            codes.load(tables, unit, o);
#pragma GCC unroll 16
            for (int s = 0; s < Decoder::kUnit / kStep; ++s) {
              store_operand(to + s * kStepBytes + 4 * o, codes.operand(tables, s));
            }
          }
          to += Decoder::kUnit / kStep * kStepBytes;
        }
        at += layout.bytes;
      }
      const int64_t share = (n_groups * layout.bytes / 64 + n_blocks) / n_blocks * 64;
      for (int64_t b = 0; b < n_blocks; ++b) {
        const int64_t row = rows * b / n_blocks, count = rows * (b + 1) / n_blocks - row;
        for (int64_t line = 0; line < share; line += 64) prefetch_far(at + b * share + line);
        for (int64_t g = 0; g < n_groups; ++g) {
          decoded_rows(
              count, args,
              reinterpret_cast<const char*>(scratch.decoded) + g * args.group / kStep * kStepBytes,
              x.x + row * x.stride + g * args.group, x.stride, scratch.scale + g * kPanelWidth,
              scratch.min + g * kPanelWidth, x.sums + row * x.sums_stride + g, x.sums_stride,
              scratch.sums + row * kPanelWidth);
        }
      }
    }
    finish_quant(args, panel, scratch.sums);
  }
}

template <class Decoder>
void quant_rows(const QuantArgs& args) {
  switch (args.panel.n_rows) {
    case 1:
      return stream_quant<Decoder, 1>(args);
    case 2:
      return stream_quant<Decoder, 2>(args);
    case 3:
      return stream_quant<Decoder, 3>(args);
    case 4:
      return stream_quant<Decoder, 4>(args);
    case 5:
      return stream_quant<Decoder, 5>(args);
    case 6:
      return stream_quant<Decoder, 6>(args);
    default:
      return tile_quant<Decoder>(args);
  }
}

void quant_panels(const QuantArgs& args) {
  switch (args.codes) {
    case Codes::kNibble:
      return quant_rows<Nibble>(args);
    case Codes::kInt6:
      return quant_rows<Int6>(args);
    case Codes::kInt8:
      return quant_rows<Int8>(args);
    case Codes::kE4m3:
      return quant_rows<E4m3>(args);
  }
}
