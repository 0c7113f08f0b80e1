// Keeps the threads of a step off each other's cores. They wait for each other by turns, so two that happen to share a
// core look half busy each, and the system was seen to leave them there for minutes beside a free one. To pin them would
// be worse: on a core that another program uses, they could not get away from it.
#pragma once

#include <atomic>
#include <vector>

namespace ullage {

class Cores {
 public:
  explicit Cores(int num_threads);

  // Called by each thread as a step begins, by thread 0 before the others start: notes the core it runs on; moves the
  // caller to a free one when a thread before it is there. It stays free to be moved again.
  void spread(int thread);

 private:
  std::vector<int> allowed_;            // those that this process may use; empty: never move
  std::vector<std::atomic<int>> used_;  // by each thread
};

}  // namespace ullage
