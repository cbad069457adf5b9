#include "kv_swap.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "thread_pool.h"

namespace metasd {
namespace {

// A task is at least that long, so that handing it out costs nothing beside it.
constexpr std::int64_t kTaskBytes = std::int64_t{256} << 10;

// From here on a copy goes past the caches: to read a line only to write it over takes a third of the bandwidth.
constexpr std::int64_t kStreamBytes = std::int64_t{512} << 10;

void copy_streaming(std::byte* to, const std::byte* from, std::int64_t size) {
#if defined(__SSE2__)
    constexpr std::int64_t kLine = 64, kVector = 16;
    const auto misaligned = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) % kLine);
    const std::int64_t head = std::min(size, misaligned == 0 ? 0 : kLine - misaligned);
    std::memcpy(to, from, static_cast<std::size_t>(head));
    to += head, from += head, size -= head;
    for (; size >= kLine; to += kLine, from += kLine, size -= kLine) {
        for (std::int64_t i = 0; i < kLine; i += kVector) {
            _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                             _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
        }
    }
#endif
    std::memcpy(to, from, static_cast<std::size_t>(size));
}

}  // namespace

void copy_tokens(const KvPages& kv, std::int64_t begin, std::int64_t end, Direction direction,
                 std::int32_t num_threads) {
    if (begin >= end) return;
    const std::int64_t page_bytes = kv.num_planes * kv.page_size * kv.row_bytes;
    const std::int64_t first_page = begin / kv.page_size, num_pages = (end - 1) / kv.page_size + 1 - first_page;
    const std::int64_t planes_a_task =
        std::clamp<std::int64_t>(kTaskBytes / (kv.page_size * kv.row_bytes), 1, kv.num_planes);
    const std::int64_t tasks_a_page = (kv.num_planes + planes_a_task - 1) / planes_a_task;
    // Short pages go together, or each would be a task of its own.
    const std::int64_t pages_a_task = std::max<std::int64_t>(kTaskBytes / page_bytes, 1);
    const std::int64_t page_groups = (num_pages + pages_a_task - 1) / pages_a_task;
    const bool is_streamed = (end - begin) * kv.num_planes * kv.row_bytes >= kStreamBytes;
    parallel_for(page_groups * tasks_a_page, num_threads, [&](std::int64_t task) {
        const std::int64_t group = task / tasks_a_page, first_plane = task % tasks_a_page * planes_a_task;
        const std::int64_t last_plane = std::min(first_plane + planes_a_task, kv.num_planes);
        const std::int64_t until = std::min(first_page + (group + 1) * pages_a_task, first_page + num_pages);
        for (std::int64_t page = first_page + group * pages_a_task; page < until; ++page) {
            const std::int64_t start = std::max(begin, page * kv.page_size);
            const std::int64_t size = (std::min(end, (page + 1) * kv.page_size) - start) * kv.row_bytes;
            std::byte* own = kv.pages + kv.page_ids[static_cast<std::size_t>(page)] * page_bytes;
            for (std::int64_t plane = first_plane; plane < last_plane; ++plane) {
                std::byte* in_slot = kv.slot + plane * kv.plane_stride + start * kv.row_bytes;
                std::byte* in_page = own + (plane * kv.page_size + start - page * kv.page_size) * kv.row_bytes;
                std::byte* to = direction == Direction::kPark ? in_page : in_slot;
                const std::byte* from = direction == Direction::kPark ? in_slot : in_page;
                if (is_streamed) {
                    copy_streaming(to, from, size);
                } else {
                    std::memcpy(to, from, static_cast<std::size_t>(size));
                }
            }
        }
#if defined(__SSE2__)
        if (is_streamed) _mm_sfence();
#endif
    });
}

}  // namespace metasd
