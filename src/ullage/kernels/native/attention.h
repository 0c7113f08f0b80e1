// Attention of new tokens over a paged KV pool. Included by step.inl.
//
// One *item* is up to kMaxAttentionRows query rows of one KV head of one sequence; a row is (token, head of the group).
// It runs over the context in spans, keeping for each row the largest score and the sum of exponentials so far, so that
// scratch doesn't grow with it (online softmax: Milakov and Gimelshein, arXiv:1805.02867; FlashAttention,
// arXiv:2205.14135).

struct AttentionScratch {
  uint8_t* q;      // [rows][4 * head_size]
  float* scores;   // [rows][kSpanTokens]
  uint8_t* p;      // [rows][4 * kSpanTokens]
  float* out;      // [rows][head_size]
  float* largest;  // [rows]
  float* total;    // [rows]
};

ULLAGE_INLINE AttentionScratch attention_scratch(const Decoder& d, int thread) {
  const size_t head = d.shape.head_size;
  uint8_t* at = d.work.per_thread + d.shape.attention_scratch_bytes() * thread;
  AttentionScratch s;
  const auto take = [&at](size_t num_bytes) {
    uint8_t* start = at;
    at += num_bytes;
    return start;
  };
  s.q = take(kMaxAttentionRows * 4 * head);
  s.out = reinterpret_cast<float*>(take(kMaxAttentionRows * 4 * head));
  s.scores = reinterpret_cast<float*>(take(kMaxAttentionRows * 4 * kSpanTokens));
  s.p = take(kMaxAttentionRows * 4 * kSpanTokens);
  s.largest = reinterpret_cast<float*>(take(64));
  s.total = reinterpret_cast<float*>(take(64));
  return s;
}

// Bytes of a row in the form multiply_bf16 reads.
constexpr int kRowBytesPerK = ULLAGE_DOT_PRODUCTS ? 2 : 4;

// out[r][columns of the two panels] (+)= rows * panels, for all rows of an item.
template <class Panels>
ULLAGE_INLINE void multiply_panels(const uint8_t* rows, size_t row_stride, int num_rows, int num_chunks, int chunk_k,
                                   Panels&& panels, float* out, size_t ld_out, bool accumulate, bool both) {
  in_row_groups(num_rows, 0, [&](auto count, int first) __attribute__((always_inline)) {
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
      const auto [left, right] = panels(c);
      multiply_bf16<M>(at, left, right, chunk_k, acc);
    }
    for (int m = 0; m < M; ++m)
      for (int j = 0; j < kTileVecs; ++j)
        if (j < num_vecs) store(out + (first + m) * ld_out + kLanes * j, acc[m][j]);
  });
}

struct PanelPair {
  const uint8_t* left;
  const uint8_t* right;
};

struct Item {
  const int32_t* table;  // block table of the sequence
  int kv_head;
  int first_row;         // in (token, head of group) rows of the sequence
  int num_rows;
  int batch_row;         // row of the sequence's first new token in the batch
  int position;          // its position
};

ULLAGE_INLINE int clamp(int value, int most) { return value < 0 ? 0 : value > most ? most : value; }

// Scores to probabilities of one span: masks, rescales what was summed before, packs p for the second product.
ULLAGE_INLINE void softmax_span(const AttentionScratch& s, int r, int visible_from, int visible_to, int num_tokens,
                                int head_size) {
  float* row = s.scores + static_cast<size_t>(r) * kSpanTokens;
  uint8_t* p = s.p + static_cast<size_t>(r) * kSpanTokens * 4;
  const float minus = -1e30f;
  for (int t = 0; t < visible_from; ++t) row[t] = minus;
  for (int t = visible_to; t < num_tokens; ++t) row[t] = minus;
  Vec peak = splat(s.largest[r]);
  for (int t = 0; t < num_tokens; t += kLanes) peak = maximum(peak, load(row + t));
  const float largest_now = largest(peak);
  const Vec shift = splat(largest_now);
  Vec added = splat(0.0f);
  for (int t = 0; t < num_tokens; t += kLanes) {
    const Vec e = exponential(load(row + t) - shift);
    store(row + t, e);
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

static void attend(const Decoder& d, const Layer& layer, const uint8_t* pool, size_t ld_qkv, const Item& item,
                   const AttentionScratch& s) {
  const Shape& shape = d.shape;
  const int head = shape.head_size, group = shape.group(), block = shape.block_size;
  const size_t head_block = shape.head_block_bytes();
  const size_t panel_k = static_cast<size_t>(head) * kPanel * 2;   // one panel of keys
  const size_t panel_v = static_cast<size_t>(block) * kPanel * 2;  // one panel of values
  const auto keys_of = [&](int index) {
    return pool + (static_cast<size_t>(item.table[index]) * shape.num_kv_heads + item.kv_head) * head_block;
  };
  const auto position_of = [&](int r) { return item.position + (item.first_row + r) / group; };

  for (int r = 0; r < item.num_rows; ++r) {
    const int row = item.first_row + r;
    const float* q = d.work.qkv + (item.batch_row + row / group) * ld_qkv +
                     static_cast<size_t>(item.kv_head * group + row % group) * head;
    float* scaled = s.scores;  // free until the first span
    for (int i = 0; i < head; ++i) scaled[i] = q[i] * shape.score_scale;
    pack_row_bf16(scaled, head, s.q + static_cast<size_t>(r) * 4 * head);
    s.largest[r] = -1e30f;
    s.total[r] = 0;
  }
  memset(s.out, 0, sizeof(float) * item.num_rows * head);

  const int last = position_of(item.num_rows - 1);
  int begin = layer.window ? position_of(0) + 1 - layer.window : 0;
  begin = begin > 0 ? begin / block * block : 0;
  const int span = block >= kSpanTokens ? block : kSpanTokens / block * block;
  const int panels_per_block = block / kPanel;
  for (int start = begin; start <= last; start += span) {
    const int first_block = start / block;
    const int end = start + span < last + 1 ? start + span : last + 1;
    const int num_blocks = (end - start + block - 1) / block;
    const int num_panels = num_blocks * panels_per_block;
    const auto key_panel = [&](int p) {
      return keys_of(first_block + p / panels_per_block) + p % panels_per_block * panel_k;
    };
    for (int p = 0; p < num_panels; p += 2) {
      const bool both = p + 1 < num_panels;
      multiply_panels(s.q, 4 * static_cast<size_t>(head), item.num_rows, 1, head,
                      [&](int) { return PanelPair{key_panel(p), key_panel(both ? p + 1 : p)}; },
                      s.scores + p * kPanel, kSpanTokens, false, both);
    }
    for (int r = 0; r < item.num_rows; ++r) {
      const int position = position_of(r);
      const int from = layer.window ? position + 1 - layer.window - start : 0;
      const int to = position + 1 - start;
      const int num_tokens = num_blocks * block;
      softmax_span(s, r, clamp(from, num_tokens), clamp(to, num_tokens), num_tokens, head);
    }
    const int value_panels = head / kPanel;
    for (int p = 0; p < value_panels; p += 2) {
      const bool both = p + 1 < value_panels;
      multiply_panels(s.p, 4 * static_cast<size_t>(kSpanTokens), item.num_rows, num_blocks, block,
                      [&](int b) {
                        const uint8_t* values = keys_of(first_block + b) + head_block / 2;
                        return PanelPair{values + p * panel_v, values + (both ? p + 1 : p) * panel_v};
                      },
                      s.out + p * kPanel, head, true, both);
    }
  }

  for (int r = 0; r < item.num_rows; ++r) {
    const int row = item.first_row + r;
    float* to = d.work.attention + (item.batch_row + row / group) * static_cast<size_t>(shape.q_size()) +
                static_cast<size_t>(item.kv_head * group + row % group) * head;
    const float inverse = 1.0f / s.total[r];
    for (int i = 0; i < head; ++i) to[i] = s.out[static_cast<size_t>(r) * head + i] * inverse;
  }
}
