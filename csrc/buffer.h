// Scratch memory that grows and is kept: after the first calls nothing is allocated any more.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>

namespace metasd {

template <typename T>
class Buffer {
    static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

  public:
    Buffer() = default;
    ~Buffer() { release(); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    // Room for that many, at a multiple of 64 bytes. What was in it is lost where it has to grow.
    T* reserve(std::size_t size) {
        if (size > size_) {
            release();
            data_ = static_cast<T*>(::operator new(size * sizeof(T), std::align_val_t{64}));
            size_ = size;
        }
        return data_;
    }

  private:
    void release() {
        ::operator delete(data_, std::align_val_t{64});
        data_ = nullptr;
        size_ = 0;
    }

    T* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace metasd
