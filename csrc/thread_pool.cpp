#include "thread_pool.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace metasd {
namespace {

constexpr int kSpins = 2000;  // some ten microseconds: the next call of a loop often comes within them

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

class Pool {
  public:
    explicit Pool(std::int32_t num_workers) {
        for (std::int32_t worker = 1; worker <= num_workers; ++worker) {
            threads_.emplace_back([this, worker] { serve(worker); });
        }
    }

    std::int32_t num_workers() const { return static_cast<std::int32_t>(threads_.size()); }

    void run(std::int64_t num_tasks, std::int32_t num_threads,
             const std::function<void(std::int64_t, std::int32_t)>& task) {
        task_ = &task;
        num_tasks_ = num_tasks;
        num_active_ = num_threads - 1;
        next_.store(0, std::memory_order_relaxed);
        num_busy_.store(num_workers(), std::memory_order_relaxed);
        {
            std::lock_guard lock(mutex_);
            generation_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        take_tasks(0);
        for (int spin = 0; num_busy_.load(std::memory_order_acquire) != 0; ++spin) {
            spin < kSpins ? relax() : std::this_thread::yield();
        }
    }

    // Only at the end of the process or after a fork, where the threads are gone anyway.
    void abandon() {
        for (std::thread& thread : threads_) thread.detach();
    }

  private:
    void serve(std::int32_t worker) {
        std::uint64_t seen = 0;
        for (;;) {
            for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spin) relax();
            if (generation_.load(std::memory_order_acquire) == seen) {
                std::unique_lock lock(mutex_);
                wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
            }
            seen = generation_.load(std::memory_order_acquire);
            if (worker <= num_active_) take_tasks(worker);
            num_busy_.fetch_sub(1, std::memory_order_release);
        }
    }

    void take_tasks(std::int32_t worker) {
        for (;;) {
            const std::int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
            if (index >= num_tasks_) return;
            (*task_)(index, worker);
        }
    }

    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<std::uint64_t> generation_{0};
    std::atomic<std::int64_t> next_{0};
    std::atomic<std::int32_t> num_busy_{0};
    const std::function<void(std::int64_t, std::int32_t)>* task_ = nullptr;
    std::int64_t num_tasks_ = 0;
    std::int32_t num_active_ = 0;
};

// Never destroyed: its threads may outlive static destructors.
Pool* shared_pool(std::int32_t num_workers) {
    static Pool* pool = nullptr;
    static pid_t owner = 0;
    if (pool != nullptr && (owner != getpid() || pool->num_workers() < num_workers)) {
        if (owner == getpid()) pool->abandon();  // leaked with its sleeping threads: growing is rare
        pool = nullptr;
    }
    if (pool == nullptr) {
        pool = new Pool(num_workers);
        owner = getpid();
    }
    return pool;
}

}  // namespace

void parallel_for(std::int64_t num_tasks, std::int32_t num_threads,
                  const std::function<void(std::int64_t, std::int32_t)>& task) {
    if (num_threads > num_tasks) num_threads = static_cast<std::int32_t>(num_tasks);
    if (num_threads <= 1) {
        for (std::int64_t index = 0; index < num_tasks; ++index) task(index, 0);
        return;
    }
    static std::mutex turn;
    std::lock_guard lock(turn);
    shared_pool(num_threads - 1)->run(num_tasks, num_threads, task);
}

}  // namespace metasd
