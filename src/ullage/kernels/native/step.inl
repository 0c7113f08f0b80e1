// One step of the decoder. Compiled once per instruction set (isa_*.cpp), each in a namespace of its own.
//
// Every thread runs the operators from first to last; what stands between two barriers is shared out by rows, by tiles
// of outputs or by items of attention. An operator that multiplies first prepares its rows (residual, norm, packing).
// Many rows are shared out for that and met at a barrier; a few rows every thread prepares for itself, in memory of its
// own: doing it twice costs less than waiting.

#include "vec.h"
#include "products.h"
#include "attention.h"

struct Share {
  int begin, end;
};

ULLAGE_INLINE Share share_of(int count, int num_threads, int thread) {
  return {static_cast<int>(static_cast<int64_t>(count) * thread / num_threads),
          static_cast<int>(static_cast<int64_t>(count) * (thread + 1) / num_threads)};
}

// Root mean square norm (arXiv:1910.07467). `to` may be `x`. n is a multiple of 16.
ULLAGE_INLINE void rms_norm(const float* x, const float* weight, int n, float eps, float* to) {
  Vec squares = splat(0.0f);
  for (int i = 0; i < n; i += kLanes) squares += load(x + i) * load(x + i);
  const Vec scale = splat(1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(n) + eps));
  for (int i = 0; i < n; i += kLanes) store(to + i, load(x + i) * scale * load(weight + i));
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

// gate's activation times up.
ULLAGE_INLINE Vec gated(Activation activation, Vec gate, Vec up) {
  // gelu(x) = x sigmoid(2 sqrt(2 / pi) x (1 + 0.044715 x^2)): the tanh form, arXiv:1606.08415
  const Vec bend = splat(1.0f) + splat(0.044715f) * gate * gate;
  const Vec z = activation == Activation::silu ? gate : splat(1.5957691216057308f) * gate * bend;
  return gate / (splat(1.0f) + exponential(-z)) * up;
}

// One number of a matrix.
static float weight_at(const Matrix& m, int output, int k) {
  const uint8_t* tile = m.tile(output / kTile);
  const int column = output % kTile;
  if (m.format == Format::bf16) {
    const uint16_t* panel = reinterpret_cast<const uint16_t*>(tile) + static_cast<size_t>(column / kPanel) * kPanel * m.k;
    return from_bf16(panel[(k / 2 * kPanel + column % kPanel) * 2 + k % 2]);
  }
  return with_format(m.format, [&](auto f) {
    using F = decltype(f);
    const uint8_t* group = tile + static_cast<size_t>(k / F::terms) * F::bytes;
    const Place place = place_of<F>(column, k % F::terms);
    const float q = static_cast<float>(F::bits == 8 ? group[place.byte] : group[place.byte] >> place.shift & 15);
    const auto number = [&](size_t start) {
      const uint8_t* at = group + start + static_cast<size_t>(F::scale_bytes) * column;
      float value;
      uint16_t half;
      if constexpr (F::scale_bytes == 4) return memcpy(&value, at, 4), value;
      return memcpy(&half, at, 2), from_half(half);
    };
    const float scale = number(2 * F::panel_bytes);
    if constexpr (F::has_minimum) return q * scale + number(F::minima_at);
    return (q - F::zero) * scale;
  });
}

// One thread's run through a step.
class Step {
 public:
  Step(const Decoder& d, const Batch& b, StepState& state, int thread)
      : d_(d),
        b_(b),
        shape_(d.shape),
        w_(d.work),
        state_(state),
        thread_(thread),
        few_(b.num_rows <= kFewRows),
        x_(w_.x + (few_ ? static_cast<size_t>(w_.max_rows + thread * kFewRows) * d.shape.hidden : 0)),
        row_bytes_(4 * static_cast<size_t>(d.shape.max_k())),
        activations_(w_.activations + (few_ ? (w_.max_rows + thread * kFewRows) * row_bytes_ : 0)),
        attention_scratch_(w_.per_thread + d.shape.thread_scratch_bytes() * thread),
        panels_(attention_scratch_ + d.shape.attention_scratch_bytes()),
        normed_(reinterpret_cast<float*>(panels_ + d.shape.panels_bytes())),
        branch_(normed_ + padded(d.shape.hidden)),
        num_parts_(parts()) {}

  void run() {
#if ULLAGE_TILES
    configure_tiles();
#endif
    uint64_t begun = now();
    for (int i = 0; i < d_.num_operators; ++i) {
      const Operator& op = d_.operators[i];
      run_operator(op);
      if (thread_ == 0) {
        const uint64_t ended = now();
        state_.nanoseconds[static_cast<int>(op.kind)] += ended - begun;
        begun = ended;
      }
    }
#if ULLAGE_TILES
    release_tiles();
#endif
  }

 private:
  void run_operator(const Operator& op) {
    switch (op.kind) {
      case Kind::embed: return embed(op);
      case Kind::qkv: prepare_norm(op); return product(op, b_.num_rows, w_.qkv, op.matrix.outputs);
      case Kind::append: return append(op);
      case Kind::attend: return attend(op);
      case Kind::output: prepare_attention(op); return product(op, b_.num_rows, w_.branch, shape_.hidden + kTile);
      case Kind::gate_up: prepare_norm(op); return gated_product(op);
      case Kind::down: prepare_gated(op); return product(op, b_.num_rows, w_.branch, shape_.hidden + kTile);
      case Kind::head: prepare_head(op); return product(op, b_.num_logit_rows, w_.logits, op.matrix.outputs);
    }
  }

  static uint64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  // Calls body(row) for the rows this thread prepares.
  template <class Body>
  void prepare(int num_rows, Body&& body) {
    const Share rows = few_ ? Share{0, num_rows} : share_of(num_rows, d_.num_threads, thread_);
    for (int row = rows.begin; row < rows.end; ++row) body(row);
    if (!few_) state_.barrier.wait();
  }

  // ---- Rows ---------------------------------------------------------------------------------------------------------

  void pack_row(const Matrix& w, int num_rows, const float* x, int n, int slot) {
    uint8_t* to = activations_ + row_bytes_ * slot;
#if ULLAGE_DOT_PRODUCTS
    if (use_byte_products(w, num_rows)) return pack_row_bytes(x, n, w.k, to);
#endif
    pack_row_bf16(x, n, to);
    memset(to + kRowBytesPerK * n, 0, kRowBytesPerK * (w.k - n));
  }

  // x += norm(branch); leaves the norm of x in normed_.
  void add_and_norm(const Operator& op, int row) {
    const int hidden = shape_.hidden;
    float* x = x_ + static_cast<size_t>(row) * hidden;
    if (op.adds_branch) {
      const float* branch = w_.branch + static_cast<size_t>(row) * (hidden + kTile);
      if (op.post_norm) {
        rms_norm(branch, op.post_norm, hidden, shape_.norm_eps, branch_);
        branch = branch_;
      }
      for (int i = 0; i < hidden; i += kLanes) store(x + i, load(x + i) + load(branch + i));
    }
    rms_norm(x, op.norm, hidden, shape_.norm_eps, normed_);
  }

  void prepare_norm(const Operator& op) {
    prepare(b_.num_rows, [&](int row) {
      add_and_norm(op, row);
      pack_row(op.matrix, b_.num_rows, normed_, shape_.hidden, row);
    });
  }

  void prepare_attention(const Operator& op) {
    prepare(b_.num_rows, [&](int row) {
      float* attention = w_.attention + static_cast<size_t>(row) * shape_.q_size();
      if (num_parts_ > 1) {
        attention = reinterpret_cast<float*>(panels_);  // free until the product
        merge_parts(d_, row, num_parts_, attention);
      }
      pack_row(op.matrix, b_.num_rows, attention, shape_.q_size(), row);
    });
  }

  void prepare_gated(const Operator& op) {
    prepare(b_.num_rows, [&](int row) {
      const float* gated_row = w_.gated + static_cast<size_t>(row) * shape_.intermediate;
      pack_row(op.matrix, b_.num_rows, gated_row, shape_.intermediate, row);
    });
  }

  // Only the rows whose logits are asked for, packed side by side.
  void prepare_head(const Operator& op) {
    prepare(b_.num_logit_rows, [&](int i) {
      add_and_norm(op, b_.logit_rows[i]);
      pack_row(op.matrix, b_.num_logit_rows, normed_, shape_.hidden, i);
    });
  }

  void embed(const Operator& op) {
    prepare(b_.num_rows, [&](int row) {
      float* x = x_ + static_cast<size_t>(row) * shape_.hidden;
      for (int k = 0; k < shape_.hidden; ++k)
        x[k] = weight_at(op.matrix, b_.token_ids[row], k) * shape_.embedding_scale;
    });
    // The cosines and sines are shared; the barrier after the first product comes before anybody reads them.
    const Share rows = share_of(b_.num_rows, d_.num_threads, thread_);
    for (int row = rows.begin; row < rows.end; ++row) rope_tables(row);
  }

  void rope_tables(int row) {
    const int half = shape_.head_size / 2;
    for (int t = 0; t < d_.num_ropes; ++t) {
      float* cosines = w_.rope + (static_cast<size_t>(t) * b_.num_rows + row) * 2 * half;
      for (int i = 0; i < half; ++i) {
        const double angle = b_.positions[row] * d_.ropes[t].inv_freq[i];
        cosines[i] = static_cast<float>(cos(angle) * d_.ropes[t].attention_factor);
        cosines[half + i] = static_cast<float>(sin(angle) * d_.ropes[t].attention_factor);
      }
    }
  }

  // ---- Products -----------------------------------------------------------------------------------------------------

  void product(const Operator& op, int num_rows, float* out, size_t ld_out) {
    const Share tiles = share_of(op.matrix.num_tiles(), d_.num_threads, thread_);
    multiply_tiles(op.matrix, activations_, row_bytes_, num_rows, tiles.begin, tiles.end, panels_,
                   [&](int row, int tile, const float* values) {
                     memcpy(out + row * ld_out + static_cast<size_t>(tile) * kTile, values, sizeof(float) * kTile);
                   });
    state_.barrier.wait();
  }

  // Tiles of 16 gate and the 16 up outputs they are multiplied with.
  void gated_product(const Operator& op) {
    const Share tiles = share_of(op.matrix.num_tiles(), d_.num_threads, thread_);
    multiply_tiles(op.matrix, activations_, row_bytes_, b_.num_rows, tiles.begin, tiles.end, panels_,
                   [&](int row, int tile, const float* values) {
                     float* to = w_.gated + static_cast<size_t>(row) * shape_.intermediate +
                                 static_cast<size_t>(tile) * kPanel;
                     for (int j = 0; j < kPanel; j += kLanes)
                       store(to + j, gated(shape_.activation, load(values + j), load(values + kPanel + j)));
                   });
    state_.barrier.wait();
  }

  // ---- Attention ----------------------------------------------------------------------------------------------------

  int sequence_of(int row) const {
    int s = 0;
    while (b_.seq_starts[s + 1] <= row) ++s;
    return s;
  }

  // Bias, per-head norm and rope of q and k; k and v go to the cache.
  void append(const Operator& op) {
    if (thread_ == 0) state_.next_item.store(d_.num_threads, std::memory_order_relaxed);
    const Share rows = share_of(b_.num_rows, d_.num_threads, thread_);
    for (int row = rows.begin; row < rows.end; ++row) append_row(op, row);
    if (num_parts_ > 1 && thread_ < items_of(0)) Attention(d_, op, attention_scratch_).prefetch(item_of(op, 0, thread_));
    state_.barrier.wait();
  }

  void append_row(const Operator& op, int row) {
    const int head = shape_.head_size, half = head / 2, num_outputs = shape_.q_size() + 2 * shape_.kv_size();
    float* qkv = w_.qkv + static_cast<size_t>(row) * ((num_outputs + kTile - 1) / kTile * kTile);
    if (op.bias)
      for (int i = 0; i < num_outputs; ++i) qkv[i] += op.bias[i];
    const float* cosines = w_.rope + (static_cast<size_t>(op.rope) * b_.num_rows + row) * 2 * half;
    for (int h = 0; h < shape_.num_heads + shape_.num_kv_heads; ++h) {
      const float* norm = h < shape_.num_heads ? op.q_norm : op.k_norm;
      float* x = qkv + static_cast<size_t>(h) * head;
      if (norm) rms_norm(x, norm, head, shape_.norm_eps, x);
      rotate(x, cosines, half);
    }
    const float* keys = qkv + shape_.q_size();
    const float* values = keys + shape_.kv_size();
    const int sequence = sequence_of(row), position = b_.positions[row], token = position % shape_.block_size;
    const int block = b_.table(op.table, sequence)[position / shape_.block_size];
    const int first = b_.seq_starts[sequence], last = b_.seq_starts[sequence + 1] - 1;
    const bool begins_unfilled_block = row == last && b_.positions[first] <= position - token;
    uint8_t* pool = d_.kv_pool + shape_.layer_pool_bytes() * op.pool_layer;
    for (int h = 0; h < shape_.num_kv_heads; ++h) {
      const CacheBlock cache(shape_, pool, block, h);
      append_token(shape_, cache, token, keys + h * head, values + h * head);
      if (begins_unfilled_block) clear_tokens(shape_, cache, token + 1);
    }
  }

  // The context is shared out when a few rows of one sequence have a long one, so that every thread gets as many items;
  // there are items enough otherwise.
  int parts() const {
    if (!few_ || d_.num_threads == 1 || b_.num_sequences != 1) return 1;
    const int longest = b_.positions[b_.num_rows - 1] + 1;
    if (longest < kLeastTokensShared) return 1;
    const int spans = (longest + kSpanTokens - 1) / kSpanTokens;
    const int num_parts = (spans + d_.num_threads - 1) / d_.num_threads * d_.num_threads;
    return num_parts < kMaxParts ? num_parts : kMaxParts;
  }

  int items_of(int sequence) const {
    const int num_rows = (b_.seq_starts[sequence + 1] - b_.seq_starts[sequence]) * shape_.group();
    return (num_rows + kItemRows - 1) / kItemRows * shape_.num_kv_heads * num_parts_;
  }

  void attend(const Operator& op) {
    Attention attention(d_, op, attention_scratch_);
    int sequence = 0, items_before = 0;
    for (int i = thread_;; i = state_.next_item.fetch_add(1)) {
      while (sequence < b_.num_sequences && i >= items_before + items_of(sequence))
        items_before += items_of(sequence++);
      if (sequence == b_.num_sequences) break;
      attention.run(item_of(op, sequence, i - items_before));
    }
    state_.barrier.wait();
  }

  Item item_of(const Operator& op, int sequence, int index) const {
    const int kv_heads = shape_.num_kv_heads, batch_row = b_.seq_starts[sequence];
    const int first_row = index / num_parts_ / kv_heads * kItemRows;
    const int left = (b_.seq_starts[sequence + 1] - batch_row) * shape_.group() - first_row;
    return {b_.table(op.table, sequence),
            index / num_parts_ % kv_heads,
            first_row,
            left < kItemRows ? left : kItemRows,
            batch_row,
            b_.positions[batch_row],
            index % num_parts_,
            num_parts_};
  }

  const Decoder& d_;
  const Batch& b_;
  const Shape& shape_;
  const Workspace& w_;
  StepState& state_;
  const int thread_;
  const bool few_;
  float* const x_;
  const size_t row_bytes_;
  uint8_t* const activations_;
  uint8_t* const attention_scratch_;
  uint8_t* const panels_;
  float* const normed_;
  float* const branch_;
  const int num_parts_;
};

static void run_step(const Decoder& d, const Batch& b, StepState& state, int thread) { Step(d, b, state, thread).run(); }
