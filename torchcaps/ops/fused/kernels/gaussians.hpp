// Gaussians fitted to the votes of each parent: mu = S / N, sigma^2 = Q / N + floor, 1 / sigma^2, and the sum of
// log sigma^2.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "rows.hpp"

// Mirrored in torchcaps/ops/fused/passes.py. Fields are [B * J, H] or [B * J]; a null pointer stands for one that is not there.
struct TorchcapsGaussians {
  int64_t rows, H, threads;
  double floor;
  const void *mass, *sum, *scatter;
  // Results of the forward pass; the backward pass reads mean and precision.
  void *mean, *variance, *precision, *log_determinant;
  const void *grad_mean, *grad_variance, *grad_precision, *grad_log_determinant;
  void *grad_mass, *grad_sum, *grad_scatter;
};

namespace {

template <typename T>
struct Gaussians {
  using V = Vec<T>;
  static constexpr int kLanes = Lanes<T>::count;
  const TorchcapsGaussians& g;
  const T tiny = std::sqrt(std::numeric_limits<T>::min());  // as torchcaps.numerics.quotient

  void run(bool back) const {
    parallel_for(g.threads, g.rows, std::max<int64_t>(1, 4096 / g.H), [&](int64_t first, int64_t end) {
      for (int64_t row = first; row < end; ++row) back ? backward(row) : forward(row);
    });
  }

 private:
  static T* writable(void* tensor) { return static_cast<T*>(tensor); }
  static const T* readable(const void* tensor) { return static_cast<const T*>(tensor); }

  T inverse(int64_t row) const {
    const T mass = readable(g.mass)[row];
    return mass <= tiny ? T(0) : T(1) / mass;
  }

  // A vector of the numbers of a row from `at` on: 0 past its end, and if there is no tensor.
  V load(const void* tensor, int64_t row, int64_t at) const {
    if (!tensor) return V{};
    const T* from = readable(tensor) + row * g.H + at;
    if (at + kLanes <= g.H) return load_vector(from);
    V value{};
    std::memcpy(&value, from, (g.H - at) * sizeof(T));
    return value;
  }

  void store(V value, void* tensor, int64_t row, int64_t at) const {
    if (tensor) std::memcpy(writable(tensor) + row * g.H + at, &value, std::min<int64_t>(kLanes, g.H - at) * sizeof(T));
  }

  void forward(int64_t row) const {
    const T one = inverse(row);
    T total = 0;
    for (int64_t at = 0; at < g.H; at += kLanes) {
      V variance = load(g.scatter, row, at) * one + T(g.floor);
      store(load(g.sum, row, at) * one, g.mean, row, at);
      store(variance, g.variance, row, at);
      store(T(1) / variance, g.precision, row, at);
      for (int64_t lane = g.H - at; lane < kLanes; ++lane) variance[lane] = T(1);
      total += lane_sum<T>(logarithm(variance));
    }
    writable(g.log_determinant)[row] = total;
  }

  void backward(int64_t row) const {
    const T one = inverse(row), along = g.grad_log_determinant ? readable(g.grad_log_determinant)[row] : T(0);
    V flow{};  // the gradient of the mass
    for (int64_t at = 0; at < g.H; at += kLanes) {
      const V precision = load(g.precision, row, at);
      const V mean = load(g.grad_mean, row, at) * one;
      V variance = (along - load(g.grad_precision, row, at) * precision) * precision + load(g.grad_variance, row, at);
      variance *= one;
      flow -= mean * load(g.mean, row, at) + variance * (load(g.scatter, row, at) * one);
      store(mean, g.grad_sum, row, at);
      store(variance, g.grad_scatter, row, at);
    }
    if (g.grad_mass) writable(g.grad_mass)[row] = lane_sum<T>(flow);
  }
};

}  // namespace
