// A pool of threads for work of some ten microseconds and more: workers spin a little before they sleep.
#pragma once

#include <cstdint>
#include <functional>

namespace metasd {

// Runs task(index, worker) for each index in [0, num_tasks), on at most num_threads threads, the caller's among them;
// workers are numbered from 0 and below num_threads. Returns when all are done. Calls from several threads take turns.
// The result must not depend on which worker takes which task.
void parallel_for(std::int64_t num_tasks, std::int32_t num_threads,
                  const std::function<void(std::int64_t, std::int32_t)>& task);

}  // namespace metasd
