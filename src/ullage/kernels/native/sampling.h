// Chooses tokens from logits, as engine/sampler.py specifies. Included by isa_*.cpp after step.inl, inside a namespace
// of its own per instruction set.
//
// Nothing is sorted, and no list of candidates is kept. What top-k, min-p and top-p leave is a prefix of a ranking: a
// smallest value, and a last id of those equal to it. Passes over the row find it and skip all blocks whose largest
// logit is too small, which are nearly all of them.

#include "ranking.h"

// ---- Draws ----------------------------------------------------------------------------------------------------------

// Weights proportional to the tokens' probabilities, the best has 1, and the cut that says which of them are left.
struct WeightRow {
  const LogitRow& row;
  double* weights;  // [blocks][64]; blocks without a logit as large as `smallest_logit` aren't set
  double temperature;
  Cut logits{};  // top-k
  Cut kept{};    // min-p and top-p

  // No token with a smaller logit is left. A little less, because of rounding: of the weight, whose error is no less
  // when its logarithm is 0, and of the sum.
  double smallest_logit() const {
    const double span = temperature * (log(kept.value) - 1e-9);  // minus infinity for all weights
    const double floor = row.best + span - 1e-9 * (fabs(row.best) + fabs(span));
    return fmax(logits.value, floor);
  }
};

// Temperature and top-k: those that top-k leaves out get the weight 0.
static void set_weights(WeightRow& w) {
  const double smallest = w.smallest_logit(), inverse_temperature = fmin(1 / w.temperature, 1.7976931348623157e308);
  const DVec zero = {};
  for (int b = 0; b < w.row.num_blocks(); ++b) {
    if (w.row.block_best[b] < smallest) continue;
    const float* x = w.row.block(b);
    double* weights = w.weights + b * kSampleBlock;
    for (int i = 0; i < kSampleBlock; i += kDoubleLanes) {
      const DVec logits = load_doubles(x + i);
      const DVec weight = exponential((logits - w.row.best) * inverse_temperature);
      store(weights + i, logits >= w.logits.value ? weight : zero);
    }
    const int first = b * kSampleBlock, last = first + kSampleBlock - 1;
    for (int i = 0; last > w.logits.last_tie && i < kSampleBlock; ++i)
      if (x[i] == w.logits.value && first + i > w.logits.last_tie) weights[i] = 0;
  }
}

ULLAGE_INLINE bool is_kept(const WeightRow& w, int id) {
  const double weight = w.weights[id];
  return weight > w.kept.value || (weight == w.kept.value && weight > 0 && id <= w.kept.last_tie);
}

static double sum_kept(const WeightRow& w, double* block_sums) {
  const double smallest = w.smallest_logit();
  const DVec zero = {};
  double total = 0;
  for (int b = 0; b < w.row.num_blocks(); ++b) {
    block_sums[b] = 0;
    if (w.row.block_best[b] < smallest) continue;
    const int first = b * kSampleBlock, last = first + kSampleBlock - 1;
    if (last <= w.kept.last_tie) {
      DVec sums = {};
      for (int i = first; i <= last; i += kDoubleLanes) {
        const DVec weight = load_doubles(w.weights + i);
        sums += weight >= w.kept.value ? weight : zero;
      }
      block_sums[b] = sum(sums);
    } else {
      for (int i = first; i <= last; ++i) block_sums[b] += is_kept(w, i) ? w.weights[i] : 0.0;
    }
    total += block_sums[b];
  }
  return total;
}

// Which of 64 weights lie between: bit i for weight i. To go through the bits costs less than 64 branches.
ULLAGE_INLINE uint64_t bits_between(const double* weights, double low, double high) {
  LVec lane_bits, found = {};
  for (int i = 0; i < kDoubleLanes; ++i) lane_bits[i] = uint64_t{1} << i;
  for (int i = 0; i < kSampleBlock; i += kDoubleLanes) {
    const DVec weight = load_doubles(weights + i);
    found |= (LVec)((weight >= low) & (weight <= high)) & (lane_bits << i);
  }
  uint64_t bits = 0;
  for (int i = 0; i < kDoubleLanes; ++i) bits |= found[i];
  return bits;
}

// Top-p: the smallest set of largest weights that holds `share` of the total. Source: arXiv:1904.09751.
static Cut nucleus(WeightRow likely, double share, double* block_sums, Bin* bins) {
  const double goal = share * sum_kept(likely, block_sums), min_p = likely.kept.value;
  for (const double floor : {1e-2, 1e-4, 1e-300}) {  // mostly a few likely tokens are enough
    likely.kept.value = fmax(floor, min_p);
    if (sum_kept(likely, block_sums) >= goal) break;
  }
  const auto each = [&](double low, double high, auto visit) {
    WeightRow w = likely;
    w.kept.value = low;
    const double smallest = w.smallest_logit();
    for (int b = 0; b < w.row.num_blocks(); ++b) {
      if (w.row.block_best[b] < smallest) continue;
      const double* weights = w.weights + b * kSampleBlock;
      for (uint64_t bits = bits_between(weights, low, high); bits; bits &= bits - 1) {
        const int i = __builtin_ctzll(bits);
        visit(b * kSampleBlock + i, weights[i], weights[i]);
      }
    }
  };
  return shortest_prefix(each, goal, likely.kept.value, 1.0, bins);
}

// SplitMix64's output at `step` from `state`. Source: Steele, Lea, Flood, OOPSLA 2014.
ULLAGE_INLINE uint64_t splitmix64(uint64_t state, uint64_t step) {
  uint64_t z = state + (step + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// The token where `number` in [0, 1) falls on the sums of the weights; never one of weight 0.
static int draw(const WeightRow& w, double number, double* block_sums) {
  const double target = number * sum_kept(w, block_sums);
  double before = 0, sum = 0;
  int block = 0, chosen = 0;
  for (int b = 0; b < w.row.num_blocks() && sum <= target; ++b) {
    if (!(block_sums[b] > 0)) continue;
    block = b, before = sum;
    sum += block_sums[b];
  }
  sum = before;
  for (int id = block * kSampleBlock; id < (block + 1) * kSampleBlock; ++id) {
    if (!is_kept(w, id)) continue;
    chosen = id;
    sum += w.weights[id];
    if (sum > target) break;
  }
  return chosen;
}

// ---- One row --------------------------------------------------------------------------------------------------------

struct SamplingScratch {
  float* adjusted;         // [vocab]
  double* weights;         // [vocab]
  int32_t* counts;         // [vocab], in the memory of the weights: penalties come before them
  float* block_best;       // [blocks], of the logits as they came
  float* adjusted_best;    // [blocks]
  double* block_sums;      // [blocks]
  Bin* bins;               // [kSampleBins]
};

ULLAGE_INLINE SamplingScratch sampling_scratch(const SamplingBatch& batch, int thread) {
  const size_t blocks = sampling_blocks(batch.vocab);
  uint8_t* at = batch.scratch + sampling_scratch_bytes(batch.vocab) * thread;
  const auto take = [&](size_t num_bytes) {
    uint8_t* piece = at;
    at += num_bytes;
    return piece;
  };
  SamplingScratch s;
  s.adjusted = reinterpret_cast<float*>(take(blocks * kSampleBlock * 4));
  s.weights = reinterpret_cast<double*>(take(blocks * kSampleBlock * 8));
  s.counts = reinterpret_cast<int32_t*>(s.weights);
  s.block_best = reinterpret_cast<float*>(take(blocks * 4));
  s.adjusted_best = reinterpret_cast<float*>(take(blocks * 4));
  s.block_sums = reinterpret_cast<double*>(take(blocks * 8));
  s.bins = reinterpret_cast<Bin*>(take(sizeof(Bin) * kSampleBins));
  return s;
}

static float repetition_penalised(float logit, double penalty) {
  const double largest = 3.4028234663852886e38, value = logit > 0 ? logit / penalty : logit * penalty;
  return static_cast<float>(value > largest ? largest : value < -largest ? -largest : value);
}

ULLAGE_INLINE bool changes_logits(const SamplingRow& s) {
  return s.bias_start < s.end || s.mask_index >= 0 || s.repetition_penalty != 1 || s.frequency_penalty != 0 || s.presence_penalty != 0;
}

// What a constraint doesn't allow is taken out, 32 tokens at a time where it can be.
static void apply_mask(const uint32_t* mask, int vocab, float* logits) {
  for (int first = 0; first < vocab; first += 32) {
    const uint32_t allowed = mask[first / 32];
    if (allowed == UINT32_MAX) continue;
    const int count = vocab - first < 32 ? vocab - first : 32;
    for (int i = 0; i < count; ++i)
      if (!(allowed >> i & 1)) logits[first + i] = -INFINITY;
  }
}

// Bias, penalties, bans and the mask. `counts` needs no clearing: only the entries of the history are used, and set first.
static void adjust_logits(const SamplingBatch& batch, const SamplingRow& s, const SamplingScratch& scratch) {
  float* logits = scratch.adjusted;
  int32_t* counts = scratch.counts;
  const int32_t* ids = batch.token_ids;
  for (int i = s.bias_start; i < s.banned_start; ++i)
    logits[ids[i]] += batch.bias_values[s.bias_values_start + i - s.bias_start];
  if (s.repetition_penalty != 1) {
    for (int i = s.history_start; i < s.bias_start; ++i) counts[ids[i]] = 0;
    for (int i = s.history_start; i < s.bias_start; ++i)
      if (counts[ids[i]]++ == 0) logits[ids[i]] = repetition_penalised(logits[ids[i]], s.repetition_penalty);
  }
  if (s.frequency_penalty != 0 || s.presence_penalty != 0) {
    for (int i = s.output_start; i < s.bias_start; ++i) counts[ids[i]] = 0;
    for (int i = s.output_start; i < s.bias_start; ++i) ++counts[ids[i]];
    for (int i = s.output_start; i < s.bias_start; ++i) {
      if (counts[ids[i]] == 0) continue;
      volatile double frequency = s.frequency_penalty * counts[ids[i]];  // rounded by itself, as the specification does
      logits[ids[i]] = static_cast<float>(logits[ids[i]] - (frequency + s.presence_penalty));
      counts[ids[i]] = 0;
    }
  }
  for (int i = s.banned_start; i < s.end; ++i) logits[ids[i]] = -INFINITY;
  if (s.mask_index >= 0) apply_mask(batch.masks + mask_words(batch.vocab) * s.mask_index, batch.vocab, logits);
}

// Temperature, top-k, min-p, top-p, one draw.
static int draw_token(const LogitRow& row, const SamplingRow& s, const SamplingScratch& scratch) {
  WeightRow w = {row, scratch.weights, s.temperature};
  if (s.top_k > 0 && s.top_k < row.size) w.logits = largest_logits(row, s.top_k, scratch.bins);
  w.kept.value = s.min_p;
  set_weights(w);
  if (s.top_p < 1) w.kept = nucleus(w, s.top_p, scratch.block_sums, scratch.bins);
  const uint64_t bits = splitmix64(splitmix64(s.seed, 0), static_cast<uint64_t>(s.position));
  return draw(w, static_cast<double>(bits >> 11) * 0x1p-53, scratch.block_sums);
}

// Log-probabilities of the chosen token and of the best, in float32 but for the sum, which is long.
static void add_logprobs(const LogitRow& row, int count, SampledRow& out) {
  DVec sums = {};
  for (int b = 0; b < row.num_blocks(); ++b) {
    const float* x = row.block(b);
    float terms[kSampleBlock];
    for (int i = 0; i < kSampleBlock; i += kLanes) store(terms + i, exponential(load(x + i) - splat(row.best)));
    for (int i = 0; i < kSampleBlock; i += kDoubleLanes) sums += load_doubles(terms + i);
  }
  const float log_total = static_cast<float>(log(sum(sums)));
  const auto logprob = [&](float logit) { return (logit - row.best) - log_total; };
  out.logprob = logprob(row.logits[out.token_id]);
  count = count < row.size ? count : row.size;
  for (int b = 0; b < row.num_blocks() && count > 0; ++b) {
    const bool full = out.num_top == count;
    if (full && logprob(row.block_best[b]) <= out.top_logprobs[count - 1]) continue;
    const float* x = row.block(b);
    for (int i = 0; i < kSampleBlock && b * kSampleBlock + i < row.size; ++i) {
      const float value = logprob(x[i]);
      if (out.num_top == count && value <= out.top_logprobs[count - 1]) continue;
      int rank = out.num_top < count ? out.num_top++ : count - 1;
      for (; rank > 0 && out.top_logprobs[rank - 1] < value; --rank) {
        out.top_logprobs[rank] = out.top_logprobs[rank - 1];
        out.top_ids[rank] = out.top_ids[rank - 1];
      }
      out.top_logprobs[rank] = value;
      out.top_ids[rank] = b * kSampleBlock + i;
    }
  }
}

static void sample_row(const SamplingBatch& batch, int index, const SamplingScratch& scratch) {
  const SamplingRow& s = batch.rows[index];
  SampledRow& out = batch.sampled[index];
  LogitRow raw, adjusted;
  read_row(batch.logits + batch.row_stride * index, batch.vocab, scratch.block_best, raw);
  const LogitRow* row = &raw;
  if (__builtin_isfinite(raw.best) && changes_logits(s)) {
    memcpy(scratch.adjusted, raw.logits, sizeof(float) * batch.vocab);
    adjust_logits(batch, s, scratch);
    read_row(scratch.adjusted, batch.vocab, scratch.adjusted_best, adjusted);
    row = &adjusted;
  }
  out = {-1, row->best, 0.0f, 0, {}, {}};
  if (!__builtin_isfinite(row->best)) return;
  out.token_id = s.temperature == 0 ? row->best_id : draw_token(*row, s, scratch);
  if (s.num_logprobs >= 0) add_logprobs(raw, s.num_logprobs, out);
}

static void sample_rows(const SamplingBatch& batch, std::atomic<int>& next_row, int thread) {
  const SamplingScratch scratch = sampling_scratch(batch, thread);
  for (int row = next_row.fetch_add(1); row < batch.num_rows; row = next_row.fetch_add(1))
    sample_row(batch, row, scratch);
}
