#include "pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ullage {
namespace {

constexpr int kSpinsBeforeSleep = 20000;  // a few hundred microseconds: the time Python needs between two steps

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  for (int thread = 1; thread < num_threads; ++thread) threads_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(const std::function<void(int)>& task) {
  task_ = &task;
  running_.store(num_threads_ - 1, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  task(0);
  for (int spins = 0; running_.load(std::memory_order_acquire) > 0; ++spins) {
    if (spins > kSpinsBeforeSleep) std::this_thread::yield();
    relax();
  }
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  while (true) {
    for (int spins = 0; epoch_.load(std::memory_order_acquire) == seen && spins < kSpinsBeforeSleep; ++spins) relax();
    epoch_.wait(seen, std::memory_order_acquire);
    seen = epoch_.load(std::memory_order_acquire);
    if (stopping_.load()) return;
    (*task_)(thread);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace ullage
