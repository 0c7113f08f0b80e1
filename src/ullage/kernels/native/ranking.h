// Finds the largest of a row of logits, and the largest so many, without sorting. Included by sampling.h, inside a
// namespace of its own per instruction set.

typedef float HalfVec __attribute__((vector_size(2 * ULLAGE_LANES)));
typedef double DVec __attribute__((vector_size(4 * ULLAGE_LANES)));
typedef uint64_t LVec __attribute__((vector_size(4 * ULLAGE_LANES)));
constexpr int kDoubleLanes = kLanes / 2;

ULLAGE_INLINE DVec load_doubles(const float* from) {
  HalfVec v;
  memcpy(&v, from, sizeof v);
  return __builtin_convertvector(v, DVec);
}

ULLAGE_INLINE DVec load_doubles(const double* from) {
  DVec v;
  memcpy(&v, from, sizeof v);
  return v;
}

ULLAGE_INLINE void store(double* to, DVec v) { memcpy(to, &v, sizeof v); }

ULLAGE_INLINE double sum(DVec v) {
  double total = 0;
  for (int i = 0; i < kDoubleLanes; ++i) total += v[i];
  return total;
}

// e^x for x <= 0 to about 1e-14 of itself: 2^n * e^t with t in [-ln 2 / 2, ln 2 / 2], e^t by its Taylor polynomial of
// degree 11. Below -708 gives 0.
ULLAGE_INLINE DVec exponential(DVec x) {
  const DVec zero = {}, tiny = zero - 708.0;
  const DVec y = x < tiny ? tiny : x;
  const DVec rounder = zero + 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to whole numbers, in the low bits
  const DVec shifted = y * 1.4426950408889634 + rounder;
  const DVec whole = shifted - rounder;
  const DVec t = (y - whole * 0.693147180369123816490) - whole * 1.90821492927058770002e-10;  // exact n ln 2, in parts
  DVec p = zero + 1.0 / 39916800;
  for (const double term : {1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24,
                            1.0 / 6, 0.5, 1.0, 1.0})
    p = p * t + term;
  const DVec power = (DVec)(((LVec)shifted + 1023) << 52);
  return x < tiny ? zero : p * power;
}

// ---- A row of logits ------------------------------------------------------------------------------------------------

struct LogitRow {
  const float* logits;
  int size;
  float* block_best;         // [num_blocks]
  float tail[kSampleBlock];  // the last, unfilled block, filled up with minus infinity
  float best;
  int best_id;  // the lowest of equals

  int num_blocks() const { return (size + kSampleBlock - 1) / kSampleBlock; }
  const float* block(int b) const { return (b + 1) * kSampleBlock > size ? tail : logits + b * kSampleBlock; }
};

// Finds the largest logit of each block and of the row. NaN counts as the largest, so that it shows.
static void read_row(const float* logits, int size, float* block_best, LogitRow& row) {
  row.logits = logits, row.size = size, row.block_best = block_best;
  for (int i = 0; i < kSampleBlock; ++i) {
    const int id = size / kSampleBlock * kSampleBlock + i;
    row.tail[i] = id < size ? logits[id] : -INFINITY;
  }
  row.best = -INFINITY;
  int best_block = 0;
  Vec sums = splat(0.0f);  // NaN, if there is a NaN
  for (int b = 0; b < row.num_blocks(); ++b) {
    const float* x = row.block(b);
    Vec best = load(x);
    Vec block_sums = best;
    for (int i = kLanes; i < kSampleBlock; i += kLanes) {
      best = maximum(load(x + i), best);
      block_sums += load(x + i);
    }
    sums += block_sums;
    block_best[b] = largest(best);
    if (block_best[b] > row.best) row.best = block_best[b], best_block = b;
  }
  const float total = sum(sums);
  for (int i = 0; total != total && i < size; ++i)  // it may also be infinity less infinity
    if (logits[i] != logits[i]) {
      row.best = logits[i], row.best_id = i;
      return;
    }
  const float* x = row.block(best_block);
  int i = 0;
  while (x[i] != row.best && i < kSampleBlock - 1) ++i;
  row.best_id = best_block * kSampleBlock + i;
}

// ---- Prefixes of a ranking -----------------------------------------------------------------------------------------

// A prefix of a ranking by value, equal values by id: all above `value`, and those equal to it up to id `last_tie`.
struct Cut {
  double value = -INFINITY;
  int last_tie = INT32_MAX;
};

struct Bin {
  double mass;
  uint64_t first;  // order_of its first item
  int32_t count;
  int32_t mixed;  // not all items are equal
};

// Whole numbers in the order of the floating-point numbers. Not for NaN.
ULLAGE_INLINE uint64_t order_of(double value) {
  value += 0.0;  // no minus zero
  uint64_t bits;
  memcpy(&bits, &value, 8);
  return bits >> 63 ? ~bits : bits | uint64_t{1} << 63;
}

ULLAGE_INLINE double value_of(uint64_t order) {
  const uint64_t bits = order >> 63 ? order & ~(uint64_t{1} << 63) : ~order;
  double value;
  memcpy(&value, &bits, 8);
  return value;
}

template <typename Each>
static int id_of_tie(const Each& each, double value, int64_t which) {
  int found = INT32_MAX;
  each(value, value, [&](int id, double, double) {
    if (--which == 0) found = id;
  });
  return found;
}

// The shortest prefix whose mass reaches `goal` (all of the items, if rounding keeps it from that).
// each(low, high, visit) calls visit(id, value, mass) for all items of value low to high, in the order of their ids.
// Counts the items into bins[kSampleBins] of equal width, then does the same inside the bin where the prefix ends.
template <typename Each>
static Cut shortest_prefix(const Each& each, double goal, double low_value, double high_value, Bin* bins) {
  uint64_t low = order_of(low_value), high = order_of(high_value);
  double above = 0;
  for (;;) {
    const int num_bits = high > low ? 64 - __builtin_clzll(high - low) : 0;
    const int shift = num_bits > 10 ? num_bits - 10 : 0;
    memset(bins, 0, sizeof(Bin) * kSampleBins);
    each(value_of(low), value_of(high), [&](int, double value, double mass) {
      const uint64_t order = order_of(value);
      Bin& bin = bins[(high - order) >> shift];
      if (bin.count++ == 0) bin.first = order;
      bin.mixed |= order != bin.first;
      bin.mass += mass;
    });
    int end = -1;
    for (int b = 0; b < kSampleBins; ++b) {
      if (bins[b].count == 0) continue;
      if (end >= 0) above += bins[end].mass;
      end = b;
      if (above + bins[b].mass >= goal) break;
    }
    const Bin& last = bins[end];
    if (!last.mixed) {
      const double value = value_of(last.first), ties = ceil((goal - above) / (last.mass / last.count));
      if (!(ties < last.count)) return {value};
      return {value, id_of_tie(each, value, ties > 1 ? static_cast<int64_t>(ties) : 1)};
    }
    high -= static_cast<uint64_t>(end) << shift;
    const uint64_t width = (uint64_t{1} << shift) - 1;
    if (high - low > width) low = high - width;
  }
}

// The `count` largest logits. So many blocks have a logit as large as the count-th largest of the blocks' best.
static Cut largest_logits(const LogitRow& row, int count, Bin* bins) {
  const auto each_best = [&](double low, double high, auto visit) {
    for (int b = 0; b < row.num_blocks(); ++b)
      if (row.block_best[b] >= low && row.block_best[b] <= high) visit(b, row.block_best[b], 1.0);
  };
  const auto each = [&](double low, double high, auto visit) {
    for (int b = 0; b < row.num_blocks(); ++b) {
      if (row.block_best[b] < low) continue;
      const float* x = row.block(b);
      for (int i = 0; i < kSampleBlock; ++i)
        if (x[i] >= low && x[i] <= high) visit(b * kSampleBlock + i, x[i], 1.0);
    }
  };
  const bool enough = count <= row.num_blocks();
  const double low = enough ? shortest_prefix(each_best, count, -INFINITY, row.best, bins).value : -INFINITY;
  return shortest_prefix(each, count, low, row.best, bins);
}
