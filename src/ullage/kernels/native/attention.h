// Attention of new tokens over a paged KV pool. Included by step.inl.
//
// A block of the pool holds, for each KV head, keys and values in the bf16 panels of formats.h: keys with tokens as
// outputs and head_size as k, values with head_size as outputs and tokens as k. So the multiplication routine of the
// weights serves scores and the weighted sum too. int8 keys and values lie in the same order, one byte each, with one
// scale per token behind them; they are widened a block at a time (exactly), and the scales go to scores and
// probabilities.
//
// One *item* is up to kMaxAttentionRows query rows of one KV head of one sequence over a part of the context; a row is
// (token, head of the group). It runs in spans, keeping for each row the largest score and the sum of exponentials so
// far, so that scratch doesn't grow with the context (online softmax: Milakov and Gimelshein, arXiv:1805.02867;
// FlashAttention, arXiv:2205.14135).

// ---- The cache ------------------------------------------------------------------------------------------------------

// One KV head of one block.
struct CacheBlock {
  uint8_t* keys;
  uint8_t* values;
  float* key_scales;    // [tokens], int8 only
  float* value_scales;  // [tokens]

  CacheBlock(const Shape& shape, uint8_t* pool, int block, int kv_head) {
    const size_t half = static_cast<size_t>(shape.block_size) * shape.head_size * (shape.kv_type == KVType::bf16 ? 2 : 1);
    keys = pool + (static_cast<size_t>(block) * shape.num_kv_heads + kv_head) * shape.head_block_bytes();
    values = keys + half;
    key_scales = reinterpret_cast<float*>(values + half);
    value_scales = key_scales + shape.block_size;
  }
};

// Where a number stands in the panels of a block.
ULLAGE_INLINE size_t key_at(int i, int token, int head_size) {
  return static_cast<size_t>(token / kPanel) * head_size * kPanel + (i / 2 * kPanel + token % kPanel) * 2 + i % 2;
}
ULLAGE_INLINE size_t value_at(int i, int token, int block_size) {
  return static_cast<size_t>(i / kPanel) * block_size * kPanel + (token / 2 * kPanel + i % kPanel) * 2 + token % 2;
}

ULLAGE_INLINE float int8_scale(const float* x, int n) {
  float peak = 0;
  for (int i = 0; i < n; ++i) peak = fabsf(x[i]) > peak || x[i] != x[i] ? fabsf(x[i]) : peak;  // NaN stays
  return peak / 127.0f;
}

ULLAGE_INLINE uint8_t to_int8(float x, float inverse) {
  const float scaled = x * inverse;
  return static_cast<uint8_t>(static_cast<int8_t>(scaled == scaled ? lrintf(scaled) : 0));
}

// Keys and values of one token of one head.
ULLAGE_INLINE void append_token(const Shape& shape, const CacheBlock& cache, int token, const float* key,
                                const float* value) {
  const int head = shape.head_size;
  if (shape.kv_type == KVType::bf16) {
    uint16_t* keys = reinterpret_cast<uint16_t*>(cache.keys);
    uint16_t* values = reinterpret_cast<uint16_t*>(cache.values);
    for (int i = 0; i < head; ++i) {
      keys[key_at(i, token, head)] = to_bf16(key[i]);
      values[value_at(i, token, shape.block_size)] = to_bf16(value[i]);
    }
    return;
  }
  const float key_scale = int8_scale(key, head), value_scale = int8_scale(value, head);
  const float key_inverse = key_scale > 1e-30f ? 1.0f / key_scale : 0.0f;
  const float value_inverse = value_scale > 1e-30f ? 1.0f / value_scale : 0.0f;
  cache.key_scales[token] = key_scale;
  cache.value_scales[token] = value_scale;
  for (int i = 0; i < head; ++i) {
    cache.keys[key_at(i, token, head)] = to_int8(key[i], key_inverse);
    cache.values[value_at(i, token, shape.block_size)] = to_int8(value[i], value_inverse);
  }
}

// Attention reads whole blocks and gives the slots behind the last token the weight 0, which isn't enough when a
// request before left NaN there. So the step that begins a block clears what it doesn't fill.
ULLAGE_INLINE void clear_tokens(const Shape& shape, const CacheBlock& cache, int from) {
  const int width = shape.kv_type == KVType::bf16 ? 2 : 1;
  for (int token = from; token < shape.block_size; ++token) {
    for (int i = 0; i < shape.head_size; ++i) {
      memset(cache.keys + width * key_at(i, token, shape.head_size), 0, width);
      memset(cache.values + width * value_at(i, token, shape.block_size), 0, width);
    }
    if (shape.kv_type == KVType::int8) cache.key_scales[token] = cache.value_scales[token] = 0;
  }
}

// count bytes to as many bf16, exactly. count is a multiple of 32.
ULLAGE_INLINE void widen_int8(const uint8_t* from, size_t count, uint8_t* to) {
#if ULLAGE_DOT_PRODUCTS
  alignas(64) static constexpr uint16_t kHighHalves[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                           33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const __m512i high_halves = _mm512_load_si512(kHighHalves);
  const auto floats = [&](size_t i) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
  };
  for (size_t i = 0; i < count; i += 32)
    _mm512_storeu_si512(to + 2 * i, _mm512_permutex2var_epi16(floats(i), high_halves, floats(i + 16)));
#else
  typedef int8_t Bytes __attribute__((vector_size(kLanes)));
  typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
  for (size_t i = 0; i < count; i += kLanes) {
    Bytes bytes;
    memcpy(&bytes, from + i, sizeof bytes);
    const Vec values = __builtin_convertvector(bytes, Vec);
    const Halves halves = __builtin_convertvector((UVec)values >> 16, Halves);
    memcpy(to + 2 * i, &halves, sizeof halves);
  }
#endif
}

// ---- One item -------------------------------------------------------------------------------------------------------

struct AttentionScratch {
  uint8_t* q;           // [rows][4 * head_size]
  float* scores;        // [rows][kSpanTokens]
  uint8_t* p;           // [rows][4 * kSpanTokens]
  float* out;           // [rows][head_size]
  float* largest;       // [rows]
  float* total;         // [rows]
  float* key_scales;    // [kSpanTokens], int8 only
  float* value_scales;  // [kSpanTokens]
  uint8_t* widened;     // keys or values of one block as bf16

  AttentionScratch(const Shape& shape, uint8_t* at) {
    const size_t head = shape.head_size;
    const auto take = [&at](size_t num_bytes) {
      uint8_t* start = at;
      at += num_bytes;
      return start;
    };
    const auto floats = [&](size_t count) { return reinterpret_cast<float*>(take(sizeof(float) * count)); };
    q = take(kMaxAttentionRows * 4 * head);
    out = floats(kMaxAttentionRows * head);
    scores = floats(static_cast<size_t>(kMaxAttentionRows) * kSpanTokens);
    p = take(static_cast<size_t>(kMaxAttentionRows) * 4 * kSpanTokens);
    largest = floats(16);
    total = floats(16);
    key_scales = floats(shape.kv_type == KVType::bf16 ? 0 : kSpanTokens);
    value_scales = floats(shape.kv_type == KVType::bf16 ? 0 : kSpanTokens);
    widened = at;
  }
};

// Up to so many rows, what comes next is fetched line by line during the products. More leave no registers for that, and
// are so long at one block that the next is fetched at once.
constexpr int kMostRowsFetching = ULLAGE_TILES ? 4 : 8;
constexpr int kItemRows = ULLAGE_TILES ? kMaxAttentionRows : kMaxAttentionRows / kMaxRows * kMaxRows;

struct Item {
  const int32_t* table;  // block table of the sequence
  int kv_head;
  int first_row;         // in (token, head of group) rows of the sequence
  int num_rows;
  int batch_row;         // row of the sequence's first new token in the batch
  int position;          // its position
  int part, num_parts;   // of the context
};

// Bytes of a row per k, in the form multiply_bf16 reads.
constexpr int kRowBytesPerK = ULLAGE_DOT_PRODUCTS ? 2 : 4;

#if ULLAGE_TILES
// As multiply_panels, for all 16 rows that an item has room for.
template <class Panels>
ULLAGE_INLINE void multiply_panels_by_tiles(const uint8_t* rows, size_t row_stride, int num_chunks, int chunk_k,
                                            Panels&& panels, float* out, size_t ld_out, bool accumulate, bool both) {
  static_assert(kMaxAttentionRows == kTileRows);
  const size_t out_stride = sizeof(float) * ld_out;
  if (accumulate) {
    tile_load(0, out, out_stride);
    if (both) tile_load(1, out + kPanel, out_stride);
  } else {
    tile_zero(0);
    tile_zero(1);
  }
  for (int c = 0; c < num_chunks; ++c) {
    const PanelPair at = panels(c);
    for (int start = 0; start < chunk_k; start += kTileTerms) {
      tile_load(4, rows + 2 * (static_cast<size_t>(c) * chunk_k + start), row_stride);
      tile_load(6, at.left + static_cast<size_t>(start) * kPanel * 2, 64);
      tile_multiply(0, 4, 6);
      if (!both) continue;
      tile_load(7, at.right + static_cast<size_t>(start) * kPanel * 2, 64);
      tile_multiply(1, 4, 7);
    }
  }
  tile_store(0, out, out_stride);
  if (both) tile_store(1, out + kPanel, out_stride);
}
#endif

// out[r][columns of the two panels] (+)= rows * panels, for all rows of an item. panels(chunk) gives those of a chunk;
// panels(num_chunks) what is read next, which is fetched meanwhile (for up to kMostRowsFetching rows).
template <class Panels>
ULLAGE_INLINE void multiply_panels(const uint8_t* rows, size_t row_stride, int num_rows, int num_chunks, int chunk_k,
                                   Panels&& panels, float* out, size_t ld_out, bool accumulate, bool both) {
#if ULLAGE_TILES
  if (num_rows > 4 && chunk_k % kTileTerms == 0)
    return multiply_panels_by_tiles(rows, row_stride, num_chunks, chunk_k, panels, out, ld_out, accumulate, both);
#endif
  const auto multiply = [&](auto count, int first) __attribute__((always_inline)) {
    constexpr int M = decltype(count)::value;
    Accumulators<M> acc = {};
    const int num_vecs = both ? kTileVecs : kTileVecs / 2;
    if (accumulate)
      for (int m = 0; m < M; ++m)
        for (int j = 0; j < kTileVecs; ++j)
          if (j < num_vecs) acc[m][j] = load(out + (first + m) * ld_out + kLanes * j);
    for (int c = 0; c < num_chunks; ++c) {
      const uint8_t* at[M];
      for (int m = 0; m < M; ++m)
        at[m] = rows + (first + m) * row_stride + static_cast<size_t>(c) * chunk_k * kRowBytesPerK;
      multiply_bf16<M>(at, panels(c), chunk_k, acc,
                       [next = panels(c + 1)](const uint8_t*, const uint8_t*, size_t offset) {
                         if constexpr (M > kMostRowsFetching) return;
                         __builtin_prefetch(next.left + offset, 0, 2);
                         __builtin_prefetch(next.right + offset, 0, 2);
                       });
    }
    for (int m = 0; m < M; ++m)
      for (int j = 0; j < kTileVecs; ++j)
        if (j < num_vecs) store(out + (first + m) * ld_out + kLanes * j, acc[m][j]);
  };
  for (int first = 0; first < num_rows;) {
    const int count = rows_together(num_rows - first, kMaxRows);
    switch (count) {
#if ULLAGE_LANES == 16
      case 12: multiply(std::integral_constant<int, 12>{}, first); break;
      case 8: multiply(std::integral_constant<int, 8>{}, first); break;
      case 6: multiply(std::integral_constant<int, 6>{}, first); break;
      case 4: multiply(std::integral_constant<int, 4>{}, first); break;
#endif
#if ULLAGE_LANES >= 8
      case 3: multiply(std::integral_constant<int, 3>{}, first); break;
#endif
      case 2: multiply(std::integral_constant<int, 2>{}, first); break;
      default: multiply(std::integral_constant<int, 1>{}, first);
    }
    first += count;
  }
}

ULLAGE_INLINE int clamp(int value, int most) { return value < 0 ? 0 : value > most ? most : value; }

// Scores to probabilities of one span: masks, rescales what was summed before, packs p for the second product.
ULLAGE_INLINE void softmax_span(const AttentionScratch& s, int r, int visible_from, int visible_to, int num_tokens,
                                int head_size, bool scaled) {
  float* row = s.scores + static_cast<size_t>(r) * kSpanTokens;
  uint8_t* p = s.p + static_cast<size_t>(r) * kSpanTokens * 4;
  const float minus = -1e30f;
  if (scaled)
    for (int t = 0; t < num_tokens; t += kLanes) store(row + t, load(row + t) * load(s.key_scales + t));
  for (int t = 0; t < visible_from; ++t) row[t] = minus;
  for (int t = visible_to; t < num_tokens; ++t) row[t] = minus;
  Vec peak = splat(s.largest[r]);
  for (int t = 0; t < num_tokens; t += kLanes) peak = maximum(peak, load(row + t));
  const float largest_now = largest(peak);
  const Vec shift = splat(largest_now);
  Vec added = splat(0.0f);
  for (int t = 0; t < num_tokens; t += kLanes) {
    const Vec e = exponential(load(row + t) - shift);
    store(row + t, scaled ? e * load(s.value_scales + t) : e);
    added += e;
  }
  pack_row_bf16(row, num_tokens, p);
  const float fade = exponential(splat(s.largest[r] - largest_now))[0];
  s.total[r] = s.total[r] * fade + sum(added);
  s.largest[r] = largest_now;
  if (fade != 1.0f) {
    float* out = s.out + static_cast<size_t>(r) * head_size;
    for (int i = 0; i < head_size; i += kLanes) store(out + i, load(out + i) * splat(fade));
  }
}

class Attention {
 public:
  Attention(const Decoder& d, const Operator& op, uint8_t* scratch)
      : d_(d),
        shape_(d.shape),
        op_(op),
        pool_(d.kv_pool + d.shape.layer_pool_bytes() * op.pool_layer),
        int8_(d.shape.kv_type == KVType::int8),
        s_(d.shape, scratch) {}

  void run(const Item& item) {
    load_queries(item);
    const int block = shape_.block_size, span = block >= kSpanTokens ? block : kSpanTokens / block * block;
    const auto [begin, end] = tokens_of(item);
    for (int start = begin; start < end; start += span) {
      const int after = start + span < end ? start + span : begin;
      attend_span(item, start, end - start < span ? end - start : span, after / block);
    }
    item.num_parts == 1 ? finish(item) : leave_part(item);
  }

  // Brings the keys and values of an item near, ahead of its run.
  void prefetch(const Item& item) const {
    const auto [begin, end] = tokens_of(item);
    for (int start = begin; start < end; start += shape_.block_size) prefetch_block(item, start / shape_.block_size);
  }

 private:
  int position_of(const Item& item, int r) const { return item.position + (item.first_row + r) / shape_.group(); }

  struct Tokens {
    int begin, end;
  };

  // The tokens that an item sees: its share of the blocks from the first one in the window. It may be short or empty.
  Tokens tokens_of(const Item& item) const {
    const int block = shape_.block_size, last = position_of(item, item.num_rows - 1);
    const int first = op_.window ? position_of(item, 0) + 1 - op_.window : 0;
    const int first_block = first > 0 ? first / block : 0, num_blocks = last / block + 1 - first_block;
    const int per_part = (num_blocks + item.num_parts - 1) / item.num_parts;
    const int begin = (first_block + item.part * per_part) * block;
    return {begin, clamp(begin + per_part * block, last + 1)};
  }

  CacheBlock cache(const Item& item, int index) const {
    return CacheBlock(shape_, pool_, item.table[index], item.kv_head);
  }

  void load_queries(const Item& item) {
    const int head = shape_.head_size, group = shape_.group();
    const size_t ld_qkv = (shape_.q_size() + 2 * shape_.kv_size() + kTile - 1) / kTile * kTile;
    for (int r = 0; r < item.num_rows; ++r) {
      const int row = item.first_row + r;
      const float* q = d_.work.qkv + (item.batch_row + row / group) * ld_qkv +
                       static_cast<size_t>(item.kv_head * group + row % group) * head;
      float* scaled = s_.scores;  // free until the first span
      for (int i = 0; i < head; ++i) scaled[i] = q[i] * shape_.score_scale;
      pack_row_bf16(scaled, head, s_.q + static_cast<size_t>(r) * 4 * head);
      s_.largest[r] = -1e30f;
      s_.total[r] = 0;
    }
    memset(s_.out, 0, sizeof(float) * item.num_rows * head);
  }

  // bf16 panels of a block's keys or values.
  const uint8_t* panels_of(const uint8_t* stored) const {
    if (!int8_) return stored;
    widen_int8(stored, static_cast<size_t>(shape_.block_size) * shape_.head_size, s_.widened);
    return s_.widened;
  }

  void prefetch_block(const Item& item, int index) const {
    const uint8_t* keys = cache(item, index).keys;
    for (size_t line = 0; line < shape_.head_block_bytes(); line += 64) __builtin_prefetch(keys + line, 0, 2);
  }

  // One span of an item, of whose blocks `index_after` is read next.
  void attend_span(const Item& item, int start, int count, int index_after) {
    const int block = shape_.block_size, head = shape_.head_size;
    const int first_block = start / block, num_blocks = (count + block - 1) / block, num_tokens = num_blocks * block;
    for (int b = 0; b < num_blocks; ++b) {
      const bool is_last = b + 1 == num_blocks;
      if (item.num_rows > kMostRowsFetching && !is_last) prefetch_block(item, first_block + b + 1);
      const uint8_t* next = is_last ? cache(item, first_block).values : cache(item, first_block + b + 1).keys;
      score_block(cache(item, first_block + b), next, item.num_rows, b * block);
    }
    for (int r = 0; r < item.num_rows; ++r) {
      const int position = position_of(item, r);
      const int from = op_.window ? position + 1 - op_.window - start : 0;
      softmax_span(s_, r, clamp(from, num_tokens), clamp(position + 1 - start, num_tokens), num_tokens, head, int8_);
    }
    add_values(item, first_block, num_blocks, cache(item, index_after).keys);
  }

  // `next`: stored keys or values of which as much is fetched meanwhile; int8 values lie right behind their keys.
  void score_block(const CacheBlock& at, const uint8_t* next, int num_rows, int column) {
    const uint8_t* keys = panels_of(at.keys);
    const size_t panel_bytes = static_cast<size_t>(shape_.head_size) * kPanel * 2;
    const int num_panels = shape_.block_size / kPanel;
    for (int p = 0; p < num_panels; p += 2) {
      const bool both = p + 1 < num_panels;
      const auto pair = [&](const uint8_t* from) {
        return PanelPair{from + p * panel_bytes, from + (both ? p + 1 : p) * panel_bytes};
      };
      multiply_panels(s_.q, 4 * static_cast<size_t>(shape_.head_size), num_rows, 1, shape_.head_size,
                      [&](int chunk) { return pair(chunk == 0 ? keys : next); }, s_.scores + column + p * kPanel,
                      kSpanTokens, false, both);
    }
    if (int8_) {
      memcpy(s_.key_scales + column, at.key_scales, sizeof(float) * shape_.block_size);
      memcpy(s_.value_scales + column, at.value_scales, sizeof(float) * shape_.block_size);
    }
  }

  void add_values(const Item& item, int first_block, int num_blocks, const uint8_t* next) {
    // bf16 values are read in place, all blocks of a span for one pair of panels; int8 ones a widened block at a time.
    const int at_once = int8_ ? 1 : num_blocks;
    const size_t panel_bytes = static_cast<size_t>(shape_.block_size) * kPanel * 2;
    const int num_panels = shape_.head_size / kPanel;
    for (int first = 0; first < num_blocks; first += at_once) {
      const uint8_t* widened = int8_ ? panels_of(cache(item, first_block + first).values) : nullptr;
      const uint8_t* p_rows = s_.p + static_cast<size_t>(first) * shape_.block_size * kRowBytesPerK;
      for (int p = 0; p < num_panels; p += 2) {
        const bool both = p + 1 < num_panels;
        const auto panels = [&](int b) {
          if (!widened && b == num_blocks && p + 2 >= num_panels) return PanelPair{next, next + panel_bytes};
          const int ahead = b == at_once ? 2 : 0;  // back to the first block, for the next pair of panels
          const uint8_t* values = widened ? widened : cache(item, first_block + (ahead ? 0 : b)).values;
          return PanelPair{values + (p + ahead) * panel_bytes, values + (p + ahead + both) * panel_bytes};
        };
        multiply_panels(p_rows, 4 * static_cast<size_t>(kSpanTokens), item.num_rows, at_once, shape_.block_size, panels,
                        s_.out + p * kPanel, shape_.head_size, true, both);
      }
    }
  }

  void finish(const Item& item) {
    const int head = shape_.head_size, group = shape_.group();
    for (int r = 0; r < item.num_rows; ++r) {
      const int row = item.first_row + r;
      float* to = d_.work.attention + (item.batch_row + row / group) * static_cast<size_t>(shape_.q_size()) +
                  static_cast<size_t>(item.kv_head * group + row % group) * head;
      const float inverse = 1.0f / s_.total[r];
      for (int i = 0; i < head; ++i) to[i] = s_.out[static_cast<size_t>(r) * head + i] * inverse;
    }
  }

  void leave_part(const Item& item) {
    const int head = shape_.head_size, group = shape_.group();
    for (int r = 0; r < item.num_rows; ++r) {
      const int row = item.first_row + r;
      const int slot = (item.batch_row + row / group) * shape_.num_heads + item.kv_head * group + row % group;
      float* to = d_.work.parts + (static_cast<size_t>(slot) * kMaxParts + item.part) * shape_.part_floats();
      memcpy(to, s_.out + static_cast<size_t>(r) * head, sizeof(float) * head);
      to[head] = s_.largest[r];
      to[head + 1] = s_.total[r];
    }
  }

  const Decoder& d_;
  const Shape& shape_;
  const Operator& op_;
  uint8_t* pool_;
  const bool int8_;
  const AttentionScratch s_;
};

// Puts the parts of one row's context together: to[q_size].
ULLAGE_INLINE void merge_parts(const Decoder& d, int row, int num_parts, float* to) {
  const Shape& shape = d.shape;
  const int head = shape.head_size;
  for (int h = 0; h < shape.num_heads; ++h, to += head) {
    const float* parts =
        d.work.parts + static_cast<size_t>(row * shape.num_heads + h) * kMaxParts * shape.part_floats();
    const auto part = [&](int i) { return parts + static_cast<size_t>(i) * shape.part_floats(); };
    float largest_of_all = part(0)[head];
    for (int i = 1; i < num_parts; ++i)
      largest_of_all = part(i)[head] > largest_of_all ? part(i)[head] : largest_of_all;
    float total = 0;
    memset(to, 0, sizeof(float) * head);
    for (int i = 0; i < num_parts; ++i) {
      const float fade = exponential(splat(part(i)[head] - largest_of_all))[0];
      total += part(i)[head + 1] * fade;
      for (int k = 0; k < head; k += kLanes) store(to + k, load(to + k) + load(part(i) + k) * splat(fade));
    }
    for (int k = 0; k < head; k += kLanes) store(to + k, load(to + k) * splat(1.0f / total));
  }
}
