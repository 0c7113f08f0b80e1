// The Python door of the kernels. Everything Python hands over is checked here; the step itself checks nothing.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>

#include "bind_roofline.h"
#include "decoder.h"
#include "pack.h"
#include "pool.h"
#include "sampling_door.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ullage {
namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ByteMatrix = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A piece of an arena, checked against its end.
uint8_t* at(const Bytes& arena, size_t offset, size_t num_bytes) {
  require(num_bytes <= arena.size() && offset <= arena.size() - num_bytes, "piece lies outside the arena");
  uint8_t* piece = arena.data() + offset;
  require(reinterpret_cast<uintptr_t>(piece) % 64 == 0, "piece isn't on a 64-byte boundary");
  return piece;
}

int whole_tiles(int outputs) { return (outputs + kTile - 1) / kTile * kTile; }

template <class Enum, size_t N>
Enum named(const std::string& name, const char* const (&names)[N], const char* message) {
  for (size_t i = 0; i < N; ++i)
    if (name == names[i]) return static_cast<Enum>(i);
  throw std::invalid_argument(message);
}

// In the order of the enumerations.
constexpr const char* kFormats[kNumFormats] = {"bf16",         "int4",     "int4_min", "int4_min_f32", "int8",
                                               "int8_min_f32", "int8_g16", "int8_g16_min"};
constexpr const char* kBlockTypes[] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};
constexpr const char* kKinds[kNumKinds] = {"embed", "qkv", "append", "attend", "output", "gate_up", "down", "head"};
constexpr const char* kKVTypes[] = {"bf16", "int8"};

Matrix matrix_at(const Bytes& arena, size_t offset, int outputs, int k, const std::string& format) {
  require(outputs > 0 && outputs % kTile == 0 && k > 0 && k % kGroup == 0, "matrix of impossible size");
  Matrix m;
  m.format = named<Format>(format, kFormats, "unknown weight format");
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
        state_(num_threads) {
    require(num_threads > 0, "a step needs a thread");
    const Isa* found[kMaxIsas];
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

  void set_shape(nb::dict sizes, double norm_eps, double score_scale, double embedding_scale, bool gelu,
                 const std::string& kv_type) {
    const auto size = [&](const char* name) { return nb::cast<int>(sizes[name]); };
    d_.shape = {size("hidden"), size("intermediate"), size("num_heads"), size("num_kv_heads"), size("head_size"),
                size("num_layers"), size("vocab"), size("block_size"), size("num_blocks"),
                size("num_tables"), static_cast<float>(norm_eps), static_cast<float>(score_scale), static_cast<float>(embedding_scale),
                gelu ? Activation::gelu_tanh : Activation::silu,
                named<KVType>(kv_type, kKVTypes, "unknown KV type")};
    const Shape& s = d_.shape;
    require(std::min({s.hidden, s.intermediate, s.num_heads, s.num_kv_heads, s.head_size, s.num_layers, s.vocab,
                      s.block_size, s.num_blocks, s.num_tables}) > 0 &&
                s.num_heads % s.num_kv_heads == 0 && s.num_layers % s.num_tables == 0,
            "sizes must be positive, heads a multiple of KV heads, layers of block tables");
    require(s.hidden % 16 == 0 && s.intermediate % 16 == 0 && s.head_size % 16 == 0 && s.head_size <= 256,
            "sizes must be multiples of 16, heads at most 256");
    require(s.block_size % kPanel == 0 && s.block_size <= kSpanTokens, "block size must be a multiple of 16 up to 256");
    require(kv_pool_.size() == s.layer_pool_bytes() * s.pool_layers(), "KV pool isn't of the planned size");
    table_windows_.assign(s.num_tables, 0);
  }

  void add_rope(Doubles inv_freq, double attention_factor) {
    require(static_cast<int>(inv_freq.size()) == d_.shape.head_size / 2, "rope needs head_size / 2 frequencies");
    frequencies_.emplace_back(inv_freq.data(), inv_freq.data() + inv_freq.size());
    ropes_.push_back({frequencies_.back().data(), attention_factor});
    d_.ropes = ropes_.data();
    d_.num_ropes = static_cast<int>(ropes_.size());
  }

  // Appends an operator; the layers of a table have one window. After the ropes.
  void add_operator(const std::string& kind, int window, int rope, int table, int pool_layer, bool adds_branch) {
    const Shape& s = d_.shape;
    require(rope >= 0 && rope < d_.num_ropes && window >= 0, "unknown rope or negative window");
    require(table >= 0 && table < s.num_tables && pool_layer >= 0 && pool_layer < s.pool_layers(),
            "layer has no place in the pool");
    Operator op;
    op.kind = named<Kind>(kind, kKinds, "unknown operator");
    op.adds_branch = adds_branch;
    op.window = window;
    op.rope = rope;
    op.table = table;
    op.pool_layer = pool_layer;
    table_windows_[table] = window;
    operators_.push_back(op);
    d_.operators = operators_.data();
    d_.num_operators = static_cast<int>(operators_.size());
  }

  // The matrix of the last operator.
  void set_matrix(size_t offset, const std::string& format) {
    const Shape& s = d_.shape;
    require(!operators_.empty(), "no operator");
    Operator& op = operators_.back();
    const auto matrix = [&](int outputs, int k) {
      return matrix_at(weights_, offset, whole_tiles(outputs), padded(k), format);
    };
    switch (op.kind) {
      case Kind::embed:
      case Kind::head: op.matrix = matrix(s.vocab, s.hidden); break;
      case Kind::qkv: op.matrix = matrix(s.q_size() + 2 * s.kv_size(), s.hidden); break;
      case Kind::output: op.matrix = matrix(s.hidden, s.q_size()); break;
      case Kind::gate_up: op.matrix = matrix(2 * s.intermediate, s.hidden); break;
      case Kind::down: op.matrix = matrix(s.hidden, s.intermediate); break;
      default: require(false, "this operator has no matrix");
    }
  }

  // A vector of the last operator.
  void set_vector(const std::string& name, size_t offset) {
    const Shape& s = d_.shape;
    require(!operators_.empty(), "no operator");
    Operator& op = operators_.back();
    const auto vector = [&](int n) { return reinterpret_cast<const float*>(at(weights_, offset, sizeof(float) * n)); };
    if (name == "norm") op.norm = vector(s.hidden);
    else if (name == "post_norm") op.post_norm = vector(s.hidden);
    else if (name == "bias") op.bias = vector(s.q_size() + 2 * s.kv_size());
    else if (name == "q_norm") op.q_norm = vector(s.head_size);
    else if (name == "k_norm") op.k_norm = vector(s.head_size);
    else require(false, "unknown vector");
  }

  // After the ropes.
  void set_workspace(int max_rows, nb::dict offsets) {
    require(max_rows > 0, "a step needs a row");
    const Shape& s = d_.shape;
    const size_t rows = max_rows, rows_and_own = rows + static_cast<size_t>(d_.num_threads) * kFewRows;
    const auto piece = [&](const char* name, size_t bytes) {
      return at(workspace_, nb::cast<size_t>(offsets[name]), bytes);
    };
    const auto floats = [&](const char* name, size_t count, size_t width) {
      return reinterpret_cast<float*>(piece(name, count * width * sizeof(float)));
    };
    Workspace& w = d_.work;
    w.max_rows = max_rows;
    w.x = floats("x", rows_and_own, s.hidden);
    w.branch = floats("branch", rows, s.hidden + kTile);
    w.qkv = floats("qkv", rows, whole_tiles(s.q_size() + 2 * s.kv_size()));
    w.attention = floats("attention", rows, s.q_size());
    w.gated = floats("gated", rows, s.intermediate);
    w.activations = piece("activations", (rows_and_own + kSpareRows) * 4 * s.max_k());
    w.rope = floats("rope", rows, static_cast<size_t>(d_.num_ropes) * s.head_size);
    w.parts = reinterpret_cast<float*>(piece("parts", s.parts_bytes()));
    w.per_thread = piece("per_thread", s.thread_scratch_bytes() * d_.num_threads);
    w.sampling = piece("sampling", sampling_scratch_bytes(s.vocab) * d_.num_threads);
  }

  // Runs all rows; leaves logits of the rows asked for in the logits memory, in order. Releases the GIL.
  // Samples them where `sampling_rows` isn't empty.
  void step(Ints token_ids, Ints positions, Ints seq_starts, Ints block_tables, Ints table_starts, Ints logit_rows,
            Records sampling_rows, Ints sampling_token_ids, Floats bias_values, Masks masks, WritableRecords sampled) {
    const auto count = [](const Ints& array) { return static_cast<int>(array.size()); };
    const Batch b = {count(token_ids),   count(seq_starts) - 1, count(logit_rows),   token_ids.data(), positions.data(),
                     seq_starts.data(), block_tables.data(),   table_starts.data(), logit_rows.data()};
    check(b, positions.size(), table_starts.size(), block_tables.size());
    SamplingBatch s = sampling_batch(sampling_rows, sampling_token_ids, bias_values, masks, sampled, d_.shape.vocab);
    require(s.num_rows == 0 || s.num_rows == b.num_logit_rows, "not as many rows to sample as logits");
    s.logits = d_.work.logits;
    s.row_stride = operators_.back().matrix.outputs;
    s.scratch = d_.work.sampling;
    std::atomic<int> next_sampled{0};
    nb::gil_scoped_release release;
    pool_.run([&](int thread) {
      isa_->run_step(d_, b, state_, thread);
      const auto begun = std::chrono::steady_clock::now();
      isa_->sample_rows(s, next_sampled, thread);
      if (thread == 0) state_.sampling_nanoseconds += (std::chrono::steady_clock::now() - begun).count();
    });
  }

  // Seconds spent in operators of each kind and in sampling since the beginning.
  nb::dict stage_seconds() const {
    nb::dict seconds;
    for (int i = 0; i < kNumKinds; ++i) seconds[kKinds[i]] = static_cast<double>(state_.nanoseconds[i]) * 1e-9;
    seconds["sample"] = static_cast<double>(state_.sampling_nanoseconds) * 1e-9;
    return seconds;
  }

 private:
  bool complete() const {
    const auto is_complete = [](const Operator& op) {
      const bool multiplies = op.kind != Kind::append && op.kind != Kind::attend;
      const bool norms = op.kind == Kind::qkv || op.kind == Kind::gate_up || op.kind == Kind::head;
      return (op.matrix.tiles || !multiplies) && (op.norm || !norms);
    };
    return d_.num_operators > 1 && operators_.front().kind == Kind::embed && operators_.back().kind == Kind::head &&
           d_.work.max_rows > 0 && std::all_of(operators_.begin(), operators_.end(), is_complete);
  }

  void check(const Batch& b, size_t num_positions, size_t num_tables, size_t num_table_entries) const {
    const Shape& s = d_.shape;
    require(complete(), "a weight is missing");
    require(b.num_rows > 0 && b.num_rows <= d_.work.max_rows, "more rows than the workspace holds");
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
    const size_t row_bytes = sizeof(float) * operators_.back().matrix.outputs;
    require(b.num_logit_rows * row_bytes <= logits_.size(), "more logits than planned");
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
  std::vector<Operator> operators_;
  std::vector<int> table_windows_;  // of the layers of each table
  std::vector<Rope> ropes_;
  std::deque<std::vector<double>> frequencies_;
  Decoder d_;
  ThreadPool pool_;
  StepState state_;
  const Isa* isa_ = nullptr;
};

// The part of packing that floats and blocks share: the matrix, and where rows go in it.
Placement placement_in(const Matrix& m, int num_rows, int first_output, int group_stride) {
  const Placement placement = {first_output, group_stride};
  require(num_rows == 0 ||
              (first_output >= 0 && group_stride >= kPanel && placement.output_of(num_rows - 1) < m.outputs),
          "rows don't fit the matrix");
  return placement;
}

void pack(Bytes arena, size_t offset, int outputs, int k, const std::string& format, FloatMatrix rows,
          int first_output, int group_stride) {
  const Matrix m = matrix_at(arena, offset, outputs, k, format);
  require(m.format == Format::bf16 || m.format == Format::int8 || m.format == Format::int4_min,
          "floats are rounded to bf16, int8 or int4_min only");
  const int num_rows = static_cast<int>(rows.shape(0)), length = static_cast<int>(rows.shape(1));
  require(padded(length) == k, "rows of another length");
  const Placement placement = placement_in(m, num_rows, first_output, group_stride);
  nb::gil_scoped_release release;
  pack_rows(rows.data(), num_rows, length, placement, m, const_cast<uint8_t*>(m.tiles));
}

bool pack_stored(Bytes arena, size_t offset, int outputs, int k, const std::string& format, ByteMatrix rows,
                 const std::string& block_type, int first_output, int group_stride) {
  const Matrix m = matrix_at(arena, offset, outputs, k, format);
  require(m.format != Format::bf16, "blocks aren't carried over to bf16");
  const BlockType type = named<BlockType>(block_type, kBlockTypes, "unknown block type");
  const BlockShape shape = block_shape(type);
  const int num_rows = static_cast<int>(rows.shape(0));
  const int length = static_cast<int>(rows.shape(1)) / shape.bytes * shape.terms;
  require(static_cast<int>(rows.shape(1)) % shape.bytes == 0 && length == k, "rows of another length");
  const Placement placement = placement_in(m, num_rows, first_output, group_stride);
  nb::gil_scoped_release release;
  return pack_blocks(type, rows.data(), num_rows, k, placement, m, const_cast<uint8_t*>(m.tiles));
}

// Samples rows of any logits on the caller's thread.
void sample(const std::string& name, FloatMatrix logits, Records rows, Ints token_ids, Floats bias_values,
            Masks masks, WritableRecords sampled, Bytes scratch) {
  const Isa* found[kMaxIsas];
  const int count = available_isas(found);
  const Isa* const* isa = std::find_if(found, found + count, [&](const Isa* i) { return name == i->name; });
  require(isa != found + count, "this processor doesn't have the instruction set asked for");
  require(logits.shape(1) > 0 && logits.shape(1) < (1 << 30), "a row needs a logit");
  const int vocab = static_cast<int>(logits.shape(1));
  SamplingBatch s = sampling_batch(rows, token_ids, bias_values, masks, sampled, vocab);
  require(static_cast<size_t>(s.num_rows) == logits.shape(0), "not as many rows to sample as logits");
  s.logits = logits.data();
  s.row_stride = vocab;
  s.scratch = at(scratch, 0, sampling_scratch_bytes(vocab));
  std::atomic<int> next_row{0};
  nb::gil_scoped_release release;
  (*isa)->sample_rows(s, next_row, 0);
}

std::vector<std::string> isas() {
  const Isa* found[kMaxIsas];
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
  ullage::bind_roofline(m);
  m.def("pack", &ullage::pack, "arena"_a.noconvert(), "offset"_a, "outputs"_a, "k"_a, "format"_a, "rows"_a,
        "first_output"_a, "group_stride"_a);
  m.def("pack_stored", &ullage::pack_stored, "arena"_a.noconvert(), "offset"_a, "outputs"_a, "k"_a, "format"_a,
        "rows"_a, "block_type"_a, "first_output"_a, "group_stride"_a,
        "False when the format can't hold the blocks, or a scale isn't finite.");
  m.def("sample", &ullage::sample, "isa"_a, "logits"_a, "rows"_a, "token_ids"_a, "bias_values"_a,
        "masks"_a, "sampled"_a.noconvert(), "scratch"_a.noconvert());
  nb::class_<NativeDecoder>(m, "Decoder")
      .def(nb::init<ullage::Bytes, ullage::Bytes, ullage::Bytes, ullage::Bytes, int, const std::string&>(),
           "weights"_a.noconvert(), "kv_pool"_a.noconvert(), "workspace"_a.noconvert(), "logits"_a.noconvert(),
           "num_threads"_a, "isa"_a)
      .def_prop_ro("isa", &NativeDecoder::isa)
      .def("set_shape", &NativeDecoder::set_shape, "sizes"_a, "norm_eps"_a, "score_scale"_a, "embedding_scale"_a,
           "gelu"_a, "kv_type"_a)
      .def("add_rope", &NativeDecoder::add_rope, "inv_freq"_a, "attention_factor"_a)
      .def("add_operator", &NativeDecoder::add_operator, "kind"_a, "window"_a, "rope"_a, "table"_a,
           "pool_layer"_a, "adds_branch"_a)
      .def("set_matrix", &NativeDecoder::set_matrix, "offset"_a, "format"_a)
      .def("set_vector", &NativeDecoder::set_vector, "name"_a, "offset"_a)
      .def("stage_seconds", &NativeDecoder::stage_seconds)
      .def("set_workspace", &NativeDecoder::set_workspace, "max_rows"_a, "offsets"_a)
      .def("step", &NativeDecoder::step, "token_ids"_a, "positions"_a, "seq_starts"_a, "block_tables"_a,
           "table_starts"_a, "logit_rows"_a, "sampling_rows"_a, "sampling_token_ids"_a, "bias_values"_a,
           "masks"_a, "sampled"_a.noconvert());
}
