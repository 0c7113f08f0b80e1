#include "roofline.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "decoder.h"

namespace ullage {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kChunk = 512;
typedef uint64_t Line __attribute__((vector_size(64)));

double seconds_since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

std::unique_ptr<uint8_t, decltype(&std::free)> filled(size_t num_bytes) {
  uint8_t* memory = static_cast<uint8_t*>(std::aligned_alloc(kHugePage, num_bytes));
  if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  madvise(memory, num_bytes, MADV_HUGEPAGE);
#endif
  std::memset(memory, 1, num_bytes);  // pages that were never written are all the same page of zeros
  return {memory, &std::free};
}

// Reads whole chunks; the prefetches run past the end, where they are harmless.
void read(const uint8_t* from, size_t num_bytes, size_t prefetch_bytes) {
  Line sums[4] = {};
  for (size_t at = 0; at + kChunk <= num_bytes; at += kChunk) {
    if (prefetch_bytes)
      for (size_t line = 0; line < kChunk; line += 64) __builtin_prefetch(from + at + line + prefetch_bytes, 0, 2);
    for (size_t line = 0; line < kChunk; line += 64)
      sums[line / 64 % 4] ^= *reinterpret_cast<const Line*>(from + at + line);
  }
  sums[0] ^= sums[1] ^ sums[2] ^ sums[3];
  volatile uint64_t kept = sums[0][0];
  (void)kept;
}

// Calls body(thread) on all threads; the caller is thread 0.
template <class Body>
void on_threads(int num_threads, const Body& body) {
  std::vector<std::thread> others;
  for (int thread = 1; thread < num_threads; ++thread) others.emplace_back(body, thread);
  body(0);
  for (std::thread& other : others) other.join();
}

}  // namespace

std::vector<double> read_seconds(size_t num_bytes, int num_threads, int num_passes, size_t prefetch_bytes) {
  if (num_threads < 1 || num_passes < 1 || num_bytes < kHugePage * num_threads)
    throw std::invalid_argument("a measurement needs a thread, a pass and 2 MiB for each thread");
  const size_t share = num_bytes / num_threads / kChunk * kChunk;
  const auto memory = filled((num_bytes + kHugePage - 1) / kHugePage * kHugePage);
  std::vector<double> seconds(num_passes);
  std::barrier together(num_threads);
  on_threads(num_threads, [&](int thread) {
    for (int pass = -1; pass < num_passes; ++pass) {
      together.arrive_and_wait();
      const Clock::time_point began = Clock::now();
      read(memory.get() + share * thread, share, prefetch_bytes);
      together.arrive_and_wait();
      if (thread == 0 && pass >= 0) seconds[pass] = seconds_since(began);
    }
  });
  return seconds;
}

double peak_operations(const std::string& isa, const std::string& weight_type, int num_threads) {
  if (num_threads < 1) throw std::invalid_argument("a measurement needs a thread");
  const Isa* found[kMaxIsas];
  const int count = available_isas(found);
  const Isa* const* wanted = std::find_if(found, found + count, [&](const Isa* other) { return isa == other->name; });
  if (wanted == found + count) throw std::invalid_argument("this processor doesn't have the instruction set asked for");
  constexpr int64_t kRounds = 400'000;  // some milliseconds
  double best = 0;
  for (int attempt = 0; attempt < 8; ++attempt) {
    std::barrier together(num_threads);
    on_threads(num_threads, [&](int thread) {
      together.arrive_and_wait();
      const Clock::time_point began = Clock::now();
      const double operations = (*wanted)->peak_loop(weight_type == "bf16", kRounds);
      together.arrive_and_wait();
      if (thread == 0) best = std::max(best, operations * num_threads / seconds_since(began));
    });
  }
  return best;
}

}  // namespace ullage
