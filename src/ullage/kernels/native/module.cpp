// The Python door of the kernels. Everything Python hands over is checked here; the step itself checks nothing.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>

#include "decoder.h"
#include "pack.h"
#include "pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ullage {
namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

// A piece of an arena, checked against its end.
uint8_t* at(const Bytes& arena, size_t offset, size_t num_bytes) {
  require(num_bytes <= arena.size() && offset <= arena.size() - num_bytes, "piece lies outside the arena");
  uint8_t* piece = arena.data() + offset;
  require(reinterpret_cast<uintptr_t>(piece) % 64 == 0, "piece isn't on a 64-byte boundary");
  return piece;
}

int whole_tiles(int outputs) { return (outputs + kTile - 1) / kTile * kTile; }

WeightType weight_type_of(const std::string& name) {
  if (name == "bf16") return WeightType::bf16;
  require(name == "int8", "weight type must be bf16 or int8");
  return WeightType::int8;
}

Matrix matrix_at(const Bytes& arena, size_t offset, int outputs, int k, const std::string& type) {
  require(outputs > 0 && outputs % kTile == 0 && k > 0 && k % 16 == 0, "matrix of impossible size");
  Matrix m;
  m.type = weight_type_of(type);
  m.outputs = outputs;
  m.k = k;
  m.tiles = at(arena, offset, m.tile_bytes() * m.num_tiles());
  return m;
}

class NativeDecoder {
 public:
  NativeDecoder(Bytes weights, Bytes kv_pool, Bytes workspace, Bytes logits, int num_threads, const std::string& isa)
      : weights_(weights),
        kv_pool_(kv_pool),
        workspace_(workspace),
        logits_(logits),
        pool_(num_threads),
        barrier_(num_threads) {
    require(num_threads > 0, "a step needs a thread");
    const Isa* found[3];
    const int count = available_isas(found);
    for (int i = 0; i < count; ++i)
      if (isa.empty() || isa == found[i]->name) {
        isa_ = found[i];
        break;
      }
    require(isa_ != nullptr, "this processor doesn't have the instruction set asked for");
    d_.num_threads = num_threads;
    d_.kv_pool = kv_pool_.data();
    d_.work.logits = reinterpret_cast<float*>(logits_.data());
  }

  std::string isa() const { return isa_->name; }

  void set_shape(nb::dict sizes, double norm_eps, double score_scale, double embedding_scale, bool gelu) {
    const auto size = [&](const char* name) { return nb::cast<int>(sizes[name]); };
    d_.shape = {size("hidden"), size("intermediate"), size("num_heads"), size("num_kv_heads"), size("head_size"),
                size("num_layers"), size("vocab"), size("block_size"), size("num_blocks"),
                size("num_tables"), static_cast<float>(norm_eps), static_cast<float>(score_scale), static_cast<float>(embedding_scale),
                gelu ? Activation::gelu_tanh : Activation::silu};
    const Shape& s = d_.shape;
    require(std::min({s.hidden, s.intermediate, s.num_heads, s.num_kv_heads, s.head_size, s.num_layers, s.vocab,
                      s.block_size, s.num_blocks, s.num_tables}) > 0 && s.num_heads % s.num_kv_heads == 0 &&
                s.num_layers % s.num_tables == 0,
            "sizes must be positive, heads a multiple of KV heads, layers of block tables");
    require(s.hidden % 16 == 0 && s.intermediate % 16 == 0 && s.head_size % 16 == 0 && s.head_size <= 256,
            "sizes must be multiples of 16, heads at most 256");
    require(s.block_size % kPanel == 0 && s.block_size <= kSpanTokens, "block size must be a multiple of 16 up to 256");
    require(kv_pool_.size() == s.layer_pool_bytes() * s.pool_layers(), "KV pool isn't of the planned size");
    layers_.assign(s.num_layers, Layer());
    table_windows_.assign(s.num_tables, 0);
    d_.layers = layers_.data();
  }

  void add_rope(Doubles inv_freq, double attention_factor) {
    require(static_cast<int>(inv_freq.size()) == d_.shape.head_size / 2, "rope needs head_size / 2 frequencies");
    frequencies_.emplace_back(inv_freq.data(), inv_freq.data() + inv_freq.size());
    ropes_.push_back({frequencies_.back().data(), attention_factor});
    d_.ropes = ropes_.data();
    d_.num_ropes = static_cast<int>(ropes_.size());
  }

  // name is a Matrix of a layer, or embed or lm_head (layer is ignored).
  void set_matrix(int layer, const std::string& name, size_t offset, const std::string& type) {
    const Shape& s = d_.shape;
    const auto matrix = [&](int outputs, int k) { return matrix_at(weights_, offset, whole_tiles(outputs), k, type); };
    if (name == "embed") d_.embed = matrix(s.vocab, s.hidden);
    else if (name == "lm_head") d_.lm_head = matrix(s.vocab, s.hidden);
    else if (name == "qkv") layers_.at(layer).qkv = matrix(s.q_size() + 2 * s.kv_size(), s.hidden);
    else if (name == "o") layers_.at(layer).o = matrix(s.hidden, s.q_size());
    else if (name == "gate_up") layers_.at(layer).gate_up = matrix(2 * s.intermediate, s.hidden);
    else if (name == "down") layers_.at(layer).down = matrix(s.hidden, s.intermediate);
    else require(false, "unknown matrix");
  }

  void set_vector(int layer, const std::string& name, size_t offset) {
    const Shape& s = d_.shape;
    const auto vector = [&](int n) { return reinterpret_cast<const float*>(at(weights_, offset, sizeof(float) * n)); };
    if (name == "final_norm") d_.final_norm = vector(s.hidden);
    else if (name == "attn_norm") layers_.at(layer).attn_norm = vector(s.hidden);
    else if (name == "ffn_norm") layers_.at(layer).ffn_norm = vector(s.hidden);
    else if (name == "qkv_bias") layers_.at(layer).qkv_bias = vector(s.q_size() + 2 * s.kv_size());
    else if (name == "q_norm") layers_.at(layer).q_norm = vector(s.head_size);
    else if (name == "k_norm") layers_.at(layer).k_norm = vector(s.head_size);
    else if (name == "post_attn_norm") layers_.at(layer).post_attn_norm = vector(s.hidden);
    else if (name == "post_ffn_norm") layers_.at(layer).post_ffn_norm = vector(s.hidden);
    else require(false, "unknown vector");
  }

  // The layers of a table have one window.
  void set_layer(int layer, int window, int rope, int table, int pool_layer) {
    const Shape& s = d_.shape;
    require(rope >= 0 && rope < d_.num_ropes && window >= 0, "unknown rope or negative window");
    require(table >= 0 && table < s.num_tables && pool_layer >= 0 && pool_layer < s.pool_layers(),
            "layer has no place in the pool");
    Layer& l = layers_.at(layer);
    l.window = table_windows_[table] = window;
    l.rope = rope;
    l.table = table;
    l.pool_layer = pool_layer;
  }

  // After the ropes.
  void set_workspace(int max_rows, nb::dict offsets) {
    require(max_rows > 0, "a step needs a row");
    const Shape& s = d_.shape;
    const auto piece = [&](const char* name, size_t bytes) {
      return at(workspace_, nb::cast<size_t>(offsets[name]), bytes);
    };
    const auto rows = [&](const char* name, int width) {  // of 4-byte numbers
      return piece(name, static_cast<size_t>(max_rows) * width * 4);
    };
    const auto floats = [&](const char* name, int width) { return reinterpret_cast<float*>(rows(name, width)); };
    Workspace& w = d_.work;
    w.x = floats("x", s.hidden);
    w.branch = floats("branch", s.hidden + kTile);
    w.qkv = floats("qkv", whole_tiles(s.q_size() + 2 * s.kv_size()));
    w.attention = floats("attention", s.q_size());
    w.gated = floats("gated", s.intermediate);
    w.activations = rows("activations", std::max({s.hidden, s.q_size(), s.intermediate}));
    w.rope = floats("rope", d_.num_ropes * s.head_size);
    w.per_thread = piece("per_thread", s.attention_scratch_bytes() * d_.num_threads);
    max_rows_ = max_rows;
  }

  // Runs all rows; leaves logits of the rows asked for in the logits memory, in order. Releases the GIL.
  void step(Ints token_ids, Ints positions, Ints seq_starts, Ints block_tables, Ints table_starts, Ints logit_rows) {
    const auto count = [](const Ints& array) { return static_cast<int>(array.size()); };
    const Batch b = {count(token_ids),   count(seq_starts) - 1, count(logit_rows),   token_ids.data(), positions.data(),
                     seq_starts.data(), block_tables.data(),   table_starts.data(), logit_rows.data()};
    check(b, positions.size(), table_starts.size(), block_tables.size());
    nb::gil_scoped_release release;
    pool_.run([&](int thread) { isa_->run_step(d_, b, barrier_, next_item_, thread); });
  }

 private:
  bool complete() const {
    const auto has_all = [](const Layer& l) {
      return l.qkv.tiles && l.o.tiles && l.gate_up.tiles && l.down.tiles && l.attn_norm && l.ffn_norm;
    };
    return d_.embed.tiles && d_.lm_head.tiles && d_.final_norm && d_.num_ropes > 0 &&
           std::all_of(layers_.begin(), layers_.end(), has_all);
  }

  void check(const Batch& b, size_t num_positions, size_t num_tables, size_t num_table_entries) const {
    const Shape& s = d_.shape;
    require(complete(), "a weight is missing");
    require(b.num_rows > 0 && b.num_rows <= max_rows_, "more rows than the workspace holds");
    require(b.num_sequences >= 0 && num_positions == static_cast<size_t>(b.num_rows) &&
                num_tables == static_cast<size_t>(b.num_sequences) * s.num_tables,
            "arrays of a step don't fit together");
    require(b.seq_starts[0] == 0 && b.seq_starts[b.num_sequences] == b.num_rows, "sequences don't cover the rows");
    for (int r = 0; r < b.num_rows; ++r)
      require(b.token_ids[r] >= 0 && b.token_ids[r] < s.vocab, "token id out of range");
    for (int q = 0; q < b.num_sequences; ++q) {
      const int first = b.seq_starts[q], end = b.seq_starts[q + 1];
      require(first < end && end <= b.num_rows, "a sequence has no rows");
      for (int r = first; r < end; ++r)
        require(b.positions[first] >= 0 && b.positions[r] - b.positions[first] == r - first,
                "positions aren't consecutive");
      for (int t = 0; t < s.num_tables; ++t)
        check_table(b.table_starts[t * b.num_sequences + q], table_windows_[t], b.positions[first], b.positions[end - 1],
                    b.block_tables, num_table_entries);
    }
    for (int i = 0; i < b.num_logit_rows; ++i) {
      require(b.logit_rows[i] >= 0 && b.logit_rows[i] < b.num_rows, "logit row out of range");
      require(i == 0 || b.logit_rows[i] > b.logit_rows[i - 1], "logit rows must ascend");
    }
    require(b.num_logit_rows * sizeof(float) * d_.lm_head.outputs <= logits_.size(), "more logits than planned");
  }

  // The rows of a sequence stand at positions first .. last and see nothing before first's window.
  void check_table(int start, int window, int first, int last, const int32_t* entries, size_t num_entries) const {
    const Shape& s = d_.shape;
    const int num_blocks = last / s.block_size + 1;
    require(start >= 0 && static_cast<size_t>(start) + num_blocks <= num_entries, "block table is too short");
    const int first_seen = window ? std::max(0, first + 1 - window) / s.block_size : 0;
    for (int i = 0; i < num_blocks; ++i) {
      const int block = entries[start + i];
      require((block >= 0 && block < s.num_blocks) || (block == kReleasedBlock && i < first_seen),
              "block id out of range");
    }
  }

  Bytes weights_, kv_pool_, workspace_, logits_;
  std::vector<Layer> layers_;
  std::vector<int> table_windows_;  // of the layers of each table
  std::vector<Rope> ropes_;
  std::deque<std::vector<double>> frequencies_;
  Decoder d_;
  ThreadPool pool_;
  Barrier barrier_;
  std::atomic<int> next_item_{0};
  const Isa* isa_ = nullptr;
  int max_rows_ = 0;
};

void pack(Bytes arena, size_t offset, int outputs, int k, const std::string& type, FloatMatrix rows, int first_output,
          int group_stride) {
  const Matrix m = matrix_at(arena, offset, outputs, k, type);
  const Placement placement = {first_output, group_stride};
  const int num_rows = static_cast<int>(rows.shape(0));
  require(static_cast<int>(rows.shape(1)) == k, "rows of another length");
  require(num_rows == 0 || (first_output >= 0 && group_stride >= kPanel && placement.output_of(num_rows - 1) < outputs),
          "rows don't fit the matrix");
  nb::gil_scoped_release release;
  pack_rows(rows.data(), num_rows, placement, m, const_cast<uint8_t*>(m.tiles));
}

std::vector<std::string> isas() {
  const Isa* found[3];
  const int count = available_isas(found);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(found[i]->name);
  return names;
}

}  // namespace
}  // namespace ullage

NB_MODULE(_native, m) {
  using ullage::NativeDecoder;
  // A decoder that lives until the interpreter ends is no leak, and no user can make anything of the warning.
  nb::set_leak_warnings(false);
  m.def("isas", &ullage::isas, "Instruction sets this processor can run, best first.");
  m.def("pack", &ullage::pack, "arena"_a.noconvert(), "offset"_a, "outputs"_a, "k"_a, "type"_a, "rows"_a,
        "first_output"_a, "group_stride"_a);
  nb::class_<NativeDecoder>(m, "Decoder")
      .def(nb::init<ullage::Bytes, ullage::Bytes, ullage::Bytes, ullage::Bytes, int, const std::string&>(),
           "weights"_a.noconvert(), "kv_pool"_a.noconvert(), "workspace"_a.noconvert(), "logits"_a.noconvert(),
           "num_threads"_a, "isa"_a)
      .def_prop_ro("isa", &NativeDecoder::isa)
      .def("set_shape", &NativeDecoder::set_shape, "sizes"_a, "norm_eps"_a, "score_scale"_a, "embedding_scale"_a,
           "gelu"_a)
      .def("add_rope", &NativeDecoder::add_rope, "inv_freq"_a, "attention_factor"_a)
      .def("set_matrix", &NativeDecoder::set_matrix, "layer"_a, "name"_a, "offset"_a, "type"_a)
      .def("set_vector", &NativeDecoder::set_vector, "layer"_a, "name"_a, "offset"_a)
      .def("set_layer", &NativeDecoder::set_layer, "layer"_a, "window"_a, "rope"_a, "table"_a, "pool_layer"_a)
      .def("set_workspace", &NativeDecoder::set_workspace, "max_rows"_a, "offsets"_a)
      .def("step", &NativeDecoder::step, "token_ids"_a, "positions"_a, "seq_starts"_a, "block_tables"_a,
           "table_starts"_a, "logit_rows"_a);
}
