#include "ops/attention.h"

#include <algorithm>
#include <numeric>

#include "fixture.h"
#include "ops/ref/ref.h"

namespace replayssm::ops {
namespace {

// A pool of pages that are NaN until written, handed out in a shuffled order.
class Cache {
 public:
  Cache(const KvShape& shape, int64_t n_pages)
      : shape_(shape), stride_(shape.page_bytes() + 64), order_(static_cast<size_t>(n_pages)) {
    bytes_.resize(static_cast<size_t>(n_pages * stride_ + 64), 0xff);
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(11));
  }
  KvPool pool() {
    const uintptr_t address = reinterpret_cast<uintptr_t>(bytes_.data());
    return {bytes_.data() + (64 - address % 64) % 64, stride_};
  }
  std::vector<int32_t> take(int64_t n_positions) {
    std::vector<int32_t> pages;
    for (int64_t i = 0; i < pages_for(n_positions); ++i) {
      pages.push_back(order_.back());
      order_.pop_back();
    }
    return pages;
  }

 private:
  KvShape shape_;
  int64_t stride_;
  std::vector<int32_t> order_;
  std::vector<unsigned char> bytes_;
};

struct Sequence {
  Sequence(DType activation, DType cache, int64_t n, int64_t n_heads, int64_t n_kv_heads,
           int64_t dim, uint32_t seed)
      : q(activation, n, n_heads * dim),
        k(cache, n, n_kv_heads * dim, 1),
        v(cache, n, n_kv_heads * dim, 2) {
    q.fill(seed, 2.0f);
    k.fill(seed + 1);
    v.fill(seed + 2);
  }
  Tensor q;
  Tensor k;  // already of the cache's dtype, so that the reference sees what the cache holds
  Tensor v;
};

struct Geometry {
  int64_t n_heads, n_kv_heads, dim;
};

TEST(Attention, MatchesReference) {
  for (const Geometry& g :
       {Geometry{1, 1, 16}, Geometry{6, 2, 64}, Geometry{4, 4, 40}, Geometry{7, 1, 128},
        Geometry{4, 2, 256}, Geometry{70, 1, 24}, Geometry{3, 3, 7}}) {
    for (const DType cache_type : kActivations) {
      for (const DType activation : kActivations) {
        for (const int64_t n : {1, 17, 130}) {
          SCOPED_TRACE(::testing::Message() << g.n_heads << "/" << g.n_kv_heads << " x " << g.dim
                                            << " n " << n << " cache " << dtype_name(cache_type));
          const KvShape shape{static_cast<int32_t>(g.n_kv_heads), static_cast<int32_t>(g.dim),
                              cache_type};
          Sequence s(activation, cache_type, n, g.n_heads, g.n_kv_heads, g.dim, 1);
          const std::vector<double> truth = ref::attention(
              s.q.heads(g.n_heads), s.k.heads(g.n_kv_heads), s.v.heads(g.n_kv_heads), 0, 0.11f);
          on_each_backend([&](const Context& context, const Backend&) {
            Cache cache(shape, 20);
            const std::vector<int32_t> pages = cache.take(n);
            const AttentionRow row{pages.data(), 0, static_cast<int32_t>(n), 0};
            kv_append(context, shape, cache.pool(), &row, 1, s.k.heads(g.n_kv_heads),
                      s.v.heads(g.n_kv_heads));
            Tensor out(activation, n, g.n_heads * g.dim);
            attention(context, shape, cache.pool(), &row, 1, 0.11f, s.q.heads(g.n_heads),
                      out.heads(g.n_heads));
            EXPECT_LT(nmse(out, truth), bound(activation));
            EXPECT_TRUE(out.intact());
          });
        }
      }
    }
  }
}

// Positions before a row's first are as if they were not there.
TEST(Attention, BeginsAtTheFirstPosition) {
  const Geometry g{6, 2, 64};
  const int64_t n = 90;
  const KvShape shape{2, 64, DType::kF32};
  Sequence s(DType::kF32, DType::kF32, n, g.n_heads, g.n_kv_heads, g.dim, 1);
  const auto after = [](ConstHeads x, int64_t first) {
    x.data = x.at(first, 0);
    x.tokens -= first;
    return x;
  };
  for (const int32_t first : {1, 5, 16}) {
    const std::vector<double> truth =
        ref::attention(after(s.q.heads(6), first), after(s.k.heads(2), first),
                       after(s.v.heads(2), first), 0, 0.11f);
    on_each_backend([&](const Context& context, const Backend&) {
      Cache cache(shape, 20);
      const std::vector<int32_t> pages = cache.take(n);
      const AttentionRow all{pages.data(), 0, static_cast<int32_t>(n), 0};
      kv_append(context, shape, cache.pool(), &all, 1, s.k.heads(2), s.v.heads(2));
      Tensor out(DType::kF32, n, g.n_heads * g.dim);
      const AttentionRow row{pages.data(), first, static_cast<int32_t>(n - first), first, first};
      attention(context, shape, cache.pool(), &row, 1, 0.11f, s.q.heads(6), out.heads(6));
      for (int64_t i = first; i < n; ++i) {
        for (int64_t c = 0; c < g.n_heads * g.dim; ++c) {
          const double want = truth[static_cast<size_t>((i - first) * g.n_heads * g.dim + c)];
          ASSERT_NEAR(out.get(i, c), want, 1e-5) << first << ", row " << i << ", column " << c;
        }
      }
    });
  }
}

TEST(Attention, CacheHoldsWhatWasAppended) {
  on_each_backend([](const Context& context, const Backend&) {
    const KvShape shape{2, 40, DType::kBF16};
    Tensor k(DType::kF32, 35, 80);
    Tensor v(DType::kBF16, 35, 80);
    k.fill(1);
    v.fill(2);
    Cache cache(shape, 4);
    const std::vector<int32_t> pages = cache.take(35 + 5);
    const AttentionRow row{pages.data(), 5, 35, 0};
    kv_append(context, shape, cache.pool(), &row, 1, k.heads(2), v.heads(2));
    std::vector<float> got_k(40);
    std::vector<float> got_v(40);
    for (int64_t i = 0; i < 35; ++i) {
      for (int32_t h = 0; h < 2; ++h) {
        kv_read(shape, cache.pool(), pages.data(), 5 + i, h, got_k.data(), got_v.data());
        for (int64_t d = 0; d < 40; ++d) {
          ASSERT_EQ(got_k[d], bf16_to_float(float_to_bf16(k.get(i, h * 40 + d))));
          ASSERT_EQ(got_v[d], v.get(i, h * 40 + d));
        }
      }
    }
  });
}

// Decode, windows of every size and one-shot prefill give the same bits, on one thread or two, and
// next to any other sequence. Pages beyond what is written stay NaN throughout.
TEST(Attention, EverySplitGivesTheSameBits) {
  const int64_t n = 140;
  for (const Backend& backend : backends()) {
    SCOPED_TRACE(backend.name());
    ThreadPool two(2);
    ThreadPool one(1);
    const Context context(two, backend.isa, backend.bf16_dot);
    const Context single(one, backend.isa, backend.bf16_dot);
    for (const Geometry& g : {Geometry{6, 2, 64}, Geometry{5, 1, 40}, Geometry{2, 2, 128}}) {
      for (const DType cache_type : kActivations) {
        const KvShape shape{static_cast<int32_t>(g.n_kv_heads), static_cast<int32_t>(g.dim),
                            cache_type};
        // Tokens [0, n) are the sequence, [n, 2n) its mate in the batch.
        Sequence s(DType::kF32, cache_type, 2 * n, g.n_heads, g.n_kv_heads, g.dim, 1);
        Tensor whole(DType::kF32, 2 * n, g.n_heads * g.dim);
        const auto attend = [&](const Context& run_on, Cache& cache,
                                const std::vector<AttentionRow>& rows, Tensor& out) {
          const int64_t n_rows = static_cast<int64_t>(rows.size());
          kv_append(run_on, shape, cache.pool(), rows.data(), n_rows, s.k.heads(g.n_kv_heads),
                    s.v.heads(g.n_kv_heads));
          attention(run_on, shape, cache.pool(), rows.data(), n_rows, 0.125f, s.q.heads(g.n_heads),
                    out.heads(g.n_heads));
        };
        Cache whole_cache(shape, 9);
        const std::vector<int32_t> whole_pages = whole_cache.take(n);
        attend(context, whole_cache, {{whole_pages.data(), 0, static_cast<int32_t>(n), 0}}, whole);

        for (const int64_t window : {1, 2, 3, 5, 8, 16, 17, 100, 139}) {
          Cache cache(shape, 18);
          const std::vector<int32_t> pages = cache.take(n);
          const std::vector<int32_t> mate_pages = cache.take(n);
          Tensor out(DType::kF32, 2 * n, g.n_heads * g.dim);
          for (int64_t at = 0; at < n; at += window) {
            const int32_t count = static_cast<int32_t>(std::min(window, n - at));
            std::vector<AttentionRow> rows = {{pages.data(), at, count, at}};
            if (window % 3 != 0) rows.push_back({mate_pages.data(), at, count, n + at});
            if (window % 5 == 0) std::swap(rows.front(), rows.back());
            attend(window % 2 == 0 ? context : single, cache, rows, out);
          }
          for (int64_t t = 0; t < n; ++t) {
            ASSERT_TRUE(same_row(out, t, whole, t)) << "window " << window << " token " << t;
          }
        }
      }
    }
  }
}

// Long contexts: segments are merged alike whether one thread takes them all or several share them.
TEST(Attention, SegmentsOnAnyNumberOfThreads) {
  const int64_t n = 2100;
  const KvShape shape{1, 16, DType::kBF16};
  Sequence s(DType::kF32, DType::kBF16, n, 2, 1, 16, 1);
  for (const Backend& backend : backends()) {
    SCOPED_TRACE(backend.name());
    ThreadPool one(1);
    const Context single(one, backend.isa, backend.bf16_dot);
    Cache cache(shape, 140);
    const std::vector<int32_t> pages = cache.take(n);
    const AttentionRow all{pages.data(), 0, static_cast<int32_t>(n), 0};
    kv_append(single, shape, cache.pool(), &all, 1, s.k.heads(1), s.v.heads(1));
    Tensor whole(DType::kF32, n, 32);
    attention(single, shape, cache.pool(), &all, 1, 0.25f, s.q.heads(2), whole.heads(2));
    for (const int threads : {1, 2, 5}) {
      ThreadPool pool(threads);
      const Context context(pool, backend.isa, backend.bf16_dot);
      Tensor out(DType::kF32, n, 32);
      for (const int64_t position : {0, 1022, 1023, 1024, 1025, 2046, 2047, 2048, 2099}) {
        // Both of one token and of a window that crosses into the next segment.
        for (const int32_t count : {1, 3}) {
          if (position + count > n) continue;
          const AttentionRow row{pages.data(), position, count, position};
          attention(context, shape, cache.pool(), &row, 1, 0.25f, s.q.heads(2), out.heads(2));
          for (int64_t t = position; t < position + count; ++t) {
            ASSERT_TRUE(same_row(out, t, whole, t)) << threads << " threads, token " << t;
          }
        }
      }
    }
    const ConstHeads q = s.q.heads(2);
    ConstHeads last = q;
    last.data = q.at(n - 1, 0);
    last.tokens = 1;
    Tensor expected(DType::kF32, 1, 32);
    for (int64_t c = 0; c < 32; ++c) expected.set(0, c, whole.get(n - 1, c));
    EXPECT_LT(nmse(expected, ref::attention(last, s.k.heads(1), s.v.heads(1), n - 1, 0.25f)),
              bound(DType::kF32));
  }
}

// A later token of the same window that is NaN or infinite must not reach earlier rows.
TEST(Attention, LaterPositionsCannotPoisonARow) {
  on_each_backend([](const Context& context, const Backend&) {
    const int64_t n = 90;
    const KvShape shape{1, 64, DType::kF32};
    Sequence s(DType::kF32, DType::kF32, n, 2, 1, 64, 1);
    const std::vector<double> truth =
        ref::attention(s.q.heads(2), s.k.heads(1), s.v.heads(1), 0, 0.125f);
    for (int64_t c = 0; c < 64; ++c) {
      s.k.set(80, c, NAN);
      s.v.set(80, c, INFINITY);
    }
    Cache cache(shape, 6);
    const std::vector<int32_t> pages = cache.take(n);
    const AttentionRow row{pages.data(), 0, static_cast<int32_t>(n), 0};
    kv_append(context, shape, cache.pool(), &row, 1, s.k.heads(1), s.v.heads(1));
    Tensor out(DType::kF32, n, 128);
    attention(context, shape, cache.pool(), &row, 1, 0.125f, s.q.heads(2), out.heads(2));
    for (int64_t t = 0; t < 80; ++t) {
      for (int64_t c = 0; c < 128; ++c) {
        ASSERT_NEAR(out.get(t, c), truth[static_cast<size_t>(t * 128 + c)], 1e-4);
      }
    }
  });
}

// A batch larger than one task table, with empty windows in it.
TEST(Attention, ManyRows) {
  on_each_backend([](const Context& context, const Backend&) {
    const int64_t n = 600;
    const KvShape shape{1, 16, DType::kBF16};
    Sequence s(DType::kF32, DType::kBF16, n, 2, 1, 16, 1);
    Cache cache(shape, n);
    std::vector<std::vector<int32_t>> pages;
    std::vector<AttentionRow> rows;
    for (int64_t i = 0; i < n; ++i) {
      pages.push_back(cache.take(1));
      rows.push_back({pages.back().data(), 0, i % 7 == 3 ? 0 : 1, i});
    }
    kv_append(context, shape, cache.pool(), rows.data(), n, s.k.heads(1), s.v.heads(1));
    Tensor out(DType::kF32, n, 32);
    attention(context, shape, cache.pool(), rows.data(), n, 1.0f, s.q.heads(2), out.heads(2));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = 0; c < 32; ++c) {
        if (i % 7 == 3) {
          ASSERT_TRUE(std::isnan(out.get(i, c)));
        } else {
          ASSERT_EQ(out.get(i, c), s.v.get(i, c % 16));  // one position: its own value
        }
      }
    }
  });
}

}  // namespace
}  // namespace replayssm::ops
