// One step of the decoder. Compiled once per instruction set (isa_*.cpp), each in a namespace of its own.
//
// Every thread runs run_step from top to bottom; what stands between two barriers is shared out by rows, by tiles of
// outputs or by items of attention. The stages of a layer:
//
//   [add + norm] [qkv] [rope, append to the cache] [attention] [pack] [o] [add + norm] [gate, up] [pack] [down]

#include "vec.h"
#include "matmul.h"
#include "attention.h"

struct Share {
  int begin, end;
};

ULLAGE_INLINE Share share_of(int count, int num_threads, int thread) {
  return {static_cast<int>(static_cast<int64_t>(count) * thread / num_threads),
          static_cast<int>(static_cast<int64_t>(count) * (thread + 1) / num_threads)};
}

// ---- Row-wise stages ------------------------------------------------------------------------------------------------

// Root mean square norm (arXiv:1910.07467). `to` may be `x`. n is a multiple of 16.
ULLAGE_INLINE void rms_norm(const float* x, const float* weight, int n, float eps, float* to) {
  Vec squares = splat(0.0f);
  for (int i = 0; i < n; i += kLanes) squares += load(x + i) * load(x + i);
  const Vec scale = splat(1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(n) + eps));
  for (int i = 0; i < n; i += kLanes) store(to + i, load(x + i) * scale * load(weight + i));
}

// Row `row` of what the product with `w` reads.
ULLAGE_INLINE void pack_row(const Decoder& d, const Matrix& w, const float* x, int row) {
  uint8_t* to = d.work.activations + 4 * static_cast<size_t>(w.k) * row;
  if (w.type == WeightType::int8) {
    pack_row_int8(x, w.k, to);
  } else {
    pack_row_bf16(x, w.k, to);
  }
}

ULLAGE_INLINE Rows packed_rows(const Decoder& d, const Matrix& w) {
  return {d.work.activations, 4 * static_cast<size_t>(w.k)};
}

// Row of the embedding matrix, read out of its tile.
ULLAGE_INLINE void embed_token(const Decoder& d, int token, float* x) {
  const Matrix& m = d.embed;
  const uint8_t* tile = m.tile(token / kTile);
  const int column = token % kPanel;
  const bool right = token % kTile >= kPanel;
  for (int k = 0; k < m.k; ++k) {
    float value;
    if (m.type == WeightType::bf16) {
      const uint16_t* panel = reinterpret_cast<const uint16_t*>(tile) + (right ? static_cast<size_t>(kPanel) * m.k : 0);
      value = from_bf16(panel[(k / 2 * kPanel + column) * 2 + k % 2]);
    } else {
      const int start = k / kGroup * kGroup, i = k - start;
      const int size = m.k - start < kGroup ? m.k - start : kGroup;
      const uint8_t* group = tile + start / kGroup * (kTile * (kGroup + sizeof(float)));
      const float* scales = reinterpret_cast<const float*>(group + kTile * size);
      const uint8_t* panel = group + (right ? kPanel * size : 0);
      value = (static_cast<float>(panel[(i / 4 * kPanel + column) * 4 + i % 4]) - 128.0f) * scales[token % kTile];
    }
    x[k] = value * d.shape.embedding_scale;
  }
}

// x += norm(branch), then the packed norm of x: what stands between two matrix products of the residual stream.
ULLAGE_INLINE void add_and_norm(const Decoder& d, int row, const float* post_norm, bool add, const float* norm,
                                const Matrix& next) {
  const int hidden = d.shape.hidden;
  float* x = d.work.x + static_cast<size_t>(row) * hidden;
  float* branch = d.work.branch + static_cast<size_t>(row) * (hidden + kTile);
  if (add) {
    if (post_norm) rms_norm(branch, post_norm, hidden, d.shape.norm_eps, branch);
    for (int i = 0; i < hidden; i += kLanes) store(x + i, load(x + i) + load(branch + i));
  }
  rms_norm(x, norm, hidden, d.shape.norm_eps, branch);
  pack_row(d, next, branch, row);
}

ULLAGE_INLINE void rope_tables(const Decoder& d, const Batch& b, int row) {
  const int half = d.shape.head_size / 2;
  for (int t = 0; t < d.num_ropes; ++t) {
    float* cosines = d.work.rope + (static_cast<size_t>(t) * b.num_rows + row) * 2 * half;
    for (int i = 0; i < half; ++i) {
      const double angle = b.positions[row] * d.ropes[t].inv_freq[i];
      cosines[i] = static_cast<float>(cos(angle) * d.ropes[t].attention_factor);
      cosines[half + i] = static_cast<float>(sin(angle) * d.ropes[t].attention_factor);
    }
  }
}

// Rotary embedding in rotate-half order (arXiv:2104.09864).
ULLAGE_INLINE void rotate(float* x, const float* cosines, int half) {
  const float* sines = cosines + half;
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cosines[i] - b * sines[i];
    x[half + i] = b * cosines[i] + a * sines[i];
  }
}

// One KV head of one block of the cache.
struct CacheBlock {
  uint16_t* keys;
  uint16_t* values;
  int head_size, block_size;

  uint16_t& key(int i, int offset) const {
    uint16_t* panel = keys + static_cast<size_t>(offset / kPanel) * head_size * kPanel;
    return panel[(i / 2 * kPanel + offset % kPanel) * 2 + i % 2];
  }
  uint16_t& value(int i, int offset) const {
    uint16_t* panel = values + static_cast<size_t>(i / kPanel) * block_size * kPanel;
    return panel[(offset / 2 * kPanel + i % kPanel) * 2 + offset % 2];
  }
};

ULLAGE_INLINE CacheBlock cache_block(const Shape& shape, uint8_t* pool, int block, int kv_head) {
  uint8_t* at = pool + (static_cast<size_t>(block) * shape.num_kv_heads + kv_head) * shape.head_block_bytes();
  uint16_t* keys = reinterpret_cast<uint16_t*>(at);
  return {keys, keys + shape.block_size * shape.head_size, shape.head_size, shape.block_size};
}

static int sequence_of(const Batch& b, int row) {
  int s = 0;
  while (b.seq_starts[s + 1] <= row) ++s;
  return s;
}

// Bias, per-head norm and rope of q and k; k and v go to the cache.
ULLAGE_INLINE void finish_qkv(const Decoder& d, const Batch& b, const Layer& layer, uint8_t* pool, int row,
                              size_t ld_qkv) {
  const Shape& shape = d.shape;
  const int head = shape.head_size, half = head / 2;
  float* qkv = d.work.qkv + row * ld_qkv;
  if (layer.qkv_bias)
    for (int i = 0; i < shape.q_size() + 2 * shape.kv_size(); ++i) qkv[i] += layer.qkv_bias[i];
  const float* cosines = d.work.rope + (static_cast<size_t>(layer.rope) * b.num_rows + row) * 2 * half;
  for (int h = 0; h < shape.num_heads + shape.num_kv_heads; ++h) {
    const float* norm = h < shape.num_heads ? layer.q_norm : layer.k_norm;
    float* x = qkv + static_cast<size_t>(h) * head;
    if (norm) rms_norm(x, norm, head, shape.norm_eps, x);
    rotate(x, cosines, half);
  }
  const float* keys = qkv + shape.q_size();
  const float* values = keys + shape.kv_size();
  const int sequence = sequence_of(b, row), position = b.positions[row], offset = position % shape.block_size;
  const int block = b.table(layer, sequence)[position / shape.block_size];
  // Attention reads whole blocks and gives the slots behind the last token the weight 0, which isn't enough when a
  // request before left NaN there. So the step that begins a block clears what it doesn't fill.
  const int first = b.seq_starts[sequence], last = b.seq_starts[sequence + 1] - 1;
  const bool begins_unfilled_block = row == last && b.positions[first] <= position - offset;
  for (int h = 0; h < shape.num_kv_heads; ++h) {
    const CacheBlock cache = cache_block(shape, pool, block, h);
    for (int i = 0; i < head; ++i) {
      cache.key(i, offset) = to_bf16(keys[h * head + i]);
      cache.value(i, offset) = to_bf16(values[h * head + i]);
    }
    if (begins_unfilled_block)
      for (int behind = offset + 1; behind < shape.block_size; ++behind)
        for (int i = 0; i < head; ++i) cache.value(i, behind) = 0;
  }
}

// ---- Stages shared out by tiles or items ----------------------------------------------------------------------------

ULLAGE_INLINE void store_tile(float* row, const Vec* values) {
  for (int j = 0; j < kTileVecs; ++j) store(row + kLanes * j, values[j]);
}

ULLAGE_INLINE void product(const Decoder& d, const Matrix& w, int num_rows, float* out, size_t ld, int thread) {
  const Share tiles = share_of(w.num_tiles(), d.num_threads, thread);
  multiply_tiles(w, packed_rows(d, w), num_rows, tiles.begin, tiles.end,
                 [&](int row, int tile, const Vec* values) __attribute__((always_inline)) {
                   store_tile(out + row * ld + static_cast<size_t>(tile) * kTile, values);
                 });
}

// silu(gate) * up, or gelu(gate) * up: a tile holds 16 gates and the ups that go with them.
ULLAGE_INLINE void gated_product(const Decoder& d, const Matrix& w, int num_rows, size_t ld, int thread) {
  const Share tiles = share_of(w.num_tiles(), d.num_threads, thread);
  const bool silu = d.shape.activation == Activation::silu;
  multiply_tiles(w, packed_rows(d, w), num_rows, tiles.begin, tiles.end,
                 [&](int row, int tile, const Vec* values) __attribute__((always_inline)) {
                   float* out = d.work.gated + row * ld + static_cast<size_t>(tile) * kPanel;
                   for (int j = 0; j < kTileVecs / 2; ++j) {
                     const Vec gate = values[j], up = values[kTileVecs / 2 + j];
                     // gelu(x) = x sigmoid(2 sqrt(2 / pi) x (1 + 0.044715 x^2)): the tanh form, arXiv:1606.08415
                     const Vec bend = splat(1.0f) + splat(0.044715f) * gate * gate;
                     const Vec z = silu ? gate : splat(1.5957691216057308f) * gate * bend;
                     store(out + kLanes * j, gate / (splat(1.0f) + exponential(-z)) * up);
                   }
                 });
}

ULLAGE_INLINE int items_of(const Batch& b, int s, int group) {
  return ((b.seq_starts[s + 1] - b.seq_starts[s]) * group + kMaxAttentionRows - 1) / kMaxAttentionRows;
}

static void attention(const Decoder& d, const Batch& b, const Layer& layer, const uint8_t* pool, size_t ld_qkv,
                      std::atomic<int>& next_item, int thread) {
  const AttentionScratch scratch = attention_scratch(d, thread);
  const int group = d.shape.group(), kv_heads = d.shape.num_kv_heads;
  int sequence = 0, items_before = 0;
  for (int i = next_item.fetch_add(1); sequence < b.num_sequences; i = next_item.fetch_add(1)) {
    while (sequence < b.num_sequences && i >= items_before + items_of(b, sequence, group) * kv_heads)
      items_before += items_of(b, sequence++, group) * kv_heads;
    if (sequence == b.num_sequences) return;
    const int first_row = (i - items_before) / kv_heads * kMaxAttentionRows;
    const int batch_row = b.seq_starts[sequence];
    const int left = (b.seq_starts[sequence + 1] - batch_row) * group - first_row;
    const Item item = {b.table(layer, sequence),
                       (i - items_before) % kv_heads,
                       first_row,
                       left < kMaxAttentionRows ? left : kMaxAttentionRows,
                       batch_row,
                       b.positions[batch_row]};
    attend(d, layer, pool, ld_qkv, item, scratch);
  }
}

// ---- The step -------------------------------------------------------------------------------------------------------

static void run_step(const Decoder& d, const Batch& b, Barrier& barrier, std::atomic<int>& next_item, int thread) {
  const Shape& shape = d.shape;
  const Workspace& w = d.work;
  const Share rows = share_of(b.num_rows, d.num_threads, thread);
  const size_t ld_hidden = shape.hidden + kTile, ld_attention = shape.q_size();

  for (int row = rows.begin; row < rows.end; ++row) {
    embed_token(d, b.token_ids[row], w.x + static_cast<size_t>(row) * shape.hidden);
    rope_tables(d, b, row);
    add_and_norm(d, row, nullptr, false, d.layers[0].attn_norm, d.layers[0].qkv);
  }
  barrier.wait();

  for (int l = 0; l < shape.num_layers; ++l) {
    const Layer& layer = d.layers[l];
    uint8_t* pool = d.kv_pool + shape.layer_pool_bytes() * layer.pool_layer;
    const size_t ld_qkv = layer.qkv.outputs, ld_gated = layer.gate_up.outputs / 2;

    product(d, layer.qkv, b.num_rows, w.qkv, ld_qkv, thread);
    barrier.wait();

    if (thread == 0) next_item.store(0, std::memory_order_relaxed);
    for (int row = rows.begin; row < rows.end; ++row)
      finish_qkv(d, b, layer, pool, row, ld_qkv);
    barrier.wait();

    attention(d, b, layer, pool, ld_qkv, next_item, thread);
    barrier.wait();

    for (int row = rows.begin; row < rows.end; ++row)
      pack_row(d, layer.o, w.attention + row * ld_attention, row);
    barrier.wait();

    product(d, layer.o, b.num_rows, w.branch, ld_hidden, thread);
    barrier.wait();

    for (int row = rows.begin; row < rows.end; ++row)
      add_and_norm(d, row, layer.post_attn_norm, true, layer.ffn_norm, layer.gate_up);
    barrier.wait();

    gated_product(d, layer.gate_up, b.num_rows, ld_gated, thread);
    barrier.wait();

    for (int row = rows.begin; row < rows.end; ++row)
      pack_row(d, layer.down, w.gated + row * ld_gated, row);
    barrier.wait();

    product(d, layer.down, b.num_rows, w.branch, ld_hidden, thread);
    barrier.wait();

    const bool is_last = l + 1 == shape.num_layers;
    if (!is_last)
      for (int row = rows.begin; row < rows.end; ++row)
        add_and_norm(d, row, layer.post_ffn_norm, true, d.layers[l + 1].attn_norm, d.layers[l + 1].qkv);
    else if (thread == 0)
      // Only the rows whose logits are asked for; packed side by side for the output matrix.
      for (int i = 0; i < b.num_logit_rows; ++i) {
        const int row = b.logit_rows[i];
        float* branch = w.branch + row * ld_hidden;
        float* x = w.x + static_cast<size_t>(row) * shape.hidden;
        if (layer.post_ffn_norm) rms_norm(branch, layer.post_ffn_norm, shape.hidden, shape.norm_eps, branch);
        for (int k = 0; k < shape.hidden; k += kLanes) store(x + k, load(x + k) + load(branch + k));
        rms_norm(x, d.final_norm, shape.hidden, shape.norm_eps, branch);
        pack_row(d, d.lm_head, branch, i);
      }
    barrier.wait();
  }

  if (b.num_logit_rows) product(d, d.lm_head, b.num_logit_rows, w.logits, d.lm_head.outputs, thread);
  barrier.wait();
}
