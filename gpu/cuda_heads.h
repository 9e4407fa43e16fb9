#pragma once

// Says what a plan for a GPU has to know of its attention, where there may be none.
namespace hayloft::gpu {

// Says how many components a head has at most in attention by CUDA: its Backend::most_head_dim().
inline constexpr int cuda_most_head_dim = 256;

}  // namespace hayloft::gpu
