// The part of the Python door that sampling comes through. Everything Python hands over is checked here.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cmath>
#include <stdexcept>

#include "sampling_batch.h"

namespace ullage {

namespace nb = nanobind;

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Masks = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Records = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;  // bytes of a structured array
using WritableRecords = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

inline void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

inline void check_sampling_row(const SamplingRow& s, size_t num_token_ids, size_t num_bias_values,
                               size_t num_masks) {
  require(s.temperature >= 0 && std::isfinite(s.temperature) && s.top_p > 0 && s.top_p <= 1 && s.min_p >= 0 &&
              s.min_p <= 1 && s.top_k >= 0 && s.num_logprobs >= -1 && s.num_logprobs <= kMaxLogprobs,
          "a sampling parameter is out of range");
  require(s.repetition_penalty > 0 && std::isfinite(s.repetition_penalty) && std::isfinite(s.frequency_penalty) &&
              std::isfinite(s.presence_penalty),
          "a penalty is out of range");
  require(0 <= s.history_start && s.history_start <= s.output_start && s.output_start <= s.bias_start &&
              s.bias_start <= s.banned_start && s.banned_start <= s.end &&
              static_cast<size_t>(s.end) <= num_token_ids,
          "token ids of a sampled row lie outside their array");
  const size_t num_biases = static_cast<size_t>(s.banned_start - s.bias_start);
  require(s.bias_values_start >= 0 && static_cast<size_t>(s.bias_values_start) + num_biases <= num_bias_values,
          "biases of a sampled row lie outside their array");
  require(s.mask_index >= -1 && (s.mask_index < 0 || static_cast<size_t>(s.mask_index) < num_masks),
          "the mask of a sampled row lies outside its array");
}

// Without logits and scratch.
template <typename Ints>
SamplingBatch sampling_batch(const Records& rows, const Ints& token_ids, const Floats& bias_values,
                             const Masks& masks, const WritableRecords& sampled, int vocab) {
  require(rows.shape(1) == sizeof(SamplingRow) && sampled.shape(1) == sizeof(SampledRow),
          "sampling rows of another size");
  require(masks.shape(0) == 0 || masks.shape(1) == mask_words(vocab), "a mask of another size");
  require(rows.shape(0) == sampled.shape(0), "not as many sampled rows as rows to sample");
  require(reinterpret_cast<uintptr_t>(rows.data()) % alignof(SamplingRow) == 0 &&
              reinterpret_cast<uintptr_t>(sampled.data()) % alignof(SampledRow) == 0,
          "sampling rows aren't aligned");
  SamplingBatch s = {};
  s.num_rows = static_cast<int>(rows.shape(0));
  s.vocab = vocab;
  s.rows = reinterpret_cast<const SamplingRow*>(rows.data());
  s.token_ids = token_ids.data();
  s.bias_values = bias_values.data();
  s.masks = masks.data();
  s.sampled = reinterpret_cast<SampledRow*>(sampled.data());
  for (int i = 0; i < s.num_rows; ++i)
    check_sampling_row(s.rows[i], token_ids.size(), bias_values.size(), masks.shape(0));
  for (size_t i = 0; i < token_ids.size(); ++i)
    require(token_ids.data()[i] >= 0 && token_ids.data()[i] < vocab, "token id out of range");
  return s;
}

}  // namespace ullage
