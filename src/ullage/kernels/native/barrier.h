// How the threads of a step wait for one another: they spin, because what they wait for is microseconds away, then
// sleep, because on a busy machine the thread they wait for may need this very core.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace ullage {

// How often to look before sleeping, for threads that run together: never when they outnumber the cores.
int spins_before_sleep(int num_threads);

// A number that only goes up, and threads that wait until it does.
class Epoch {
 public:
  uint32_t now() const;
  void advance();
  void wait_past(uint32_t seen, int max_spins);

 private:
  alignas(64) std::atomic<uint32_t> value_{0};
  std::mutex mutex_;
  std::condition_variable advanced_;
};

// All threads of a step meet here.
class Barrier {
 public:
  explicit Barrier(int num_threads);
  void wait();

 private:
  const int num_threads_, max_spins_;
  alignas(64) std::atomic<int> arrived_{0};
  Epoch phase_;
};

}  // namespace ullage
