// Routed experts of the CPU backend.
#pragma once

#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "compute/cpu/kernels.h"
#include "compute/cpu/matmul.h"

namespace carat {

class CpuMoe {
 public:
  CpuMoe(ThreadPool& pool, const Kernels& kernels, Matmul& matmul);

  /// branches[r] = dense_post_norm(branches[r]) + expert_post_norm(experts of row r); on entry `branches` [rows,
  /// hidden] holds the dense branch before its norm.
  void run(const MoeArgs& args, float* branches);

 private:
  void route(const MoeArgs& args);

  ThreadPool& pool_;
  const Kernels& kernels_;
  Matmul& matmul_;
  Activations input_;                  // expert input, one row a token
  Activations inner_;                  // one row a (token, slot) pair, grouped by expert
  Buffer<float> normed_;               // [rows, hidden]
  Buffer<float> scores_;               // [rows, experts]
  Buffer<float> active_;               // [pairs, expert width]
  Buffer<float> out_;                  // [pairs, hidden]
  std::vector<int> expert_;            // [rows, k], best first
  std::vector<float> weight_;          // [rows, k]
  std::vector<int64_t> pair_row_;      // [pairs] grouped by expert: the token
  std::vector<int64_t> pair_of_slot_;  // [rows, k]: where the slot's pair is
  std::vector<int64_t> first_pair_;    // [experts + 1]
  std::vector<Product> products_;
};

}  // namespace carat
