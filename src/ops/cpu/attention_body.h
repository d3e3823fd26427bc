// One block of attention. Included inside an anonymous namespace after `s` names the SIMD set and
// kMaxRows, kVecs<rows> say what fits the registers.
//
// A query row's arithmetic is the same whatever shares its block: scores are sequential sums over
// the head's dims, weighted values sequential sums over its own positions.

constexpr int64_t kPagePositions = 16;
constexpr int64_t kTilePages = kTile / kPagePositions;

inline s::V load16(const float* p) { return s::load(p); }
inline s::V load16(const uint16_t* p) { return s::load_bf16(p); }

inline s::V load_any(const char* p, bool bf16, int64_t i, int n) {
  if (bf16) return s::load_bf16_n(reinterpret_cast<const uint16_t*>(p) + i, n);
  return s::load_n(reinterpret_cast<const float*>(p) + i, n);
}

inline void store_any(char* p, bool bf16, int64_t i, s::V value, int n) {
  if (bf16) return s::store_bf16(reinterpret_cast<uint16_t*>(p) + i, value, n);
  s::store_n(reinterpret_cast<float*>(p) + i, value, n);
}

inline float largest_lane(s::V a) {
  float t[16];
  s::store(t, a);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) t[i] = t[i] > t[i + width] ? t[i] : t[i + width];
  }
  return t[0];
}

inline s::V lane_numbers() {
  const float numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return s::load(numbers);
}

template <class T>
struct Tile {
  const T* k[kTilePages];  // [head_dim][16]; an unused page repeats the first
  const T* v[kTilePages];  // [16][padded_dim]
  int64_t n_pages;
};

template <class T>
Tile<T> tile_at(const AttentionBlock& b, int64_t tile, int64_t n_positions) {
  Tile<T> t;
  const int64_t last_page = (n_positions - 1) / kPagePositions;
  const int64_t first = tile * kTilePages;
  const int64_t left = last_page + 1 - first;
  t.n_pages = left < kTilePages ? left : kTilePages;
  for (int64_t i = 0; i < kTilePages; ++i) {
    const int64_t page = first + (i < t.n_pages ? i : 0);
    t.k[i] = reinterpret_cast<const T*>(b.heads + b.pages[page] * b.page_stride_bytes);
    t.v[i] = t.k[i] + b.head_dim * kPagePositions;
  }
  return t;
}

// scores[r][16 p ..] = q[r] . k for kRows rows and kPages pages from `page` on.
template <class T, int kRows, int kPages>
inline void score_pages(const Tile<T>& tile, int64_t page, int64_t head_dim, int64_t q_stride,
                        const float* q, float* scores) {
  s::V sum[kRows][kPages];
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPages; ++p) sum[r][p] = s::zero();
  }
  const T* k[kPages];
  for (int p = 0; p < kPages; ++p) k[p] = tile.k[page + p];
  for (int64_t d = 0; d < head_dim; ++d) {
    s::V kv[kPages];
    for (int p = 0; p < kPages; ++p) kv[p] = load16(k[p] + d * kPagePositions);
    for (int r = 0; r < kRows; ++r) {
      const s::V qv = s::set1(q[r * q_stride + d]);
      for (int p = 0; p < kPages; ++p) sum[r][p] = s::fma(kv[p], qv, sum[r][p]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPages; ++p) {
      s::store(scores + r * kTile + (page + p) * kPagePositions, sum[r][p]);
    }
  }
}

template <class T, int kRows>
void score_tile(const Tile<T>& tile, int64_t head_dim, int64_t q_stride, const float* q,
                float* scores) {
  constexpr int kPages = kVecs<kRows> < 4 ? kVecs<kRows> : 4;
  int64_t page = 0;
  for (; page + kPages <= tile.n_pages; page += kPages) {
    score_pages<T, kRows, kPages>(tile, page, head_dim, q_stride, q, scores);
  }
  for (; page < tile.n_pages; ++page) {
    score_pages<T, kRows, 1>(tile, page, head_dim, q_stride, q, scores);
  }
}

// Turns scores [skipped, n) into weights exp(scale * score - max), the rest of the tile into zeros.
// Skipped positions are in the first page.
inline void softmax_tile(float* scores, int64_t skipped, int64_t n, float scale, float* max,
                         float* sum) {
  const s::V limit = s::set1(static_cast<float>(n));
  const s::V lowest = s::set1(-__builtin_inff());
  s::V v[kTilePages];
  s::V top = lowest;
  for (int i = 0; i < kTilePages; ++i) {
    v[i] = lowest;
    if (i * kPagePositions >= n) continue;
    const s::V position = s::add(lane_numbers(), s::set1(static_cast<float>(16 * i)));
    const s::V scaled = s::mul(s::load(scores + 16 * i), s::set1(scale));
    v[i] = s::select_less(position, limit, scaled, lowest);
    if (i == 0 && skipped > 0) {
      v[0] = s::select_less(position, s::set1(static_cast<float>(skipped)), lowest, v[0]);
    }
    top = s::max(v[i], top);
  }
  *max = largest_lane(top);
  for (int i = 0; i < kTilePages; ++i) {
    v[i] = s::exp(s::sub(v[i], s::set1(*max)));
    s::store(scores + 16 * i, v[i]);
  }
  *sum = s::reduce_add(s::add(s::add(v[0], v[1]), s::add(v[2], v[3])));
}

// sums[r][..] = sum_{j < n[r]} weights[r][j] v[j] for kRows rows, kCount vectors from dim d on.
// Positions that all rows share are computed together, the ragged rest row by row: no row ever
// multiplies a value beyond its own position.
template <class T, int kRows, int kCount>
inline void value_dims(const Tile<T>& tile, int64_t padded_dim, const float* weights,
                       const int64_t* n, int64_t d, float* sums) {
  s::V sum[kRows][kCount];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kCount; ++c) sum[r][c] = s::zero();
  }
  const int64_t shared = n[0];  // rows come in order of position
  for (int64_t page = 0; page * kPagePositions < shared; ++page) {
    const T* v = tile.v[page] + d;
    const int64_t left = shared - page * kPagePositions;
    const int64_t count = left < kPagePositions ? left : kPagePositions;
    const float* w = weights + page * kPagePositions;
    for (int64_t j = 0; j < count; ++j) {
      s::V vv[kCount];
      for (int c = 0; c < kCount; ++c) vv[c] = load16(v + j * padded_dim + 16 * c);
      for (int r = 0; r < kRows; ++r) {
        const s::V wv = s::set1(w[r * kTile + j]);
        for (int c = 0; c < kCount; ++c) sum[r][c] = s::fma(vv[c], wv, sum[r][c]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int64_t j = shared; j < n[r]; ++j) {
      const T* v = tile.v[j / kPagePositions] + j % kPagePositions * padded_dim + d;
      const s::V wv = s::set1(weights[r * kTile + j]);
      for (int c = 0; c < kCount; ++c) sum[r][c] = s::fma(load16(v + 16 * c), wv, sum[r][c]);
    }
    for (int c = 0; c < kCount; ++c) s::store(sums + r * padded_dim + d + 16 * c, sum[r][c]);
  }
}

template <class T, int kRows>
void value_tile(const Tile<T>& tile, int64_t padded_dim, const float* weights, const int64_t* n,
                float* sums) {
  constexpr int kCount = kVecs<kRows>;
  int64_t d = 0;
  for (; d + 16 * kCount <= padded_dim; d += 16 * kCount) {
    value_dims<T, kRows, kCount>(tile, padded_dim, weights, n, d, sums);
  }
  for (; d < padded_dim; d += 16) {
    value_dims<T, kRows, 1>(tile, padded_dim, weights, n, d, sums);
  }
}

// A softmax over some positions: the largest score, the sum of weights and the weighted values.
struct Part {
  float* max;
  float* sum;
  float* total;  // [padded_dim]
};

// Online softmax: `next` joins what came before it.
inline void merge(const Part& next, bool first, int64_t padded_dim, const Part& all) {
  if (first) {
    *all.max = *next.max;
    *all.sum = *next.sum;
    for (int64_t d = 0; d < padded_dim; d += 16) s::store(all.total + d, s::load(next.total + d));
    return;
  }
  const float top = *next.max > *all.max ? *next.max : *all.max;
  const float old_factor = s::exp1(*all.max - top);
  const float new_factor = s::exp1(*next.max - top);
  *all.max = top;
  *all.sum = *all.sum * old_factor + *next.sum * new_factor;
  const s::V old_v = s::set1(old_factor);
  const s::V new_v = s::set1(new_factor);
  for (int64_t d = 0; d < padded_dim; d += 16) {
    const s::V kept = s::mul(s::load(all.total + d), old_v);
    s::store(all.total + d, s::fma(s::load(next.total + d), new_v, kept));
  }
}

// The rows' parts: [rows] sums and maxima, [rows][padded_dim] totals.
struct Parts {
  float* max;
  float* sum;
  float* total;
  int64_t padded_dim;
  Part row(int64_t r) const { return {max + r, sum + r, total + r * padded_dim}; }
};

struct Work {
  float* q;           // [rows][padded_dim]
  float* scores;      // [rows][64]
  Parts segment;      // the tiles of the segment so far
  Parts all;          // the segments so far
  float* tile_total;  // [kMaxRows][padded_dim]
};

inline Work divide_scratch(const AttentionBlock& b) {
  const int64_t rows = b.n_tokens * b.n_heads;
  float* at = b.scratch;
  const auto take = [&](int64_t n) {
    float* const p = at;
    at += n;
    return p;
  };
  Work work;
  work.q = take(rows * b.padded_dim);
  work.segment.total = take(rows * b.padded_dim);
  work.all.total = take(rows * b.padded_dim);
  work.tile_total = take(kMaxRows * b.padded_dim);
  work.scores = take(rows * kTile);
  work.segment.max = take(rows);
  work.segment.sum = take(rows);
  work.all.max = take(rows);
  work.all.sum = take(rows);
  work.segment.padded_dim = b.padded_dim;
  work.all.padded_dim = b.padded_dim;
  return work;
}

template <class T, int kRows>
void rows_of_tile(const AttentionBlock& b, const Tile<T>& tile, int64_t tile_index, int64_t row,
                  const Work& work) {
  int64_t n[kRows];
  for (int r = 0; r < kRows; ++r) {
    const int64_t position = b.start + (row + r) / b.n_heads;
    const int64_t count = position + 1 - tile_index * kTile;
    n[r] = count < kTile ? count : kTile;
  }
  float* scores = work.scores + row * kTile;
  score_tile<T, kRows>(tile, b.head_dim, b.padded_dim, work.q + row * b.padded_dim, scores);
  float tile_max[kRows];
  float tile_sum[kRows];
  for (int r = 0; r < kRows; ++r) {
    softmax_tile(scores + r * kTile, tile_index == 0 ? b.first : 0, n[r], b.scale, &tile_max[r],
                 &tile_sum[r]);
  }
  value_tile<T, kRows>(tile, b.padded_dim, scores, n, work.tile_total);
  for (int r = 0; r < kRows; ++r) {
    merge({&tile_max[r], &tile_sum[r], work.tile_total + r * b.padded_dim},
          tile_index % kSegmentTiles == 0, b.padded_dim, work.segment.row(row + r));
  }
}

template <class T, int kRows>
void dispatch_rows(int64_t rows, const AttentionBlock& b, const Tile<T>& tile, int64_t tile_index,
                   int64_t row, const Work& work) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return dispatch_rows<T, kRows - 1>(rows, b, tile, tile_index, row, work);
  }
  rows_of_tile<T, kRows>(b, tile, tile_index, row, work);
}

// The first row that has anything at or after `position`: rows come in order of position.
inline int64_t first_row(const AttentionBlock& b, int64_t position) {
  return position > b.start ? (position - b.start) * b.n_heads : 0;
}

template <class T>
void attend_segment(const AttentionBlock& b, int64_t segment, const Work& work) {
  const int64_t rows = b.n_tokens * b.n_heads;
  const int64_t n_positions = b.start + b.n_tokens;
  for (int64_t i = 0; i < kSegmentTiles; ++i) {
    const int64_t index = segment * kSegmentTiles + i;
    if (index * kTile >= n_positions) return;
    const Tile<T> tile = tile_at<T>(b, index, n_positions);
    int64_t row = first_row(b, index * kTile);
    const int64_t n_groups = (rows - row + kMaxRows - 1) / kMaxRows;
    for (int64_t left = n_groups; left > 0; --left) {
      const int64_t count = (rows - row + left - 1) / left;
      dispatch_rows<T, kMaxRows>(count, b, tile, index, row, work);
      row += count;
    }
  }
}

inline Part stored_part(const AttentionBlock& b, int64_t segment, int64_t row) {
  const int64_t rows = b.n_tokens * b.n_heads;
  float* const part = b.parts + (segment * rows + row) * (b.padded_dim + 2);
  return {part, part + 1, part + 2};
}

void write_out(const AttentionBlock& b, const Parts& all) {
  for (int64_t r = 0; r < b.n_tokens * b.n_heads; ++r) {
    const int64_t offset = r / b.n_heads * b.out_token_stride + r % b.n_heads * b.out_head_stride;
    char* to = b.out + offset * (b.out_bf16 ? 2 : 4);
    const Part part = all.row(r);
    const s::V sum = s::set1(*part.sum);
    for (int64_t d = 0; d < b.head_dim; d += 16) {
      const int n = static_cast<int>(b.head_dim - d < 16 ? b.head_dim - d : 16);
      store_any(to, b.out_bf16, d, s::div(s::load(part.total + d), sum), n);
    }
  }
}

template <class T>
void attend(const AttentionBlock& b) {
  const int64_t rows = b.n_tokens * b.n_heads;
  const Work work = divide_scratch(b);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t offset = r / b.n_heads * b.q_token_stride + r % b.n_heads * b.q_head_stride;
    const char* from = b.q + offset * (b.q_bf16 ? 2 : 4);
    for (int64_t d = 0; d < b.head_dim; d += 16) {
      const int n = static_cast<int>(b.head_dim - d < 16 ? b.head_dim - d : 16);
      s::store(work.q + r * b.padded_dim + d, load_any(from, b.q_bf16, d, n));
    }
  }
  for (int64_t segment = b.first_segment; segment < b.last_segment; ++segment) {
    attend_segment<T>(b, segment, work);
    for (int64_t r = first_row(b, segment * kSegmentTiles * kTile); r < rows; ++r) {
      if (b.parts != nullptr) {
        merge(work.segment.row(r), true, b.padded_dim, stored_part(b, segment, r));
      } else {
        merge(work.segment.row(r), segment == 0, b.padded_dim, work.all.row(r));
      }
    }
  }
  if (b.parts == nullptr) write_out(b, work.all);
}

void finish(const AttentionBlock& b) {
  const int64_t rows = b.n_tokens * b.n_heads;
  const Work work = divide_scratch(b);
  for (int64_t segment = b.first_segment; segment < b.last_segment; ++segment) {
    for (int64_t r = first_row(b, segment * kSegmentTiles * kTile); r < rows; ++r) {
      merge(stored_part(b, segment, r), segment == 0, b.padded_dim, work.all.row(r));
    }
  }
  write_out(b, work.all);
}

void attend_any(const AttentionBlock& block) {
  if (block.cache_bf16) return attend<uint16_t>(block);
  attend<float>(block);
}
