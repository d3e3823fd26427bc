#include "ops/cuda/attention_cuda.h"

#include <algorithm>
#include <numeric>

#include "device_fixture.h"
#include "ops/cuda/elementwise_cuda.h"
#include "ops/cuda/norm_cuda.h"
#include "ops/cuda/rope_cuda.h"
#include "ops/ref/ref.h"

namespace replayssm::ops::cuda {
namespace {

// A pool of pages that are NaN until written, handed out in a shuffled order.
class Cache {
 public:
  Cache(const KvShapeCuda& shape, int64_t n_pages)
      : stride_(shape.page_bytes() + 128),
        order_(static_cast<size_t>(n_pages)),
        buffer_(n_pages * stride_) {
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(11));
  }
  KvPool pool() const { return {buffer_.data(), stride_}; }
  std::vector<int32_t> take(int64_t n_positions) {
    std::vector<int32_t> pages;
    for (int64_t i = 0; i < (n_positions + kKvPage - 1) / kKvPage; ++i) {
      pages.push_back(order_.back());
      order_.pop_back();
    }
    return pages;
  }

 private:
  int64_t stride_;
  std::vector<int32_t> order_;
  DeviceBuffer buffer_;
};

struct Window {
  std::vector<int32_t> pages;
  int64_t start;
  int32_t n_tokens;
  int64_t token;
};

// The windows' arrays on the device.
class DeviceRows {
 public:
  explicit DeviceRows(const std::vector<Window>& windows)
      : start_(of(windows, &Window::start)),
        n_tokens_(of(windows, &Window::n_tokens)),
        token_(of(windows, &Window::token)),
        pages_(pages_of(windows)) {
    rows_.start = static_cast<const int64_t*>(start_.data());
    rows_.n_tokens = static_cast<const int32_t*>(n_tokens_.data());
    rows_.token = static_cast<const int64_t*>(token_.data());
    rows_.pages = static_cast<const int32_t*>(pages_.data());
    rows_.pages_stride = stride_of(windows);
    rows_.n_rows = static_cast<int32_t>(windows.size());
    for (const Window& w : windows) {
      rows_.max_tokens = std::max(rows_.max_tokens, w.n_tokens);
      rows_.max_positions = std::max(rows_.max_positions, w.start + w.n_tokens);
    }
  }
  AttentionRowsCuda& rows() { return rows_; }

 private:
  template <typename T>
  static std::vector<T> of(const std::vector<Window>& windows, T Window::* member) {
    std::vector<T> out;
    for (const Window& w : windows) out.push_back(w.*member);
    return out;
  }
  static int64_t stride_of(const std::vector<Window>& windows) {
    size_t most = 0;
    for (const Window& w : windows) most = std::max(most, w.pages.size());
    return static_cast<int64_t>(most) + 3;
  }
  // Unused entries name no page.
  static std::vector<int32_t> pages_of(const std::vector<Window>& windows) {
    const auto stride = static_cast<size_t>(stride_of(windows));
    std::vector<int32_t> out(windows.size() * stride, 1 << 30);
    for (size_t i = 0; i < windows.size(); ++i) {
      std::copy(windows[i].pages.begin(), windows[i].pages.end(), out.begin() + i * stride);
    }
    return out;
  }
  DeviceBuffer start_, n_tokens_, token_, pages_;
  AttentionRowsCuda rows_;
};

struct Geometry {
  int64_t n_heads, n_kv_heads, dim;
};

KvShapeCuda shape_of(const Geometry& g, DType cache) {
  return {static_cast<int32_t>(g.n_kv_heads), static_cast<int32_t>(g.dim), cache};
}

struct Sequence {
  Sequence(DType activation, DType cache, int64_t n, const Geometry& g, uint32_t seed)
      : q(activation, n, g.n_heads * g.dim),
        k(cache, n, g.n_kv_heads * g.dim),
        v(cache, n, g.n_kv_heads * g.dim) {
    q.fill(seed, 2.0f);
    k.fill(seed + 1);
    v.fill(seed + 2);
  }
  Tensor q;
  Tensor k;  // already of the cache's dtype, so that the reference sees what the cache holds
  Tensor v;
};

class DeviceSequence {
 public:
  DeviceSequence(Sequence& s, const Geometry& g, Place place)
      : g_(g), q_(s.q, place), k_(s.k, place), v_(s.v, place) {}
  void append(const CudaContext& context, DType cache, const KvPool& pool, DeviceRows& rows) const {
    kv_append(context, shape_of(g_, cache), pool, rows.rows(), k_.heads(g_.n_kv_heads),
              v_.heads(g_.n_kv_heads));
  }
  void attend(const CudaContext& context, DType cache, const KvPool& pool, DeviceRows& rows,
              float scale, const DeviceTensor& out) const {
    attention(context, shape_of(g_, cache), pool, rows.rows(), scale, q_.heads(g_.n_heads),
              out.heads(g_.n_heads));
  }

 private:
  Geometry g_;
  DeviceTensor q_, k_, v_;
};

// bf16 weights of positions: their rounding, beside the output's.
double tensor_core_bound(DType out) { return out == DType::kF32 ? 1e-9 : 2e-5; }

TEST(AttentionCuda, MatchesReference) {
  const Device device;
  for (const Geometry& g :
       {Geometry{1, 1, 16}, Geometry{6, 2, 64}, Geometry{4, 4, 40}, Geometry{7, 1, 128},
        Geometry{4, 2, 256}, Geometry{70, 1, 24}, Geometry{3, 3, 7}, Geometry{20, 1, 64},
        Geometry{80, 2, 128}, Geometry{16, 1, 256}}) {
    for (const DType cache_type : kActivations) {
      for (const DType activation : kActivations) {
        for (const int64_t n : {1, 17, 130}) {
          for (const Place place : kPlaces) {
            SCOPED_TRACE(::testing::Message()
                         << g.n_heads << "/" << g.n_kv_heads << " x " << g.dim << " n " << n
                         << " cache " << dtype_name(cache_type) << " q " << dtype_name(activation)
                         << (place == Place::kOdd ? " odd" : ""));
            Sequence s(activation, cache_type, n, g, 1);
            const std::vector<double> truth = ref::attention(
                s.q.heads(g.n_heads), s.k.heads(g.n_kv_heads), s.v.heads(g.n_kv_heads), 0, 0.11f);
            const DeviceSequence ds(s, g, place);
            Cache cache(shape_of(g, cache_type), 20);
            DeviceRows rows({{cache.take(n), 0, static_cast<int32_t>(n), 0}});
            ds.append(device.context(), cache_type, cache.pool(), rows);
            const DeviceTensor out = output(activation, n, g.n_heads * g.dim, place);
            ds.attend(device.context(), cache_type, cache.pool(), rows, 0.11f, out);
            Tensor got = out.get();
            EXPECT_LT(nmse(got, truth), tensor_core_bound(activation));
          }
        }
      }
    }
  }
}

// Decode, windows of every size and one-shot prefill give the same bits, next to any other
// sequence. Pages beyond what is written stay NaN throughout.
TEST(AttentionCuda, EverySplitGivesTheSameBits) {
  const Device device;
  const int64_t n = 140;
  for (const Geometry& g : {Geometry{6, 2, 64}, Geometry{5, 1, 40}, Geometry{2, 2, 128},
                            Geometry{10, 2, 128}, Geometry{8, 2, 256}, Geometry{16, 1, 256}}) {
    for (const DType type : kActivations) {
      // Tokens [0, n) are the sequence, [n, 2n) its mate in the batch.
      Sequence s(type, type, 2 * n, g, 1);
      const DeviceSequence ds(s, g, Place::kPieces);
      const auto attend = [&](Cache& cache, const std::vector<Window>& windows,
                              const DeviceTensor& out) {
        DeviceRows rows(windows);
        ds.append(device.context(), type, cache.pool(), rows);
        ds.attend(device.context(), type, cache.pool(), rows, 0.125f, out);
        device.wait();
      };
      Cache whole_cache(shape_of(g, type), 9);
      const DeviceTensor whole_out = output(type, 2 * n, g.n_heads * g.dim, Place::kPieces);
      attend(whole_cache, {{whole_cache.take(n), 0, static_cast<int32_t>(n), 0}}, whole_out);
      Tensor whole = whole_out.get();
      for (const int64_t window : {1, 2, 3, 5, 8, 16, 17, 100, 139}) {
        Cache cache(shape_of(g, type), 18);
        const std::vector<int32_t> pages = cache.take(n), mate_pages = cache.take(n);
        const DeviceTensor dout = output(type, 2 * n, g.n_heads * g.dim, Place::kPieces);
        for (int64_t at = 0; at < n; at += window) {
          const auto count = static_cast<int32_t>(std::min(window, n - at));
          std::vector<Window> windows = {{pages, at, count, at}};
          if (window % 3 != 0) windows.push_back({mate_pages, at, count, n + at});
          if (window % 5 == 0) std::swap(windows.front(), windows.back());
          attend(cache, windows, dout);
        }
        Tensor out = dout.get();
        for (int64_t t = 0; t < n; ++t) {
          ASSERT_TRUE(same_row(out, t, whole, t))
              << g.dim << " window " << window << " token " << t << " " << dtype_name(type);
        }
      }
    }
  }
}

// Long contexts: segments are folded alike in one block (a large batch) and in blocks of their own
// (a small one), at their borders too.
TEST(AttentionCuda, SegmentsInOneBlockOrInMany) {
  const Device device;
  const int64_t n = 1600;
  for (const Geometry& g : {Geometry{2, 1, 64}, Geometry{4, 1, 256}}) {
    Sequence s(DType::kBF16, DType::kBF16, n, g, 1);
    const DeviceSequence ds(s, g, Place::kPieces);
    Cache cache(shape_of(g, DType::kBF16), 101);
    const std::vector<int32_t> pages = cache.take(n);
    const DeviceTensor out = output(DType::kBF16, n, g.n_heads * g.dim, Place::kPieces);
    DeviceRows all({{pages, 0, static_cast<int32_t>(n), 0}});
    ds.append(device.context(), DType::kBF16, cache.pool(), all);
    ds.attend(device.context(), DType::kBF16, cache.pool(), all, 0.1f, out);
    Tensor whole = out.get();
    for (const int64_t position : {0, 254, 255, 256, 257, 511, 512, 1022, 1023, 1024, 1599}) {
      for (const int32_t count : {1, 3, 8}) {
        if (position + count > n) continue;
        const Window window{pages, position, count, position};
        // Alone, and as every row of a batch that fills the card.
        for (const size_t batch : {1, 700}) {
          DeviceRows rows(std::vector<Window>(batch, window));
          const DeviceTensor again = output(DType::kBF16, n, g.n_heads * g.dim, Place::kPieces);
          ds.attend(device.context(), DType::kBF16, cache.pool(), rows, 0.1f, again);
          Tensor got = again.get();
          for (int64_t t = position; t < position + count; ++t) {
            ASSERT_TRUE(same_row(got, t, whole, t)) << "token " << t << " batch " << batch;
          }
        }
      }
    }
    ConstHeads last = s.q.heads(g.n_heads);
    last.data = last.at(n - 1, 0);
    last.tokens = 1;
    Tensor row(DType::kBF16, 1, g.n_heads * g.dim);
    for (int64_t c = 0; c < row.cols(); ++c) row.set(0, c, whole.get(n - 1, c));
    EXPECT_LT(nmse(row, ref::attention(last, s.k.heads(1), s.v.heads(1), n - 1, 0.1f)),
              tensor_core_bound(DType::kBF16));
  }
}

// A later token of the same window that is NaN or infinite must not reach earlier rows, not by a
// bit.
TEST(AttentionCuda, LaterPositionsCannotPoisonARow) {
  const Device device;
  const int64_t n = 90;
  for (const DType type : kActivations) {
    for (const Geometry& g : {Geometry{2, 1, 64}, Geometry{5, 1, 128}, Geometry{8, 1, 256}}) {
      for (const int64_t bad : {1, 63, 64, 80}) {
        std::vector<Tensor> outs;
        for (const bool poisoned : {false, true}) {
          Sequence s(type, type, n, g, 1);
          for (int64_t c = 0; poisoned && c < g.dim; ++c) {
            s.k.set(bad, c, NAN);
            s.v.set(bad, c, c % 2 == 0 ? INFINITY : NAN);
          }
          const DeviceSequence ds(s, g, Place::kPieces);
          Cache cache(shape_of(g, type), 6);
          DeviceRows rows({{cache.take(n), 0, static_cast<int32_t>(n), 0}});
          ds.append(device.context(), type, cache.pool(), rows);
          const DeviceTensor out = output(type, n, g.n_heads * g.dim, Place::kPieces);
          ds.attend(device.context(), type, cache.pool(), rows, 0.125f, out);
          outs.push_back(out.get());
        }
        for (int64_t t = 0; t < bad; ++t) {
          ASSERT_TRUE(same_row(outs[1], t, outs[0], t)) << "token " << t << " before " << bad;
        }
        EXPECT_TRUE(std::isnan(outs[1].get(bad, 0)));
      }
    }
  }
}

// A large batch with empty windows in it.
TEST(AttentionCuda, ManyRows) {
  const Device device;
  const int64_t n = 600;
  const Geometry g{2, 1, 64};
  Sequence s(DType::kBF16, DType::kBF16, n, g, 1);
  const DeviceSequence ds(s, g, Place::kPieces);
  Cache cache(shape_of(g, DType::kBF16), n);
  std::vector<Window> windows;
  for (int64_t i = 0; i < n; ++i) windows.push_back({cache.take(1), 0, i % 7 == 3 ? 0 : 1, i});
  DeviceRows rows(windows);
  ds.append(device.context(), DType::kBF16, cache.pool(), rows);
  const DeviceTensor out = output(DType::kBF16, n, 128, Place::kPieces);
  ds.attend(device.context(), DType::kBF16, cache.pool(), rows, 1.0f, out);
  Tensor got = out.get();
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < 128; ++c) {
      if (i % 7 == 3) {
        ASSERT_TRUE(std::isnan(got.get(i, c)));  // as output() left it
      } else {
        ASSERT_EQ(got.get(i, c), s.v.get(i, c % 64));  // one position: its own value
      }
    }
  }
}

// The prologue in one kernel against the ops one after another, in fp32, where nothing is rounded
// between them.
TEST(AttentionCuda, PrologueIsNormRopeAndAppend) {
  const Device device;
  const CudaContext& context = device.context();
  const Geometry g{4, 2, 128};
  const int64_t n = 40;
  const int32_t rotary = 32;
  Sequence s(DType::kF32, DType::kF32, n, g, 1);
  const DeviceBuffer qw(random_weights(g.dim, 5)), kw(random_weights(g.dim, 6));
  std::vector<int64_t> positions(static_cast<size_t>(n));
  std::iota(positions.begin(), positions.end(), int64_t{0});
  const DeviceBuffer at(positions), frequencies(rotary * 4), table(n * rotary * 4);
  auto* const angles = static_cast<float*>(table.data());
  rope_frequencies(context, rotary, 1e6, static_cast<double*>(frequencies.data()));
  rope_angles(context, static_cast<const double*>(frequencies.data()), rotary,
              static_cast<const int64_t*>(at.data()), n, angles);
  const NormWeight q_norm{static_cast<const float*>(qw.data()), true};
  const NormWeight k_norm{static_cast<const float*>(kw.data()), true};
  const KvShapeCuda shape = shape_of(g, DType::kF32);
  std::vector<Tensor> queries, outs;
  for (const bool fused : {false, true}) {
    const DeviceTensor q(s.q, Place::kPieces), k(s.k, Place::kPieces), v(s.v, Place::kPieces);
    const DeviceTensor out = output(DType::kF32, n, g.n_heads * g.dim, Place::kPieces);
    Cache cache(shape, 9);
    DeviceRows rows({{cache.take(n), 0, static_cast<int32_t>(n), 0}});
    if (fused) {
      qk_prologue_append(context, {q_norm, k_norm, 1e-6f, angles, rotary}, shape, cache.pool(),
                         rows.rows(), q.heads(4), k.heads(2), v.heads(2));
    } else {
      head_norm(context, q.heads(4), q_norm, 1e-6f);
      head_norm(context, k.heads(2), k_norm, 1e-6f);
      rope_apply(context, angles, rotary, q.heads(4));
      rope_apply(context, angles, rotary, k.heads(2));
      kv_append(context, shape, cache.pool(), rows.rows(), k.heads(2), v.heads(2));
    }
    attention(context, shape, cache.pool(), rows.rows(), 0.1f, q.heads(4), out.heads(4));
    queries.push_back(q.get());
    outs.push_back(out.get());
  }
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t c = 0; c < g.n_heads * g.dim; ++c) {
      ASSERT_NEAR(queries[0].get(t, c), queries[1].get(t, c), 1e-5);
      ASSERT_NEAR(outs[0].get(t, c), outs[1].get(t, c), 1e-5);
    }
  }
}

}  // namespace
}  // namespace replayssm::ops::cuda
