#include "thread_pool.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace metasd {
namespace {

using Clock = std::chrono::steady_clock;

// A helper looks out for the next call that long before it sleeps: the stages of one call follow within microseconds,
// calls in a tight loop within some tens more, and to be woken takes about as long as a small call. Longer would burn a
// core between two rounds of decoding.
constexpr auto kLookOut = std::chrono::microseconds(150);

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// The tasks of one call, for whoever takes part.
class Job {
  public:
    Job(std::int64_t num_tasks, TaskFunction call, const void* work) : num_tasks_(num_tasks), call_(call), work_(work) {}

    void take_tasks() {
        for (;;) {
            const std::int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
            if (index >= num_tasks_) return;
            try {
                call_(work_, index);
            } catch (...) {
                if (!has_failed_.test_and_set()) failure_ = std::current_exception();
                next_.store(num_tasks_, std::memory_order_relaxed);
            }
        }
    }

    // When nobody takes tasks any more.
    void rethrow() const {
        if (failure_ != nullptr) std::rethrow_exception(failure_);
    }

  private:
    const std::int64_t num_tasks_;
    const TaskFunction call_;
    const void* const work_;
    std::atomic<std::int64_t> next_{0};
    std::atomic_flag has_failed_ = ATOMIC_FLAG_INIT;
    std::exception_ptr failure_;
};

// Our own threads. Who calls works, too; helpers that sleep are woken, and not waited for unless they came in time.
class Pool {
  public:
    void run(Job& job, std::int64_t num_helpers) {
        const std::int32_t wanted = grow(num_helpers);
        job_ = &job;
        num_left_.store(0, std::memory_order_relaxed);
        places_.store(wanted, std::memory_order_release);
        // Either this store is seen by who is about to sleep, or who sleeps is seen by the load behind it.
        generation_.fetch_add(1, std::memory_order_seq_cst);
        if (num_sleeping_.load(std::memory_order_seq_cst) > 0) {
            const std::lock_guard lock(mutex_);
            for (std::int32_t i = 0; i < wanted; ++i) wake_.notify_one();
        }
        job.take_tasks();
        // Who has not come by now finds no place any more, and need not be waited for.
        const std::int32_t num_entered = wanted - places_.exchange(0, std::memory_order_acq_rel);
        for (std::int32_t spin = 0; num_left_.load(std::memory_order_acquire) != num_entered; ++spin) {
            spin < 1000 ? relax() : std::this_thread::yield();
        }
    }

  private:
    // Starts helpers up to `wanted`; returns how many of these there are.
    std::int32_t grow(std::int64_t wanted) {
        while (static_cast<std::int64_t>(threads_.size()) < wanted) {
            try {
                threads_.emplace_back([this] { serve(); });
            } catch (const std::system_error&) {  // the system gives no more threads: do with those that there are
                break;
            }
        }
        return static_cast<std::int32_t>(std::min<std::int64_t>(wanted, static_cast<std::int64_t>(threads_.size())));
    }

    void serve() {
        std::uint64_t seen = 0;
        for (;;) {
            const auto until = Clock::now() + kLookOut;
            for (std::int32_t spin = 1; generation_.load(std::memory_order_acquire) == seen; ++spin) {
                relax();
                if (spin % 32 == 0 && Clock::now() > until) break;
            }
            if (generation_.load(std::memory_order_acquire) == seen) {
                std::unique_lock lock(mutex_);
                num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
                wake_.wait(lock, [&] { return generation_.load(std::memory_order_seq_cst) != seen; });
                num_sleeping_.fetch_sub(1, std::memory_order_relaxed);
            }
            seen = generation_.load(std::memory_order_acquire);
            if (!enter()) continue;
            job_->take_tasks();
            num_left_.fetch_add(1, std::memory_order_release);
        }
    }

    // A place in the call that is going on, of this generation or a newer one.
    bool enter() {
        std::int32_t places = places_.load(std::memory_order_acquire);
        while (places > 0) {
            if (places_.compare_exchange_weak(places, places - 1, std::memory_order_acq_rel)) return true;
        }
        return false;
    }

    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<std::uint64_t> generation_{0};
    std::atomic<std::int32_t> num_sleeping_{0};
    Job* job_ = nullptr;  // written while there is no place in it, read by those who got one
    std::atomic<std::int32_t> places_{0}, num_left_{0};
};

Pool* pool = nullptr;  // never destroyed: its threads outlive static destructors
std::atomic_flag is_taken = ATOMIC_FLAG_INIT;
bool is_forked = false;

// The OpenMP runtime of the process, which is torch's, by the function that GCC calls for `#pragma omp parallel`. Its
// threads are awake when a verification follows the target's forward pass; ours would have to fight them for the cores.
// But all of them have to come by before a call is over, which takes milliseconds where other programs hold the cores:
// after a late one our own threads take over for a while, the longer the more often that happens.
class OpenMP {
  public:
    bool is_usable() {
        if (call_ == nullptr || is_forked) return false;  // it does not survive a fork
        if (num_to_avoid_ == 0) return true;
        --num_to_avoid_;
        return false;
    }

    void run(Job& job, std::int64_t num_threads) {
        struct Part {
            Job& job;
            const std::thread::id caller = std::this_thread::get_id();
            Clock::time_point end{};  // of the caller's part
        } part{job};
        const auto begin = Clock::now();
        call_(
            [](void* data) {
                Part& own = *static_cast<Part*>(data);
                own.job.take_tasks();
                if (std::this_thread::get_id() == own.caller) own.end = Clock::now();
            },
            &part, static_cast<unsigned>(num_threads), 0);
        if (Clock::now() - part.end > kPatience + (part.end - begin)) {
            num_to_avoid_ = pause_;
            pause_ = std::min(2 * pause_, kLongestPause);
            num_in_time_ = 0;
        } else if (++num_in_time_ == kTrusted) {
            pause_ = kShortestPause;
        }
    }

  private:
    static constexpr auto kPatience = std::chrono::microseconds(200);
    // In calls: those that our own threads do after a late one, and those in time after which all is forgiven.
    static constexpr std::int32_t kShortestPause = 4, kLongestPause = 1024, kTrusted = 64;

    using Call = void (*)(void (*function)(void*), void* data, unsigned num_threads, unsigned flags);

    const Call call_ = reinterpret_cast<Call>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    std::int32_t num_to_avoid_ = 0, pause_ = kShortestPause, num_in_time_ = 0;
};

// In the child of a fork there are no helpers, and nobody who could give the pool back.
void start_anew() {
    pool = nullptr;
    is_taken.clear();
    is_forked = true;
}

const int kRegistered = pthread_atfork(nullptr, nullptr, start_anew);

class Turn {
  public:
    Turn() : is_ours(!is_taken.test_and_set(std::memory_order_acquire)) {}
    ~Turn() {
        if (is_ours) is_taken.clear(std::memory_order_release);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    const bool is_ours;
};

}  // namespace

void run_tasks(std::int64_t num_tasks, std::int32_t num_threads, TaskFunction call, const void* work) {
    static_cast<void>(kRegistered);
    Job job(num_tasks, call, work);
    const std::int64_t most = std::min<std::int64_t>(num_threads, num_tasks);
    const Turn turn;
    if (!turn.is_ours) {
        job.take_tasks();
    } else if (static OpenMP openmp; openmp.is_usable()) {
        openmp.run(job, most);
    } else {
        if (pool == nullptr) pool = new Pool;
        pool->run(job, most - 1);
    }
    job.rethrow();
}

}  // namespace metasd
