// Vector poses under inner products, few rows: the numbers of a parent's pose lie in the lanes, so that a batch of one fills
// them, and a transform is read in the order of its memory. Logits have a pair of a child and a row in each lane: as many
// children are processed at a time as fill the lanes.
// Loop nest: groups of children, parents, vectors of a pose, rows.
#pragma once

#include <algorithm>
#include <array>
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

  const int vectors, together;  // in a parent's pose; children processed at a time
  const int64_t field;          // vectors of all parents of all rows

  explicit FewRows(const Call& call)
      : Base(call), vectors(call.D / kLanes), together(kLanes / call.images), field(call.images * call.J * vectors) {}

  static bool suits(const Call& call) {
    const bool plain = !call.sites && !call.hard && !call.coordinates && !call.log_partition && !call.shared;
    return Base::suits(call) && plain && call.images <= Base::kFew && call.P % kColumns == 0 && call.D % kLanes == 0;
  }

  void moments() const { this->moments_by(*this); }
  void flow() const { this->flow_by(*this); }
  void pass_on() const { this->pass_on_by(*this); }

  // Where the pose of parent j of row b begins.
  int64_t pose(int64_t b, int j) const { return (b * J + j) * vectors; }
  const T* child(int64_t b, int i) const { return this->readable(call.children) + (b * this->I + i) * P; }

  std::vector<V> poses_of(const void* tensor) const {
    std::vector<V> out(field);
    std::memcpy(out.data(), tensor, field * sizeof(V));
    return out;
  }

  // a_i of some children, a pair in each lane; 0 in lanes without one.
  V weights_of(int start, int count) const {
    V out{};
    for (int i = 0; i < count; ++i)
      for (int64_t b = 0; b < rows; ++b)
        out[i * rows + b] = call.weights ? this->readable(call.weights)[b * this->I + start + i] : T(1);
    return out;
  }

  // Where the votes of some children are kept, or scratch memory if they are not.
  V* kept(int start, std::vector<V>& scratch) const {
    return call.votes ? reinterpret_cast<V*>(this->writable(call.votes)) + start * field : scratch.data();
  }

  // Forms the votes of some children, [count, b, J, vectors], unless they are formed already, and their inner products with
  // some fields, [J] with a pair in each lane.
  template <size_t fields>
  void form(int start, int count, V* votes, const std::array<const V*, fields> with, const std::array<V*, fields> products) const {
    for (int j = 0; j < J; ++j) {
      V product[fields + 1][kLanes];
      for (size_t one = 0; one < fields; ++one) std::fill(product[one] + count * rows, product[one] + kLanes, V{});
      for (int i = 0; i < count; ++i)
        for (int n = 0; n < vectors; ++n) {
          if (!call.formed) form_pose(start + i, j, n, votes + i * field + j * vectors + n);
          for (int64_t b = 0; b < rows; ++b)
            for (size_t one = 0; one < fields; ++one) {
              V& sum = product[one][i * rows + b];
              sum = (n ? sum : V{}) + votes[i * field + pose(b, j) + n] * with[one][pose(b, j) + n];
            }
        }
      for (size_t one = 0; one < fields; ++one) {
        fold_all<T, kLanes / 2>(product[one]);
        products[one][j] = product[one][0];
      }
    }
  }

  // One vector of a child's vote for parent j, in all rows.
  inline void form_pose(int i, int j, int n, V* out) const {
    const T* w = this->transform(i, j) + n * kLanes;
    for (int first = 0; first < P; first += kColumns) {
      V column[kColumns];
#pragma GCC unroll 8
      for (int p = 0; p < kColumns; ++p) {
        column[p] = load_vector(w + (first + p) * D);
        __builtin_prefetch(w + (first + p) * D + together * J * P * D);
      }
      for (int64_t b = 0; b < rows; ++b) {
        const T* u = child(b, i) + first;
        V even = first ? out[pose(b, 0)] : V{}, odd{};
#pragma GCC unroll 8
        for (int p = 0; p < kColumns; p += 2) even += u[p] * column[p], odd += u[p + 1] * column[p + 1];
        out[pose(b, 0)] = even + odd;
      }
    }
  }

  // Adds the votes of some children, times a factor of each pair, [J] with a pair in each lane.
  void add_votes(int count, const V* votes, const V* factors, V* sums) const {
    for (int64_t b = 0; b < rows; ++b)
      for (int j = 0; j < J; ++j)
        for (int64_t n = pose(b, j); n < pose(b, j + 1); ++n) {
          V total = sums[n];
          for (int i = 0; i < count; ++i) total += factors[j][i * rows + b] * votes[i * field + n];
          sums[n] = total;
        }
  }

  struct Forward {
    const FewRows& k;
    std::vector<V> centre, scratch, share, mass, sum;

    explicit Forward(const FewRows& k)
        : k(k), scratch(k.call.votes ? 0 : k.together * k.field), share(k.J), mass(k.J), sum(k.field) {
      if (k.compares) centre = k.poses_of(k.call.parents);
    }

    void children_of(const Part& part, T* mass_out, T* sum_out) {
      for (int start = part.first; start < part.last; start += k.together)
        some_children(start, std::min(k.together, part.last - start));
      for (int64_t b = 0; b < k.rows; ++b)
        for (int j = 0; j < k.J; ++j) {
          mass_out[b * k.J + j] = 0;
          for (int i = 0; i < k.together; ++i) mass_out[b * k.J + j] += mass[j][i * k.rows + b];
        }
      std::memcpy(sum_out, sum.data(), k.field * sizeof(V));
    }

    void some_children(int start, int count) {
      V* votes = k.kept(start, scratch);
      if (k.compares) {
        k.template form<1>(start, count, votes, {centre.data()}, {share.data()});
        k.assign(share.data(), 1, nullptr);
      } else {
        k.template form<0>(start, count, votes, {}, {});
        std::fill(share.begin(), share.end(), splat(T(1) / (k.J + k.call.leaky)));
      }
      const V weights = k.weights_of(start, count);
      for (int j = 0; j < k.J; ++j) mass[j] += share[j] *= weights;
      k.add_votes(count, votes, share.data(), sum.data());
    }
  };

  // Shares and gradients of the logits, and from these the gradients of the parents and of the children's activations.
  struct Flow {
    const FewRows& k;
    T* grad_parents;
    std::vector<V> centre, up_mass, up_sum, d_centre;
    std::vector<V> scratch, share, gradient;

    Flow(const FewRows& k, T* grad_parents)
        : k(k), grad_parents(grad_parents), up_mass(k.J), up_sum(k.poses_of(k.call.sum)),
          scratch(k.call.votes ? 0 : k.together * k.field), share(k.J), gradient(k.J) {
      if (k.compares) centre = k.poses_of(k.call.parents);
      if (grad_parents) d_centre.resize(k.field);
      for (int j = 0; j < k.J; ++j)
        for (int lane = 0; lane < k.together * k.rows; ++lane)
          up_mass[j][lane] = k.readable(k.call.mass)[lane % k.rows * k.J + j];
    }

    void children_of(const Part& part) {
      for (int start = part.first; start < part.last; start += k.together) {
        const int count = std::min(k.together, part.last - start);
        k.compares ? compare(start, count) : share_evenly(start, count);
      }
      if (grad_parents) std::memcpy(grad_parents, d_centre.data(), k.field * sizeof(V));
    }

    void share_evenly(int start, int count) {
      const T even = T(1) / (k.J + k.call.leaky);
      put(start, count, 0, 1, even * k.weights_of(start, count), k.call.shares);
      if (!k.call.grad_weights) return;
      k.template form<1>(start, count, k.kept(start, scratch), {up_sum.data()}, {gradient.data()});
      V grad_sum_of_shares{};
      for (int j = 0; j < k.J; ++j) grad_sum_of_shares += gradient[j] + up_mass[j];
      put_weights(start, count, even * grad_sum_of_shares);
    }

    void compare(int start, int count) {
      V* votes = k.kept(start, scratch);
      k.template form<2>(start, count, votes, {centre.data(), up_sum.data()}, {share.data(), gradient.data()});
      k.assign(share.data(), 1, nullptr);
      const V weights = k.weights_of(start, count);
      V inflow{};
      for (int j = 0; j < k.J; ++j) inflow += share[j] * (gradient[j] += up_mass[j]);
      if (k.call.grad_weights) put_weights(start, count, inflow);
      for (int j = 0; j < k.J; ++j) {
        share[j] *= weights;
        gradient[j] = share[j] * (gradient[j] - inflow);
        put(start, count, j, k.J, share[j], k.call.shares);
        put(start, count, j, k.J, gradient[j], k.call.flow);
      }
      if (grad_parents) k.add_votes(count, votes, gradient.data(), d_centre.data());
    }

    // Stores the coefficients of some children for parent j, given with a pair in each lane.
    void put(int start, int count, int j, int64_t parents, V values, void* tensor) const {
      if (!tensor) return;
      for (int i = 0; i < count; ++i) {
        T* to = k.writable(tensor) + k.coefficient(0, start + i, j, parents);
        for (int64_t b = 0; b < k.rows; ++b) to[b] = values[i * k.rows + b];
      }
    }

    void put_weights(int start, int count, V gradient) const {
      for (int i = 0; i < count; ++i)
        for (int64_t b = 0; b < k.rows; ++b) k.writable(k.call.grad_weights)[b * k.I + start + i] = gradient[i * k.rows + b];
    }
  };

  // The gradients of the votes, from the terms of all steps, and from these those of children and transforms.
  struct PassOn {
    const FewRows& k;
    T* grad_transforms;
    std::vector<std::vector<V>> constants;  // of each term
    std::vector<V> gradients, du;

    PassOn(const FewRows& k, T* grad_transforms, T*)
        : k(k), grad_transforms(grad_transforms), gradients(k.field), du((k.rows * k.P + kLanes - 1) / kLanes * kLanes) {
      for (int64_t t = 0; t < k.call.count; ++t) constants.push_back(k.poses_of(k.call.terms[t].constant));
    }

    void children_of(const Part& part) {
      for (int i = part.first; i < part.last; ++i) {
        gradients_of(i);
        if (grad_transforms) pass_to_transforms(i);
        if (k.call.grad_children) pass_to_pose(i);
      }
    }

    void gradients_of(int i) {
      std::fill(gradients.begin(), gradients.end(), V{});
      for (int64_t t = 0; t < k.call.count; ++t) {
        const auto& term = k.call.terms[t];
        const T* from = k.readable(term.coefficient) + k.coefficient(0, i, 0, term.parents);
        const V* constant = constants[t].data();
        for (int64_t b = 0; b < k.rows; ++b)
          for (int j = 0; j < k.J; ++j) {
            const T r = from[(term.parents > 1 ? j : 0) * k.next_parent() + b];
            for (int64_t n = k.pose(b, j); n < k.pose(b, j + 1); ++n) gradients[n] += r * constant[n];
          }
      }
    }

    // dW_ij = sum over rows of u_i^T dV_ij
    void pass_to_transforms(int i) {
      for (int j = 0; j < k.J; ++j)
        for (int n = 0; n < k.vectors; ++n)
          for (int first = 0; first < k.P; first += kColumns) {
            V column[kColumns] = {};
            for (int64_t b = 0; b < k.rows; ++b) {
              const V gradient = gradients[k.pose(b, j) + n];
              const T* u = k.child(b, i) + first;
#pragma GCC unroll 8
              for (int p = 0; p < kColumns; ++p) column[p] += u[p] * gradient;
            }
            T* out = grad_transforms + ((int64_t{i} * k.J + j) * k.P + first) * k.D + n * kLanes;
#pragma GCC unroll 8
            for (int p = 0; p < kColumns; ++p) stream_vector<T>(column[p], out + p * k.D);
          }
    }

    // du_i = sum over parents of W_ij dV_ij
    void pass_to_pose(int i) {
      for (int64_t b = 0; b < k.rows; ++b)
        for (int first = 0; first < k.P; first += kColumns) {
          V total[kColumns] = {};
          for (int j = 0; j < k.J; ++j)
            for (int n = 0; n < k.vectors; ++n) {
              const V gradient = gradients[k.pose(b, j) + n];
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
