// Threads that run one step together. Within a step they spin (stages are microseconds apart); between steps they spin a
// little, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace ullage {

class ThreadPool {
 public:
  // The caller of run() is thread 0; num_threads - 1 more are started.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;

  int size() const { return num_threads_; }
  // Runs task(thread) on all threads; returns when all are done. One call at a time.
  void run(const std::function<void(int)>& task);

 private:
  void work(int thread);

  const int num_threads_;
  const std::function<void(int)>* task_ = nullptr;
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<int> running_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace ullage
