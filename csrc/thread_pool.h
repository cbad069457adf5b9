// Threads for work of some ten microseconds and more: those of the process's OpenMP runtime, or our own where there is
// none or its threads come late.
#pragma once

#include <cstdint>

namespace metasd {

using TaskFunction = void (*)(const void* work, std::int64_t index);

// call(work, index) for each index in [0, num_tasks) on at most num_threads threads, the caller's among them.
void run_tasks(std::int64_t num_tasks, std::int32_t num_threads, TaskFunction call, const void* work);

// work(index) for each index in [0, num_tasks), in order of their start, on at most num_threads threads, the caller's
// among them; returns when all are done. The result must not depend on who does what: where another call has the pool,
// from another thread or further up the stack, the caller does everything itself. Rethrows what a task throws.
template <typename Work>
void parallel_for(std::int64_t num_tasks, std::int32_t num_threads, const Work& work) {
    if (num_threads <= 1 || num_tasks <= 1) {
        for (std::int64_t index = 0; index < num_tasks; ++index) work(index);
        return;
    }
    run_tasks(
        num_tasks, num_threads,
        [](const void* given, std::int64_t index) { (*static_cast<const Work*>(given))(index); }, &work);
}

}  // namespace metasd
