// Copies of key-value caches between a slot, where a model computes, and pages, where a parked cache waits. No torch, no
// Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace metasd {

// A slot holds `num_planes` planes, the keys or the values of one head of one layer each: rows of `row_bytes`, one a
// token, plane p from `slot + p * plane_stride` on. A page holds `page_size` rows of every plane side by side:
// [num_planes, page_size, row_bytes]. Page i of the cache, its tokens [i * page_size, (i + 1) * page_size), lies at
// `pages + page_ids[i] * num_planes * page_size * row_bytes`.
struct KvPages {
    std::byte* slot;
    std::int64_t num_planes, plane_stride, row_bytes;
    std::byte* pages;
    std::int64_t page_size;
    std::span<const std::int64_t> page_ids;
};

enum class Direction { kPark, kActivate };  // slot to pages, pages to slot

// Copies tokens [begin, end) and nothing else; page_ids reaches at least to the page of the last one.
void copy_tokens(const KvPages& kv, std::int64_t begin, std::int64_t end, Direction direction, std::int32_t num_threads);

// The same through the CUDA runtime, in the order of `stream`: one or both sides on a GPU, host pages pinned. False where
// the process has loaded no CUDA runtime; throws std::runtime_error with the runtime's message where a copy fails.
bool copy_tokens_cuda(const KvPages& kv, std::int64_t begin, std::int64_t end, Direction direction, void* stream);

}  // namespace metasd
