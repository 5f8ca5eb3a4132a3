// The M-step of EM routing. Gaussians fitted to the votes of each parent: mu = S / N, sigma^2 = Q / N + floor, 1 / sigma^2,
// and the sum of log sigma^2. The logits of the activations: lambda (activation - cost), cost = (child + half * sum) N,
// standardised over the parents or not (torchcaps.numerics.standardised).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "rows.hpp"

// Mirrored in torchcaps/ops/fused/passes.py. A pair is one parent of one row. Fields are [B, J, H] or [B, J], those of costs
// [J], of rounding [B]; a null pointer stands for one that is not there. Without terms, costs stay as they are.
struct TorchcapsMStep {
  int64_t rows, parents, H, threads;
  double floor, half, cost_floor, temperature, epsilon, resolved;
  const void *mass, *sum, *scatter, *child, *activation, *terms, *share_before, *logit_before;
  // Results of the forward pass; the backward pass reads mean, precision and log_determinant.
  void *mean, *variance, *precision, *log_determinant, *logit, *share_after, *logit_after;
  const void *grad_mean, *grad_variance, *grad_precision, *grad_log_determinant, *grad_logit;
  void *grad_mass, *grad_sum, *grad_scatter, *grad_child, *grad_activation;  // the last two for each row, [B, J]
};

namespace {

template <typename T>
struct MStep {
  using V = Vec<T>;
  static constexpr int kLanes = Lanes<T>::count;
  const TorchcapsMStep& g;
  const T tiny = std::sqrt(std::numeric_limits<T>::min());  // as torchcaps.numerics.quotient

  void run(bool back) const {
    parallel_for(g.threads, g.rows, std::max<int64_t>(1, 4096 / (g.H * g.parents)), [&](int64_t first, int64_t end) {
      for (int64_t row = first; row < end; ++row) back ? backward(row) : forward(row);
    });
  }

 private:
  // How the costs of a row differ.
  struct Spread {
    double mean, size, deviation, divisor;
    bool resolved;  // by more than rounding
  };

  static T* writable(void* tensor) { return static_cast<T*>(tensor); }
  static const T* readable(const void* tensor) { return static_cast<const T*>(tensor); }

  void forward(int64_t row) const {
    const int64_t first = row * g.parents, end = first + g.parents;
    for (int64_t pair = first; pair < end; ++pair) fit(pair);
    const Spread spread = g.terms ? spread_of(row) : Spread{0, 0, 0, 1, true};
    for (int64_t pair = first; pair < end; ++pair) {
      const double cost = (cost_of(pair) - spread.mean) / spread.divisor;
      writable(g.logit)[pair] = T(g.temperature * (readable(g.activation)[pair - first] - cost));
    }
  }

  void backward(int64_t row) const {
    const int64_t first = row * g.parents, end = first + g.parents;
    const Spread spread = g.terms ? spread_of(row) : Spread{0, 0, 0, 1, true};
    double total = 0, along = 0;  // of the gradients of the costs: their sum, and with the costs
    for (int64_t pair = first; pair < end; ++pair) {
      const double flow = -g.temperature * of_logit(pair);
      total += flow;
      along += flow * (cost_of(pair) - spread.mean);
    }
    const double common = g.terms ? total / (g.parents * spread.divisor) : 0;
    double through = 0;  // the deviation
    if (g.terms && spread.resolved) through = along / (spread.divisor * spread.divisor * spread.deviation * g.parents);
    for (int64_t pair = first; pair < end; ++pair) {
      const T mass = readable(g.mass)[pair], flow = of_logit(pair), cost = cost_of(pair);
      const double about = cost - spread.mean + g.cost_floor * g.cost_floor * spread.size * ((cost > 0) - (cost < 0));
      const T slope = T(-g.temperature * flow / spread.divisor - common - through * about);
      writable(g.grad_activation)[pair] = T(g.temperature) * flow;
      writable(g.grad_child)[pair] = slope * mass;
      const T given = g.grad_log_determinant ? readable(g.grad_log_determinant)[pair] : T(0);
      fit_backward(pair, given + slope * mass * T(g.half), slope * unit_cost(pair));
    }
  }

  T of_logit(int64_t pair) const { return g.grad_logit ? readable(g.grad_logit)[pair] : T(0); }

  T unit_cost(int64_t pair) const {
    return readable(g.child)[pair % g.parents] + T(g.half) * readable(g.log_determinant)[pair];
  }

  T cost_of(int64_t pair) const { return unit_cost(pair) * readable(g.mass)[pair]; }

  // As torchcaps.numerics.standardised.
  Spread spread_of(int64_t row) const {
    const int64_t first = row * g.parents, end = first + g.parents;
    double sum = 0, absolute = 0, terms = 0, square = 0;
    for (int64_t pair = first; pair < end; ++pair) {
      const T cost = cost_of(pair);
      sum += cost;
      absolute += std::abs(cost);
      const double logarithm = std::abs(g.half * readable(g.log_determinant)[pair]);
      terms += (readable(g.terms)[pair - first] + logarithm) * readable(g.mass)[pair];
    }
    const double mean = sum / g.parents, size = absolute / g.parents, whole = terms / g.parents;
    for (int64_t pair = first; pair < end; ++pair) square += (cost_of(pair) - mean) * (cost_of(pair) - mean);
    const double deviation = std::sqrt(square / g.parents + 1e-8 + g.cost_floor * size * g.cost_floor * size);
    double rounding = g.epsilon * whole;
    if (g.share_before)
      rounding += std::min(readable(g.share_before)[row] * deviation, readable(g.logit_before)[row] * whole);
    const double divisor = std::max(deviation, rounding / g.resolved);
    if (g.share_after) {
      writable(g.share_after)[row] = T(rounding / deviation);
      writable(g.logit_after)[row] = T(std::abs(g.temperature) * rounding / divisor);
    }
    return {mean, size, deviation, divisor, deviation >= rounding / g.resolved};
  }

  T inverse(int64_t pair) const {
    const T mass = readable(g.mass)[pair];
    return mass <= tiny ? T(0) : T(1) / mass;
  }

  // A vector of the numbers of a parent from `at` on: 0 past its end, and if there is no tensor.
  V load(const void* tensor, int64_t pair, int64_t at) const {
    if (!tensor) return V{};
    const T* from = readable(tensor) + pair * g.H + at;
    if (at + kLanes <= g.H) return load_vector(from);
    V value{};
    std::memcpy(&value, from, (g.H - at) * sizeof(T));
    return value;
  }

  void store(V value, void* tensor, int64_t pair, int64_t at) const {
    if (tensor) std::memcpy(writable(tensor) + pair * g.H + at, &value, std::min<int64_t>(kLanes, g.H - at) * sizeof(T));
  }

  void fit(int64_t pair) const {
    const T one = inverse(pair);
    T total = 0;
    for (int64_t at = 0; at < g.H; at += kLanes) {
      V variance = load(g.scatter, pair, at) * one + T(g.floor);
      store(load(g.sum, pair, at) * one, g.mean, pair, at);
      store(variance, g.variance, pair, at);
      store(T(1) / variance, g.precision, pair, at);
      for (int64_t lane = g.H - at; lane < kLanes; ++lane) variance[lane] = T(1);
      total += lane_sum<T>(logarithm(variance));
    }
    writable(g.log_determinant)[pair] = total;
  }

  // Arguments: the gradients of the logarithm of the determinant, and of the mass beside what comes through the Gaussian.
  void fit_backward(int64_t pair, T along, T beside) const {
    const T one = inverse(pair);
    V flow{};  // the gradient of the mass
    for (int64_t at = 0; at < g.H; at += kLanes) {
      const V precision = load(g.precision, pair, at);
      const V mean = load(g.grad_mean, pair, at) * one;
      V variance = (along - load(g.grad_precision, pair, at) * precision) * precision + load(g.grad_variance, pair, at);
      variance *= one;
      flow -= mean * load(g.mean, pair, at) + variance * (load(g.scatter, pair, at) * one);
      store(mean, g.grad_sum, pair, at);
      store(variance, g.grad_scatter, pair, at);
    }
    writable(g.grad_mass)[pair] = lane_sum<T>(flow) + beside;
  }
};

}  // namespace
