// The decoder as the kernels see it: a list of operators over plain structs of sizes and pointers. Python owns all
// memory; nothing is allocated here while a step runs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "barrier.h"
#include "formats.h"
#include "sampling_batch.h"

namespace ullage {

constexpr int kMaxAttentionRows = 16;  // query rows that one item of attention works on at most
constexpr int kSpanTokens = 256;       // tokens of the context whose scores are held at once
constexpr int kReleasedBlock = -1;     // in a block table: given back, behind the window of every row to come
constexpr int kFewRows = 4;            // up to so many rows every thread prepares all of them for itself
constexpr int kSpareRows = 16;
constexpr int kLeastTokensShared = 128;  // of a context that is split
constexpr int kMaxParts = 16;          // that the context of a few rows is split into at most

enum class Activation : int32_t { silu = 0, gelu_tanh = 1 };
enum class KVType : int32_t { bf16 = 0, int8 = 1 };

// What a step is made of; kernels/program.py lists the operators of a model in order.
enum class Kind : int32_t { embed, qkv, append, attend, output, gate_up, down, head };
constexpr int kNumKinds = 8;

struct Operator {
  Kind kind = Kind::embed;
  Matrix matrix;
  const float* post_norm = nullptr;  // of the branch that is added to the residual stream first, or null
  bool adds_branch = false;
  const float* norm = nullptr;       // of the residual stream, before the matrix
  const float* bias = nullptr;       // of q, k and v, or null
  const float* q_norm = nullptr;     // [head_size] or null
  const float* k_norm = nullptr;     // [head_size] or null
  int window = 0;                    // sliding window in tokens, 0 = none
  int rope = 0;                      // index into Decoder::ropes
  int table = 0;                     // which of a sequence's block tables: that of the layer's group
  int pool_layer = 0;                // which layer of the group, and so of the pool
};

struct Rope {
  const double* inv_freq = nullptr;  // [head_size / 2]
  double attention_factor = 1.0;
};

constexpr int padded(int k) { return (k + kGroup - 1) / kGroup * kGroup; }

struct Shape {
  int hidden, intermediate, num_heads, num_kv_heads, head_size, num_layers, vocab;
  int block_size, num_blocks, num_tables;
  float norm_eps, score_scale, embedding_scale;
  Activation activation;
  KVType kv_type;

  int group() const { return num_heads / num_kv_heads; }
  int q_size() const { return num_heads * head_size; }
  int kv_size() const { return num_kv_heads * head_size; }
  int max_k() const {
    const int a = padded(hidden), b = padded(q_size()), c = padded(intermediate);
    return a > b ? (a > c ? a : c) : (b > c ? b : c);
  }
  // One (block, head): keys, then values; of int8 also one scale for each token's key and value.
  size_t head_block_bytes() const {
    const size_t numbers = static_cast<size_t>(2) * block_size * head_size;
    return kv_type == KVType::bf16 ? numbers * 2 : numbers + static_cast<size_t>(2) * block_size * 4;
  }
  size_t layer_pool_bytes() const { return head_block_bytes() * num_kv_heads * num_blocks; }

  int pool_layers() const { return num_layers / num_tables; }

  // Scratch of one thread.
  size_t attention_scratch_bytes() const {
    const size_t widened = static_cast<size_t>(block_size) * head_size * 2 + sizeof(float) * 2 * kSpanTokens;
    return static_cast<size_t>(kMaxAttentionRows) * 4 * 2 * (head_size + kSpanTokens) + 2 * 64 +
           (kv_type == KVType::bf16 ? 0 : widened);
  }
  size_t panels_bytes() const { return static_cast<size_t>(2) * kTile * max_k(); }  // a tile as bf16
  size_t thread_scratch_bytes() const {
    return attention_scratch_bytes() + panels_bytes() + sizeof(float) * 2 * padded(hidden);
  }
  // Output, largest score and sum of one part of one row's context.
  int part_floats() const { return head_size + 16; }
  size_t parts_bytes() const {
    return sizeof(float) * part_floats() * kMaxParts * kFewRows * num_heads;
  }
};

// Scratch memory of a step; sizes in rows are the most tokens of a step. Carved up by Python (layout.py). The rows of
// x and activations are followed by kFewRows of each thread's own, activations also by kSpareRows that only tiles read.
struct Workspace {
  int max_rows = 0;
  float* x = nullptr;              // [rows + threads * few][hidden]         residual stream
  float* branch = nullptr;         // [rows][hidden + kTile]   output of attention or feed-forward, before it is added
  float* qkv = nullptr;            // [rows][qkv outputs]
  float* attention = nullptr;      // [rows][q_size]
  float* gated = nullptr;          // [rows][intermediate]
  uint8_t* activations = nullptr;  // [rows + threads * few + spare][4 * max_k]   what a matrix product reads
  float* rope = nullptr;           // [num ropes][rows][head_size]   cos, then sin
  float* parts = nullptr;          // [few][heads][kMaxParts][part_floats]
  uint8_t* per_thread = nullptr;   // [threads][thread_scratch_bytes]
  uint8_t* sampling = nullptr;     // [threads][sampling_scratch_bytes]
  float* logits = nullptr;         // [sequences][vocabulary, padded]
};

// What runs in one step: sequences one after another, their new tokens in rows seq_starts[s] .. seq_starts[s + 1].
struct Batch {
  int num_rows, num_sequences, num_logit_rows;
  const int32_t* token_ids;       // [rows]
  const int32_t* positions;       // [rows]
  const int32_t* seq_starts;      // [sequences + 1]
  const int32_t* block_tables;    // all tables, one after another
  const int32_t* table_starts;    // [tables][sequences]
  const int32_t* logit_rows;      // [logit rows]

  const int32_t* table(int table, int sequence) const {
    return block_tables + table_starts[table * num_sequences + sequence];
  }
};

struct Decoder {
  Shape shape;
  const Operator* operators = nullptr;
  int num_operators = 0;
  const Rope* ropes = nullptr;
  int num_ropes = 0;
  uint8_t* kv_pool = nullptr;  // [layer of a group][block][kv head][keys | values]
  Workspace work;
  int num_threads = 1;
};

// What the threads of a step share while it runs.
struct StepState {
  explicit StepState(int num_threads) : barrier(num_threads) {}
  Barrier barrier;
  std::atomic<int> next_item{0};       // hands out the items of attention, which differ in cost
  uint64_t nanoseconds[kNumKinds] = {};  // since the beginning, as thread 0 saw it, its waiting included
  uint64_t sampling_nanoseconds = 0;
};

// Runs thread `thread`'s share of the step. All threads call it with the same arguments.
using StepFunction = void (*)(const Decoder&, const Batch&, StepState&, int thread);

// Dot products from register to register (roofline.inl), in bf16 or whole numbers; returns the number of operations.
using PeakFunction = double (*)(bool bf16, int64_t rounds);

struct Isa {
  const char* name;
  StepFunction run_step;
  SampleFunction sample_rows;
  PeakFunction peak_loop;
};

// The instruction sets compiled in that this processor has, best first; portable is always there. Behind it stands, where
// it can run, `amx-imitated`: for tests of what is built on tiles.
constexpr int kMaxIsas = 5;
int available_isas(const Isa* out[kMaxIsas]);

}  // namespace ullage
