#include "pool.h"

namespace ullage {
namespace {

// Between two steps Python takes 0.1 to 0.3 ms; to sleep and be woken again would add 50 microseconds to each.
constexpr int kSpinsBetweenSteps = 20;  // times those of a barrier

}  // namespace

ThreadPool::ThreadPool(int num_threads)
    : max_spins_(kSpinsBetweenSteps * spins_before_sleep(num_threads)), cores_(num_threads), finished_(num_threads) {
  try {
    for (int thread = 1; thread < num_threads; ++thread) threads_.emplace_back([this, thread] { work(thread); });
  } catch (...) {
    stop();  // a thread that is destroyed while it runs would end the process
    throw;
  }
}

void ThreadPool::stop() {
  task_ = nullptr;
  started_.advance();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(const std::function<void(int)>& task) {
  task_ = &task;
  cores_.spread(0);
  started_.advance();
  task(0);
  finished_.wait();
}

void ThreadPool::work(int thread) {
  for (uint32_t seen = 0;; ++seen) {
    started_.wait_past(seen, max_spins_);
    if (task_ == nullptr) return;
    cores_.spread(thread);
    (*task_)(thread);
    finished_.wait();
  }
}

}  // namespace ullage
