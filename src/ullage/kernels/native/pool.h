// Threads that run one step together and sleep between steps.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "affinity.h"
#include "barrier.h"

namespace ullage {

class ThreadPool {
 public:
  // The caller of run() is thread 0; num_threads - 1 more are started.
  // Throws std::system_error when the system has no more.
  explicit ThreadPool(int num_threads);
  ~ThreadPool() { stop(); }
  ThreadPool(const ThreadPool&) = delete;

  // Runs task(thread) on all threads; returns when all are done. One call at a time.
  void run(const std::function<void(int)>& task);

 private:
  void work(int thread);
  void stop();

  const int max_spins_;
  Cores cores_;
  const std::function<void(int)>* task_ = nullptr;  // null: the threads end
  Epoch started_;
  Barrier finished_;
  std::vector<std::thread> threads_;
};

}  // namespace ullage
