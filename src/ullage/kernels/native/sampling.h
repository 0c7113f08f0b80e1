// Chooses tokens from logits, as engine/sampler.py specifies. Included by isa_*.cpp after step.inl, inside a namespace
// of its own per instruction set.
//
// Nothing is sorted, and no list of candidates is kept. What top-k, min-p and top-p leave is a prefix of a ranking: a
// smallest value, and a last id of those equal to it. Passes over the row find it and skip all blocks whose largest
// logit is too small, which are nearly all of them.

#include "ranking.h"

// ---- Draws ----------------------------------------------------------------------------------------------------------

// Weights proportional to the tokens' probabilities, the best has 1; those that were left out have 0.
struct WeightRow {
  const LogitRow& row;
  double temperature;
  Cut logits{};             // top-k
  Cut weights{0.0, INT32_MAX};  // min-p and top-p

  double inverse_temperature() const { return fmin(1.0 / temperature, 1.7976931348623157e308); }

  // No token with a smaller logit has a weight above 0. A little less, because of rounding: to the weight, whose error
  // is no more when its logarithm is 0, and of the sum.
  double smallest_logit() const {
    const double span = temperature * (log(weights.value) - 1e-9);  // minus infinity for all weights
    const double floor = row.best + span - 1e-9 * (fabs(row.best) + fabs(span));
    return fmax(logits.value, floor);
  }
};

// weights[64] of block b. One function, so that a weight is the same to the last bit each time it is worked out.
static __attribute__((noinline)) void block_weights(const WeightRow& w, double inverse_temperature, int b, double* weights) {
  const float* x = w.row.block(b);
  const DVec zero = {};
  for (int i = 0; i < kSampleBlock; i += kDoubleLanes) {
    const DVec logits = load_doubles(x + i);
    DVec weight = exponential((logits - w.row.best) * inverse_temperature);
    weight = logits >= w.logits.value ? weight : zero;
    weight = weight >= w.weights.value ? weight : zero;
    memcpy(weights + i, &weight, sizeof weight);
  }
  const int last_id = b * kSampleBlock + kSampleBlock - 1;
  if (last_id <= w.logits.last_tie && last_id <= w.weights.last_tie) return;
  for (int i = 0; i < kSampleBlock; ++i) {
    const int id = b * kSampleBlock + i;
    if ((x[i] == w.logits.value && id > w.logits.last_tie) ||
        (weights[i] == w.weights.value && id > w.weights.last_tie))
      weights[i] = 0;
  }
}

static double sum_weights(const WeightRow& w, double* block_sums) {
  const double smallest = w.smallest_logit(), inverse_temperature = w.inverse_temperature();
  double total = 0, weights[kSampleBlock];
  for (int b = 0; b < w.row.num_blocks(); ++b) {
    block_sums[b] = 0;
    if (w.row.block_best[b] < smallest) continue;
    block_weights(w, inverse_temperature, b, weights);
    DVec sums = {};
    for (int i = 0; i < kSampleBlock; i += kDoubleLanes) {
      DVec part;
      memcpy(&part, weights + i, sizeof part);
      sums += part;
    }
    block_sums[b] = sum(sums);
    total += block_sums[b];
  }
  return total;
}

ULLAGE_INLINE bool any_between(const double* weights, double low, double high) {
  LVec found = {};
  for (int i = 0; i < kSampleBlock; i += kDoubleLanes) {
    DVec weight;
    memcpy(&weight, weights + i, sizeof weight);
    found |= (LVec)((weight >= low) & (weight <= high));
  }
  uint64_t any = 0;
  for (int i = 0; i < kDoubleLanes; ++i) any |= found[i];
  return any != 0;
}

// Top-p: the smallest set of largest weights that holds `share` of the total. Source: arXiv:1904.09751.
static Cut nucleus(WeightRow likely, double share, double* block_sums, Bin* bins) {
  const double goal = share * sum_weights(likely, block_sums), min_p = likely.weights.value;
  for (const double floor : {1e-2, 1e-4, 1e-300}) {  // mostly a few likely tokens are enough
    likely.weights.value = fmax(floor, min_p);
    if (sum_weights(likely, block_sums) >= goal) break;
  }
  const auto each = [&](double low, double high, auto visit) {
    WeightRow w = likely;
    w.weights.value = low;
    const double smallest = w.smallest_logit(), inverse_temperature = w.inverse_temperature();
    double weights[kSampleBlock];
    for (int b = 0; b < w.row.num_blocks(); ++b) {
      if (w.row.block_best[b] < smallest) continue;
      block_weights(w, inverse_temperature, b, weights);
      if (!any_between(weights, low, high)) continue;
      for (int i = 0; i < kSampleBlock; ++i)
        if (weights[i] >= low && weights[i] <= high) visit(b * kSampleBlock + i, weights[i], weights[i]);
    }
  };
  return shortest_prefix(each, goal, likely.weights.value, 1.0, bins);
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
  const double target = number * sum_weights(w, block_sums);
  double before = 0;  // sum of the blocks before `block`
  int block = w.row.best_id / kSampleBlock;  // has the best token, so its sum isn't 0
  double sum = 0;
  for (int b = 0; b < w.row.num_blocks(); ++b) {
    if (!(block_sums[b] > 0)) continue;
    block = b, before = sum;
    sum += block_sums[b];
    if (sum > target) break;
  }
  double weights[kSampleBlock];
  block_weights(w, w.inverse_temperature(), block, weights);
  int chosen = 0;
  sum = before;
  for (int i = 0; i < kSampleBlock; ++i) {
    if (!(weights[i] > 0)) continue;
    chosen = i;
    sum += weights[i];
    if (sum > target) break;
  }
  return block * kSampleBlock + chosen;
}

// ---- One row --------------------------------------------------------------------------------------------------------

struct SamplingScratch {
  float* adjusted;         // [vocab]
  int32_t* counts;         // [vocab]
  float* block_best;       // [blocks], of the logits as they came
  float* adjusted_best;    // [blocks]
  double* block_sums;      // [blocks]
  Bin* bins;               // [kSampleBins]
};

ULLAGE_INLINE SamplingScratch sampling_scratch(const SamplingBatch& batch, int thread) {
  const size_t blocks = sampling_blocks(batch.vocab);
  float* at = reinterpret_cast<float*>(batch.scratch + sampling_scratch_bytes(batch.vocab) * thread);
  float* counts = at + blocks * kSampleBlock;
  float* best = counts + blocks * kSampleBlock;
  double* sums = reinterpret_cast<double*>(best + 2 * blocks);
  return {at, reinterpret_cast<int32_t*>(counts), best, best + blocks, sums, reinterpret_cast<Bin*>(sums + blocks)};
}

static float repetition_penalised(float logit, double penalty) {
  const double largest = 3.4028234663852886e38, value = logit > 0 ? logit / penalty : logit * penalty;
  return static_cast<float>(value > largest ? largest : value < -largest ? -largest : value);
}

ULLAGE_INLINE bool changes_logits(const SamplingRow& s) {
  return s.bias_start < s.end || s.repetition_penalty != 1 || s.frequency_penalty != 0 || s.presence_penalty != 0;
}

// Bias, penalties and bans. `counts` needs no clearing: only the entries of the history are used, and set first.
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
}

// Temperature, top-k, min-p, top-p, one draw.
static int draw_token(const LogitRow& row, const SamplingRow& s, const SamplingScratch& scratch) {
  WeightRow w = {row, s.temperature};
  if (s.top_k > 0 && s.top_k < row.size) w.logits = largest_logits(row, s.top_k, scratch.bins);
  w.weights.value = s.min_p;
  if (s.top_p < 1) w.weights = nucleus(w, s.top_p, scratch.block_sums, scratch.bins);
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
