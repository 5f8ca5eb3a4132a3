// Vector poses under inner products, few rows: the numbers of a parent's pose lie in the lanes, so that a batch of one fills
// them, and a transform is read from memory as it lies there.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "vector_call.hpp"

namespace {

template <typename T, int P_, int D_>
struct FewRows : VectorCall<T, P_, D_> {
  using Base = VectorCall<T, P_, D_>;
  using V = Vec<T>;
  using Base::call, Base::D, Base::J, Base::P, Base::rows;
  static constexpr int kLanes = Lanes<T>::count;
  static constexpr int kColumns = 8;  // rows of a transform that are held at once

  const int vectors, groups;  // of a parent's pose; of the parents' logits, with a parent in each lane

  explicit FewRows(const Call& call)
      : Base(call), vectors(call.D / kLanes), groups((call.J + kLanes - 1) / kLanes) {}

  static bool suits(const Call& call) {
    const bool plain = !call.sites && !call.hard && !call.coordinates && !call.log_partition && !call.shared;
    return Base::suits(call) && plain && call.images <= kLanes / 4 && call.P % kColumns == 0 && call.D % kLanes == 0;
  }

  void moments() const { this->moments_by(*this); }
  void backward() const { this->backward_by(*this, 1); }

  int64_t poses() const { return rows * J * vectors; }
  int64_t pose(int64_t b, int j) const { return (b * J + j) * vectors; }
  const T* child(int64_t b, int i) const { return this->readable(call.children) + (b * this->I + i) * P; }
  T weight(int64_t b, int i) const { return call.weights ? this->readable(call.weights)[b * this->I + i] : T(1); }

  // The parents' poses of all rows.
  void load_poses(const void* tensor, std::vector<V>& out) const {
    out.resize(poses());
    std::memcpy(out.data(), tensor, poses() * sizeof(V));
  }

  // One number a parent, of all rows, a parent in each lane; 0 in the lanes behind.
  void load_numbers(const void* tensor, std::vector<V>& out) const {
    out.assign(rows * groups, V{});
    for (int64_t b = 0; b < rows; ++b) std::memcpy(&out[b * groups], this->readable(tensor) + b * J, J * sizeof(T));
  }

  // The sums over the lanes of products [b, J, vectors], a parent in each lane.
  void fold_parents(const V* products, V* out) const {
    for (int group = 0; group < groups; ++group) {
      V some[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) {
        const int j = group * kLanes + lane;
        some[lane] = j < J ? products[j] : V{};
      }
      fold_all<T, kLanes / 2>(some);
      out[group] = some[0];
    }
  }

  // Logits to assignment probabilities, in place; 0 in the lanes behind.
  void assign_parents(V* logits) const {
    typedef typename Lanes<T>::Int Int;
    typename Lanes<T>::Mask place;
    for (int lane = 0; lane < kLanes; ++lane) place[lane] = static_cast<Int>((groups - 1) * kLanes + lane);
    V& last = logits[groups - 1];
    last = place < static_cast<Int>(J) ? last : splat(-std::numeric_limits<T>::infinity());
    V peaks = logits[0];
    for (int group = 1; group < groups; ++group) peaks = larger<T>(logits[group], peaks);
    T peak = lane_fold<T>(peaks, [](V a, V b) { return larger<T>(a, b); });
    if (call.orphan) peak = std::max(peak, T(0));
    V total{};
    for (int group = 0; group < groups; ++group) total += logits[group] = exponential_below(logits[group] - peak);
    T sum = lane_fold<T>(total, [](V a, V b) { return a + b; });
    if (call.orphan) sum += exponential(splat(-peak))[0];
    for (int group = 0; group < groups; ++group) logits[group] *= T(1) / sum;
  }

  // Votes of child i, [b, J, vectors], and the sums of their products with some fields, [b, J].
  template <size_t fields>
  void form(int i, V* votes, const std::array<const V*, fields> with, const std::array<V*, fields> products) const {
    for (auto* out : products) std::fill_n(out, rows * J, V{});
    for (int j = 0; j < J; ++j)
      for (int n = 0; n < vectors; ++n) {
        const T* w = this->transform(i, j) + n * kLanes;
        for (int first = 0; first < P; first += kColumns) {
          V column[kColumns];
#pragma GCC unroll 8
          for (int p = 0; p < kColumns; ++p) {
            column[p] = load_vector(w + (first + p) * D);
            __builtin_prefetch(w + (first + p) * D + 2 * J * P * D);
          }
          for (int64_t b = 0; b < rows; ++b) {
            const T* u = child(b, i) + first;
            V& out = votes[pose(b, j) + n];
            V even = first ? out : V{}, odd{};
#pragma GCC unroll 8
            for (int p = 0; p < kColumns; p += 2) even += u[p] * column[p], odd += u[p + 1] * column[p + 1];
            out = even + odd;
          }
        }
        for (size_t one = 0; one < fields; ++one)
          for (int64_t b = 0; b < rows; ++b) products[one][b * J + j] += votes[pose(b, j) + n] * with[one][pose(b, j) + n];
      }
  }

  struct Forward {
    const FewRows& k;
    std::vector<V> centre, votes, products, logits, mass, sum;

    explicit Forward(const FewRows& k)
        : k(k), votes(k.poses()), products(k.rows * k.J), logits(k.groups), mass(k.rows * k.groups), sum(k.poses()) {
      if (k.compares) k.load_poses(k.call.parents, centre);
    }

    void children_of(const Part& part, T* mass_out, T* sum_out) {
      for (int i = part.first; i < part.last; ++i) k.uniform ? share_evenly(i) : route(i);
      for (int64_t b = 0; b < k.rows; ++b) std::memcpy(mass_out + b * k.J, &mass[b * k.groups], k.J * sizeof(T));
      std::memcpy(sum_out, sum.data(), k.poses() * sizeof(V));
    }

    void route(int i) {
      k.template form<1>(i, votes.data(), {centre.data()}, {products.data()});
      for (int64_t b = 0; b < k.rows; ++b) {
        k.fold_parents(products.data() + b * k.J, logits.data());
        k.assign_parents(logits.data());
        const T weight = k.weight(b, i);
        for (int group = 0; group < k.groups; ++group) mass[b * k.groups + group] += logits[group] *= weight;
        const T* share = reinterpret_cast<const T*>(logits.data());
        for (int j = 0; j < k.J; ++j)
          for (int n = 0; n < k.vectors; ++n) sum[k.pose(b, j) + n] += share[j] * votes[k.pose(b, j) + n];
      }
    }

    void share_evenly(int i) {
      k.template form<0>(i, votes.data(), {}, {});
      for (int64_t b = 0; b < k.rows; ++b) {
        const T share = k.weight(b, i) / (k.J + k.call.orphan);
        for (int group = 0; group < k.groups; ++group) mass[b * k.groups + group] += share;
        for (int64_t n = k.pose(b, 0); n < k.pose(b + 1, 0); ++n) sum[n] += share * votes[n];
      }
    }
  };

  struct Backward {
    const FewRows& k;
    T *grad_transforms, *grad_parents;
    std::vector<V> centre, up_mass, up_sum, d_centre;
    std::vector<V> votes, logit, worth, share, flow, g, du;

    Backward(const FewRows& k, T* grad_transforms, T*, T* grad_parents)
        : k(k), grad_transforms(grad_transforms), grad_parents(grad_parents), votes(k.poses()), logit(k.rows * k.J),
          worth(k.rows * k.J), share(k.rows * k.groups), flow(k.rows * k.groups), g(k.poses()),
          du((k.rows * k.P + kLanes - 1) / kLanes * kLanes) {
      if (k.compares) {
        k.load_poses(k.call.parents, centre);
        d_centre.resize(k.poses());
      }
      k.load_numbers(k.call.mass, up_mass);
      k.load_poses(k.call.sum, up_sum);
    }

    void children_of(const Part& part) {
      for (int i = part.first; i < part.last; ++i) {
        k.compares ? compare(i) : share_evenly(i);
        pass_to_transforms(i);
        pass_to_pose(i);
      }
      if (k.compares) std::memcpy(grad_parents, d_centre.data(), k.poses() * sizeof(V));
    }

    // The gradients of votes that were shared out evenly; of their worth the pose's gradient knows.
    void share_evenly(int i) {
      const bool weighs = k.call.weights;
      if (weighs) k.template form<1>(i, votes.data(), {up_sum.data()}, {worth.data()});
      for (int64_t b = 0; b < k.rows; ++b) {
        const T probability = T(1) / (k.J + k.call.orphan), even = probability * k.weight(b, i);
        for (int64_t n = k.pose(b, 0); n < k.pose(b + 1, 0); ++n) g[n] = even * up_sum[n];
        if (!weighs) continue;
        V total{};
        for (int j = 0; j < k.J; ++j) total += worth[b * k.J + j];
        for (int group = 0; group < k.groups; ++group) total += up_mass[b * k.groups + group];
        k.writable(k.call.grad_weights)[b * k.I + i] += probability * lane_sum<T>(total);
      }
    }

    // The gradients of the votes of child i, and what they pass on to the parents.
    void compare(int i) {
      k.template form<2>(i, votes.data(), {centre.data(), up_sum.data()}, {logit.data(), worth.data()});
      for (int64_t b = 0; b < k.rows; ++b) {
        V *R = share.data() + b * k.groups, *f = flow.data() + b * k.groups;
        k.fold_parents(logit.data() + b * k.J, R);
        k.fold_parents(worth.data() + b * k.J, f);
        k.assign_parents(R);
        V products{};
        for (int group = 0; group < k.groups; ++group) {
          f[group] += up_mass[b * k.groups + group];
          products += R[group] * f[group];
        }
        const T weight = k.weight(b, i), inflow = lane_fold<T>(products, [](V a, V b) { return a + b; });
        if (k.call.weights) k.writable(k.call.grad_weights)[b * k.I + i] += inflow;
        for (int group = 0; group < k.groups; ++group) {
          R[group] *= weight;
          f[group] = R[group] * (f[group] - inflow);
        }
        const T *r = reinterpret_cast<const T*>(R), *s = reinterpret_cast<const T*>(f);
        for (int j = 0; j < k.J; ++j)
          for (int64_t n = k.pose(b, j); n < k.pose(b, j + 1); ++n) {
            g[n] = r[j] * up_sum[n] + s[j] * centre[n];
            d_centre[n] += s[j] * votes[n];
          }
      }
    }

    // dW_ij += sum over rows of u_i^T dV_ij
    void pass_to_transforms(int i) {
      for (int j = 0; j < k.J; ++j)
        for (int n = 0; n < k.vectors; ++n)
          for (int first = 0; first < k.P; first += kColumns) {
            V column[kColumns] = {};
            for (int64_t b = 0; b < k.rows; ++b) {
              const V gradient = g[k.pose(b, j) + n];
              const T* u = k.child(b, i) + first;
#pragma GCC unroll 8
              for (int p = 0; p < kColumns; ++p) column[p] += u[p] * gradient;
            }
            T* out = grad_transforms + ((int64_t{i} * k.J + j) * k.P + first) * k.D + n * kLanes;
#pragma GCC unroll 8
            for (int p = 0; p < kColumns; ++p) store_vector<T>(column[p], out + p * k.D);
          }
    }

    // du_i += W_ij dV_ij
    void pass_to_pose(int i) {
      for (int64_t b = 0; b < k.rows; ++b)
        for (int first = 0; first < k.P; first += kColumns) {
          V total[kColumns] = {};
          for (int j = 0; j < k.J; ++j)
            for (int n = 0; n < k.vectors; ++n) {
              const V gradient = g[k.pose(b, j) + n];
              const T* w = k.transform(i, j) + first * k.D + n * kLanes;
#pragma GCC unroll 8
              for (int p = 0; p < kColumns; ++p) total[p] += gradient * load_vector(w + p * k.D);
            }
#pragma GCC unroll 8
          for (int p = 0; p < kColumns; ++p) du[b * k.P + first + p] = total[p];
        }
      const int64_t numbers = k.rows * k.P;
      for (int64_t at = 0; at < numbers; at += kLanes) {
        fold_all<T, kLanes / 2>(du.data() + at);
        for (int64_t n = at; n < std::min<int64_t>(at + kLanes, numbers); ++n)
          k.writable(k.call.grad_children)[(n / k.P * k.I + i) * k.P + n % k.P] = du[at][n - at];
      }
    }
  };
};

}  // namespace
