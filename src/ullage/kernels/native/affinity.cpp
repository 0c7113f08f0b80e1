#include "affinity.h"

#include <algorithm>
#include <iterator>

#if defined(__linux__)
#include <sched.h>
#endif

namespace ullage {

#if defined(__linux__)

namespace {

void go_to(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);  // 0: this thread. Where it is refused, all goes on, only slower
}

}  // namespace

Cores::Cores(int num_threads) : used_(num_threads) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < num_threads) return;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed)) allowed_.push_back(core);
}

void Cores::spread(int thread) {
  if (allowed_.empty()) return;
  const auto used_before = [&](int core) {
    return std::any_of(used_.begin(), used_.begin() + thread, [&](const std::atomic<int>& used) {
      return used.load(std::memory_order_relaxed) == core;
    });
  };
  if (used_before(sched_getcpu())) {
    std::vector<int> free;
    std::copy_if(allowed_.begin(), allowed_.end(), std::back_inserter(free), [&](int core) { return !used_before(core); });
    if (!free.empty()) {
      go_to(free);  // at once
      go_to(allowed_);
    }
  }
  used_[thread].store(sched_getcpu(), std::memory_order_relaxed);
}

#else

Cores::Cores(int) {}
void Cores::spread(int) {}

#endif

}  // namespace ullage
