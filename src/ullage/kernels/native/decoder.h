// The decoder as the kernels see it: plain structs of sizes and pointers. Python owns all memory; nothing is allocated
// here while a step runs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "barrier.h"

namespace ullage {

// A matrix y = W x is stored in *panels* of 16 outputs, so that one 64-byte vector holds one k step of a panel. Two
// panels are a tile:
//
//   bf16:  panel[k / 2][16 outputs][2]   two consecutive k of each output; one panel after the other
//   int8:  panel[k / 4][16 outputs][4]   four consecutive k, as w / scale + 128 (so that it is the unsigned operand);
//          cut into groups of 32 k with scales of their own: [left panel][right panel][32 float scales], group by group
//
// Keys and values live in the KV pool in the same bf16 panels: keys with tokens as outputs and head_size as k, values
// with head_size as outputs and tokens as k. One multiplication routine then serves weights, scores and the weighted
// sum.
constexpr int kPanel = 16;
constexpr int kGroup = 32;         // k of int8 weights that share a scale; the last group of a row may be half as long
constexpr int num_groups(int k) { return (k + kGroup - 1) / kGroup; }
constexpr int kTile = 2 * kPanel;  // outputs computed together; the outputs of a matrix are padded to whole tiles

constexpr int kMaxAttentionRows = 12;  // query rows that one item of attention works on at most
constexpr int kSpanTokens = 256;       // tokens of the context whose scores are held at once
constexpr int kReleasedBlock = -1;     // in a block table: given back, behind the window of every row to come

enum class WeightType : int32_t { bf16 = 0, int8 = 1 };
enum class Activation : int32_t { silu = 0, gelu_tanh = 1 };

struct Matrix {
  const uint8_t* tiles = nullptr;
  WeightType type = WeightType::bf16;
  int outputs = 0;  // padded
  int k = 0;        // a multiple of 16

  int num_tiles() const { return outputs / kTile; }
  size_t tile_bytes() const {
    return type == WeightType::bf16 ? sizeof(uint16_t) * kTile * k
                                    : static_cast<size_t>(kTile) * k + sizeof(float) * kTile * num_groups(k);
  }
  const uint8_t* tile(int i) const { return tiles + tile_bytes() * i; }
};

struct Layer {
  const float* attn_norm = nullptr;       // [hidden]
  Matrix qkv;                             // rows of q, k, v one after another
  const float* qkv_bias = nullptr;        // [q + k + v] or null
  const float* q_norm = nullptr;          // [head_size] or null
  const float* k_norm = nullptr;          // [head_size] or null
  Matrix o;
  const float* post_attn_norm = nullptr;  // [hidden] or null
  const float* ffn_norm = nullptr;        // [hidden]
  Matrix gate_up;                         // tiles of 16 gate rows and the 16 up rows they are multiplied with
  Matrix down;
  const float* post_ffn_norm = nullptr;   // [hidden] or null
  int window = 0;                         // sliding window in tokens, 0 = none
  int rope = 0;                           // index into Decoder::ropes
  int table = 0;                          // which of a sequence's block tables: that of the layer's group
  int pool_layer = 0;                     // which layer of the group, and so of the pool
};

struct Rope {
  const double* inv_freq = nullptr;  // [head_size / 2]
  double attention_factor = 1.0;
};

struct Shape {
  int hidden, intermediate, num_heads, num_kv_heads, head_size, num_layers, vocab;
  int block_size, num_blocks, num_tables;
  float norm_eps, score_scale, embedding_scale;
  Activation activation;

  int group() const { return num_heads / num_kv_heads; }
  int q_size() const { return num_heads * head_size; }
  int kv_size() const { return num_kv_heads * head_size; }
  // One (block, head): keys, then values.
  size_t head_block_bytes() const { return static_cast<size_t>(2) * block_size * head_size * 2; }
  size_t layer_pool_bytes() const { return head_block_bytes() * num_kv_heads * num_blocks; }
  int pool_layers() const { return num_layers / num_tables; }
  // Attention scratch of one thread: query and output, scores and probabilities, two numbers for each row.
  size_t attention_scratch_bytes() const {
    return static_cast<size_t>(kMaxAttentionRows) * 4 * 2 * (head_size + kSpanTokens) + 2 * 64;
  }
};

// Scratch memory of a step; sizes in rows are the most tokens of a step. Carved up by Python (layout.py).
struct Workspace {
  float* x = nullptr;            // [rows][hidden]           residual stream
  float* branch = nullptr;       // [rows][ld_hidden]        output of attention or feed-forward, before it is added
  float* qkv = nullptr;          // [rows][ld_qkv]
  float* attention = nullptr;    // [rows][q_size]
  float* gated = nullptr;        // [rows][intermediate]
  uint8_t* activations = nullptr;  // [rows][4 * max k]      what a matrix product reads, in the kernel's own format
  float* rope = nullptr;         // [num ropes][rows][head_size]   cos, then sin
  uint8_t* per_thread = nullptr;  // [threads][attention_scratch_bytes]
  float* logits = nullptr;       // [sequences][ld_vocab]
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

  const int32_t* table(const Layer& layer, int sequence) const {
    return block_tables + table_starts[layer.table * num_sequences + sequence];
  }
};

struct Decoder {
  Shape shape;
  const Layer* layers = nullptr;
  const Rope* ropes = nullptr;
  int num_ropes = 0;
  Matrix embed;    // also the output matrix when the model ties them
  Matrix lm_head;
  const float* final_norm = nullptr;
  uint8_t* kv_pool = nullptr;  // [layer of a group][block][kv head][keys | values]
  Workspace work;
  int num_threads = 1;
};

// Runs thread `thread`'s share of the step. All threads call it with the same arguments.
// `next_item` hands out the items of attention, which differ in cost.
using StepFunction = void (*)(const Decoder&, const Batch&, Barrier&, std::atomic<int>& next_item, int thread);

struct Isa {
  const char* name;
  StepFunction run_step;
};

// The instruction sets compiled in that this processor has, best first; portable is always there.
int available_isas(const Isa* out[3]);

}  // namespace ullage
