// What sampling reads and writes: plain structs that Python fills and reads. In numpy they are in kernels/sampling.py.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ullage {

constexpr int kMaxLogprobs = 20;
constexpr int kSampleBlock = 64;  // logits whose largest is kept, so that passes skip what is too small
constexpr int kSampleBins = 1024;

// How the token of one row of logits is chosen. Its token ids lie in SamplingBatch::token_ids, one list after another:
//
//   history_start    output_start     bias_start      banned_start    end
//   [ prompt ....... | output ....... | to be biased | banned ...... ]
struct SamplingRow {
  double temperature;  // 0 is greedy
  double top_p, min_p;
  double repetition_penalty, frequency_penalty, presence_penalty;
  uint64_t seed;
  int64_t position;
  int32_t top_k;         // 0: all
  int32_t num_logprobs;  // -1: none
  int32_t history_start, output_start, bias_start, banned_start, end;
  int32_t bias_values_start;  // into SamplingBatch::bias_values
  int32_t mask_index;         // into SamplingBatch::masks; -1: all tokens are allowed
  int32_t padding;
};
static_assert(sizeof(SamplingRow) == 104);

struct SampledRow {
  int32_t token_id;  // -1: none can be chosen
  float best;        // the largest logit after bias, penalties and bans
  float logprob;     // 0 without num_logprobs
  int32_t num_top;
  int32_t top_ids[kMaxLogprobs];
  float top_logprobs[kMaxLogprobs];
};
static_assert(sizeof(SampledRow) == 176);

struct SamplingBatch {
  int num_rows, vocab;
  size_t row_stride;           // of logits, in numbers
  const float* logits;         // [rows][row_stride]
  const SamplingRow* rows;     // [rows]
  const int32_t* token_ids;
  const float* bias_values;
  const uint32_t* masks;       // [masks][mask_words(vocab)], a bit for each token that is allowed
  SampledRow* sampled;         // [rows]
  uint8_t* scratch;            // [threads][sampling_scratch_bytes]
};

constexpr size_t mask_words(int vocab) { return (static_cast<size_t>(vocab) + 31) / 32; }

// The numbers of a scratch area, rounded up so that each of its arrays begins on a 64-byte boundary.
constexpr size_t sampling_blocks(int vocab) { return (static_cast<size_t>(vocab) + 1023) / 1024 * 16; }

// Logits after bias and penalties, weights, three numbers for each block, the bins of a selection.
constexpr size_t sampling_scratch_bytes(int vocab) {
  return sampling_blocks(vocab) * (kSampleBlock * (4 + 8) + 4 + 4 + 8) + kSampleBins * (8 + 8 + 4 + 4);
}

// Samples rows until none is left. All threads call it with the same arguments; `next_row` hands out the rows.
using SampleFunction = void (*)(const SamplingBatch&, std::atomic<int>& next_row, int thread);

}  // namespace ullage
