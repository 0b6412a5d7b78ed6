// A 64-byte aligned array that grows without keeping its content: scratch memory of kernels.
#pragma once

#include <cstddef>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace carat {

template <typename T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  explicit Buffer(size_t size) { resize(size); }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() { ::operator delete[](data_, std::align_val_t{64}); }

  /// Makes the size `size`. The content is unspecified afterwards; memory is only taken when it grows.
  void resize(size_t size) {
    if (size > capacity_) {
      ::operator delete[](data_, std::align_val_t{64});
      data_ = nullptr;
      capacity_ = 0;
      data_ = static_cast<T*>(::operator new[](size * sizeof(T) + 64, std::align_val_t{64}));
      capacity_ = size;
    }
    size_ = size;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  std::span<T> span() { return {data_, size_}; }
  std::span<const T> span() const { return {data_, size_}; }
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace carat
