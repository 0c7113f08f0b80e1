#include "barrier.h"

#include <thread>

namespace ullage {
namespace {

// 10 to 25 microseconds. Fewer would often sleep where the others are about to arrive; more would waste a core each
// time another program has taken the one of a thread of ours.
constexpr int kSpins = 500;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // takes about as long as pause does; `yield` takes no time at all
#endif
}

}  // namespace

int spins_before_sleep(int num_threads) {
  return num_threads <= static_cast<int>(std::thread::hardware_concurrency()) ? kSpins : 0;
}

uint32_t Epoch::now() const { return value_.load(std::memory_order_acquire); }

void Epoch::advance() {
  {
    // Under the lock, so that no thread falls asleep between its last look and this.
    const std::lock_guard<std::mutex> lock(mutex_);
    value_.fetch_add(1, std::memory_order_release);
  }
  advanced_.notify_all();
}

void Epoch::wait_past(uint32_t seen, int max_spins) {
  for (int spins = 0; spins < max_spins; ++spins) {
    if (now() != seen) return;
    relax();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  advanced_.wait(lock, [&] { return now() != seen; });
}

Barrier::Barrier(int num_threads) : num_threads_(num_threads), max_spins_(spins_before_sleep(num_threads)) {}

void Barrier::wait() {
  const uint32_t phase = phase_.now();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < num_threads_) return phase_.wait_past(phase, max_spins_);
  arrived_.store(0, std::memory_order_relaxed);
  phase_.advance();
}

}  // namespace ullage
