#include "ops/cpu/linear_quant.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "replay/convert.h"

namespace replayssm::ops {
namespace {

constexpr int64_t kPanel = 64;
constexpr int64_t kOverRead = 64;  // kernels read a byte behind the last code
constexpr int64_t kForkProducts = int64_t{1} << 16;

static_assert(kQuantScratchBytes <= static_cast<int64_t>(Context::kScratchBytes));
static_assert(kQuantSuper == kSuperBlock);

// Where group g of a panel lies and what it has; the sizes are of all 64 outputs.
struct Layout {
  int64_t group, n_groups, scale, min, super, super_min, codes, per_super;

  Layout(const QuantFormat& format, int64_t n_in)
      : group(format.group),
        n_groups((n_in + group - 1) / group),
        scale(kPanel * format.scale_bytes()),
        min(kPanel * format.min_bytes()),
        super(format.super ? 2 * kPanel : 0),
        super_min(format.super && format.min == GroupMin::kSuper ? 2 * kPanel : 0),
        codes(group * 8 *
              (format.codes == Codes::kNibble ? 4
               : format.codes == Codes::kInt6 ? 6
                                              : 8)),
        per_super(kSuperBlock / group) {}

  int64_t supers(int64_t g) const { return super == 0 ? 0 : (g + per_super - 1) / per_super; }
  // The super scales before group g where there are some, else the group itself.
  int64_t at(int64_t g) const {
    return g * (scale + min + codes) + supers(g) * (super + super_min);
  }
  int64_t group_at(int64_t g) const {
    return at(g) + (super > 0 && g % per_super == 0 ? super + super_min : 0);
  }
  int64_t panel_bytes() const { return at(n_groups); }
};

// A format without scales or mins has no memory for them.
void copy_bytes(void* to, const void* from, int64_t n) {
  if (n > 0) std::memcpy(to, from, static_cast<size_t>(n));
}

int nibble_shift(int64_t i) {
  return static_cast<int>(i % 2 == 0 ? 2 * (i % 8) : 14 + 2 * (i % 8));
}

// Code i of a group, of output o, into zeroed bytes.
void put_code(Codes kind, char* codes, int64_t i, int64_t o, uint8_t code) {
  const auto add = [&](int64_t word, uint32_t bits) {
    uint32_t value;
    std::memcpy(&value, codes + 4 * (word * kPanel + o), 4);
    value |= bits;
    std::memcpy(codes + 4 * (word * kPanel + o), &value, 4);
  };
  switch (kind) {
    case Codes::kNibble:
      add(i / 8, uint32_t{code} << nibble_shift(i));
      break;
    case Codes::kInt6:
      add(i / 16 * 3 + i % 16 / 8, static_cast<uint32_t>(code & 15) << nibble_shift(i));
      add(i / 16 * 3 + 2, static_cast<uint32_t>(code >> 4 & 3) << (i % 16 + (i % 2 == 0 ? 0 : 15)));
      break;
    case Codes::kInt8:
      codes[i * kPanel + o] = static_cast<char>(code);
      break;
    case Codes::kE4m3:
      codes[(i / 2 * kPanel + o) * 2 + i % 2] = static_cast<char>(code);
      break;
  }
}

uint8_t get_code(Codes kind, const char* codes, int64_t i, int64_t o) {
  const auto word = [&](int64_t index) {
    uint32_t value;
    std::memcpy(&value, codes + 4 * (index * kPanel + o), 4);
    return value;
  };
  switch (kind) {
    case Codes::kNibble:
      return word(i / 8) >> nibble_shift(i) & 15;
    case Codes::kInt6: {
      const uint32_t low = word(i / 16 * 3 + i % 16 / 8) >> nibble_shift(i) & 15;
      const uint32_t two = word(i / 16 * 3 + 2) >> (i % 16 + (i % 2 == 0 ? 0 : 15)) & 3;
      return static_cast<uint8_t>(static_cast<int8_t>((low | two << 4) << 2) >> 2);
    }
    case Codes::kInt8:
      return static_cast<uint8_t>(codes[i * kPanel + o]);
    case Codes::kE4m3:
      return static_cast<uint8_t>(codes[(i / 2 * kPanel + o) * 2 + i % 2]);
  }
  return 0;
}

QuantFunction function_for(const Context& context, bool x_bf16) {
  switch (context.isa()) {
    case Isa::kAvx512:
      return context.bf16_dot() && x_bf16 ? linear_quant_avx512bf16 : linear_quant_avx512;
    case Isa::kAvx2:
      return linear_quant_avx2;
    default:
      return linear_quant_portable;
  }
}

void check_format(const QuantFormat& f) {
  const bool group = f.group == 16 || f.group == 32 || f.group == 64 || f.group == 128;
  REPLAYSSM_CHECK(group, f.group);
  const bool bytes = f.codes == Codes::kInt8 || f.codes == Codes::kE4m3;
  REPLAYSSM_CHECK(f.scale != GroupScale::kNone || (bytes && f.min == GroupMin::kNone && !f.super),
                  "no scale");
  REPLAYSSM_CHECK(f.min != GroupMin::kSuper || f.super, "a min without its super scale");
}

}  // namespace

int64_t QuantPanels::bytes_of(const QuantFormat& format, int64_t n_out, int64_t n_in) {
  const int64_t n_panels = (n_out + kPanel - 1) / kPanel;
  return n_panels * (Layout(format, n_in).panel_bytes() + (format.output_scale ? 4 * kPanel : 0)) +
         kOverRead;
}

QuantPanels::QuantPanels(const QuantMatrix& matrix, ThreadPool* pool)
    : format(matrix.format), n_out(matrix.rows), n_in(matrix.cols) {
  REPLAYSSM_CHECK(n_out > 0 && n_in > 0, n_out, " x ", n_in);
  check_format(format);
  for (int i = 0; i < 16; ++i) {
    const auto value = static_cast<float>(format.table[static_cast<size_t>(i)]);
    tables.fp32[i] = value;
    tables.bf16[i] = tables.bf16[i + 16] = float_to_bf16(value);
    tables.bytes[i] = tables.bytes[i + 16] = format.table[static_cast<size_t>(i)];
  }
  const Layout layout(format, n_in);
  const int64_t n_panels = (n_out + kPanel - 1) / kPanel;
  panel_bytes = layout.panel_bytes();
  weight = Buffer(static_cast<size_t>(n_panels * panel_bytes + kOverRead));
  if (format.output_scale) output_scale = Buffer(static_cast<size_t>(n_panels * kPanel) * 4);
  const int64_t scale_bytes = format.scale_bytes(), min_bytes = format.min_bytes();
  const auto pack_panel = [&](int64_t panel, int) {
    QuantRowBuffer buffer(format, n_in);
    QuantRow& row = buffer.row();
    const int64_t last = std::min(kPanel, n_out - panel * kPanel);
    for (int64_t o = 0; o < last; ++o) {
      matrix.read(panel * kPanel + o, row);
      if (format.output_scale) output_scale.as<float>()[panel * kPanel + o] = row.output_scale;
      char* to = weight.as<char>() + panel * panel_bytes;
      for (int64_t g = 0; g < layout.n_groups; ++g) {
        if (layout.super > 0 && g % layout.per_super == 0) {
          const int64_t s = g / layout.per_super;
          std::memcpy(to + layout.at(g) + 2 * o, row.super + s, 2);
          if (layout.super_min > 0) {
            std::memcpy(to + layout.at(g) + layout.super + 2 * o, row.super_min + s, 2);
          }
        }
        char* group = to + layout.group_at(g);
        copy_bytes(group + scale_bytes * o, row.scales + g * scale_bytes, scale_bytes);
        copy_bytes(group + layout.scale + min_bytes * o, row.mins + g * min_bytes, min_bytes);
        char* codes = group + layout.scale + layout.min;
        const int64_t first = g * format.group;
        const int64_t n = std::min<int64_t>(format.group, n_in - first);
        for (int64_t i = 0; i < n; ++i) put_code(format.codes, codes, i, o, row.codes[first + i]);
      }
    }
  };
  if (pool != nullptr) {
    pool->parallel_for(n_panels, pack_panel);
  } else {
    for (int64_t panel = 0; panel < n_panels; ++panel) pack_panel(panel, 0);
  }
}

void QuantPanels::unpack_row(int64_t output, float* out) const {
  const Layout layout(format, n_in);
  QuantRowBuffer buffer(format, n_in);
  QuantRow& row = buffer.row();
  const int64_t o = output % kPanel;
  const char* from = weight.as<char>() + output / kPanel * panel_bytes;
  const int64_t scale_bytes = format.scale_bytes(), min_bytes = format.min_bytes();
  for (int64_t g = 0; g < layout.n_groups; ++g) {
    if (layout.super > 0 && g % layout.per_super == 0) {
      const int64_t s = g / layout.per_super;
      std::memcpy(row.super + s, from + layout.at(g) + 2 * o, 2);
      if (layout.super_min > 0) {
        std::memcpy(row.super_min + s, from + layout.at(g) + layout.super + 2 * o, 2);
      }
    }
    const char* group = from + layout.group_at(g);
    copy_bytes(row.scales + g * scale_bytes, group + scale_bytes * o, scale_bytes);
    copy_bytes(row.mins + g * min_bytes, group + layout.scale + min_bytes * o, min_bytes);
    const int64_t first = g * format.group;
    const int64_t n = std::min<int64_t>(format.group, n_in - first);
    for (int64_t i = 0; i < n; ++i) {
      row.codes[first + i] = get_code(format.codes, group + layout.scale + layout.min, i, o);
    }
  }
  if (format.output_scale) row.output_scale = output_scale.as<float>()[output];
  dequantise_row(format, n_in, row, out);
}

void QuantPanels::run(const Context& context, ConstMatrix x, Matrix y, const float* bias) const {
  const QuantFunction function = function_for(context, x.dtype == DType::kBF16);
  const int64_t n_panels = (n_out + kPanel - 1) / kPanel;
  // As in Linear::run: a range of panels is long where the weight only streams.
  const int64_t n_workers = context.pool().size();
  const bool streams = x.rows <= kQuantStreamRows;
  int64_t n_groups = (x.rows + kMaxPanelRows - 1) / kMaxPanelRows;
  int64_t n_ranges = streams ? std::min(n_panels, 8 * n_workers) : n_panels;
  if (!streams) {
    n_groups = std::max(n_groups, std::min((x.rows + 23) / 24, 2 * n_workers / n_panels));
  }
  if (n_workers == 1 || x.rows * n_in * n_out < kForkProducts) n_ranges = 1;

  const auto task = [&](int64_t index, int worker) {
    const int64_t part = index / n_ranges, range = index % n_ranges;
    const int64_t row = x.rows * part / n_groups;
    const int64_t first = n_panels * range / n_ranges, last = n_panels * (range + 1) / n_ranges;
    QuantArgs args;
    args.panel.weight = weight.as<char>() + first * panel_bytes;
    args.panel.n_in = n_in;
    args.panel.n_out = std::min(n_out, last * kPanel) - first * kPanel;
    args.panel.bias = bias == nullptr ? nullptr : bias + first * kPanel;
    args.panel.x = x.at(row);
    args.panel.x_bf16 = x.dtype == DType::kBF16;
    args.panel.x_stride = x.stride;
    args.panel.n_rows = x.rows * (part + 1) / n_groups - row;
    args.panel.y = y.at(row, first * kPanel);
    args.panel.y_bf16 = y.dtype == DType::kBF16;
    args.panel.y_stride = y.stride;
    args.panel.scratch = context.scratch(worker);
    args.panel_bytes = panel_bytes;
    args.codes = format.codes;
    args.scale = format.scale;
    args.min = format.min;
    args.super = format.super;
    args.group = format.group;
    args.output_scale = format.output_scale ? output_scale.as<float>() + first * kPanel : nullptr;
    args.tables = &tables;
    function(args);
  };
  context.pool().parallel_for(n_groups * n_ranges, task);
}

}  // namespace replayssm::ops
