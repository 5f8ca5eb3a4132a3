// Vector poses under inner products, rows in the lanes: the votes of a child for all parents are formed once a pass, and lie
// in the nearest cache until they are added up.
//
// Some blocks of rows pass by while the transforms of some children are at hand, so that these come from memory once.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "vector_call.hpp"

namespace {

template <typename T, int P_, int D_>
struct ManyRows : VectorCall<T, P_, D_> {
  using Base = VectorCall<T, P_, D_>;
  using V = Vec<T>;
  using Base::call, Base::D, Base::I, Base::J, Base::P;
  static constexpr int kLanes = Lanes<T>::count;
  static constexpr int kBlocks = 8;
  static constexpr int kChildren = 8;  // loaded at once
  static constexpr int kPair = 2;      // children whose votes are held at once

  using Base::Base;

  void moments() const { this->moments_by(*this); }
  void backward() const { this->backward_by(*this, std::min<int64_t>(call.images, call.threads)); }

  // `tile` numbers of each vote V_ij = u_i W_ij + c_i of a child, from the number `at` on, and what they add to its inner
  // products with some vectors of its parent.
  template <int tile, size_t products>
  __attribute__((noinline)) void form(const V* u, int i, int at, V* votes, const std::array<const V*, products> with,
                                      const std::array<V*, products> product) const {
    const T *w = this->transform(i, 0) + at, *offset = this->offset(i);
    const int64_t next = int64_t{J} * P * D;  // the transforms of the next child are called for meanwhile
    for (int j = 0; j < J; ++j, w += P * D) {
      V sum[tile];
#pragma GCC unroll 16
      for (int d = 0; d < tile; ++d) sum[d] = V{};
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const V pose = u[p];
        const T* row = w + p * D;
        __builtin_prefetch(row + next);
#pragma GCC unroll 16
        for (int d = 0; d < tile; ++d) sum[d] += pose * row[d];
      }
      if (offset)
        for (int d = 0; d < tile; ++d) sum[d] += offset[at + d];
      const int64_t place = int64_t{j} * D + at;
      for (size_t one = 0; one < products; ++one) {
        V even{}, odd{};  // two sums, so that no addition waits for the one before
#pragma GCC unroll 16
        for (int d = 0; d < tile; ++d) (d & 1 ? odd : even) += sum[d] * with[one][place + d];
        product[one][j] += even + odd;
      }
#pragma GCC unroll 16
      for (int d = 0; d < tile; ++d) votes[place + d] = sum[d];
    }
  }

  template <size_t products>
  void form_votes(const V* u, int i, V* votes, const std::array<const V*, products> with,
                  const std::array<V*, products> product) const {
    int at = 0;
    for (; at + 16 <= D; at += 16) form<16, products>(u, i, at, votes, with, product);
    for (; at + 8 <= D; at += 8) form<8, products>(u, i, at, votes, with, product);
    for (; at + 4 <= D; at += 4) form<4, products>(u, i, at, votes, with, product);
  }

  void load_children(int64_t row, int64_t end, int start, int count, V* u) const {
    if (this->adjacent(start, count)) return this->load_child(call.children, row, end, start, P, u, count);
    for (int i = 0; i < count; ++i) this->load_child(call.children, row, end, start + i, P, u + i * P);
  }

  // The gradients of children that windows share are added to what is there.
  void put_children(const V* du, int64_t row, int64_t end, int start, int count) const {
    if (!call.sites) return this->template add_child<false>(du, row, end, start, P, call.grad_children, count);
    if (this->adjacent(start, count)) return this->add_child(du, row, end, start, P, call.grad_children, count);
    for (int i = 0; i < count; ++i) this->add_child(du + i * P, row, end, start + i, P, call.grad_children);
  }

  // R_ij of some children that are shared out evenly, and a_i times that.
  void even_shares(int64_t row, int64_t end, int start, int count, V* probability, V* share) const {
    for (int i = 0; i < count; ++i) probability[i] = splat(T(1) / (J + call.orphan));
    if (call.log_partition) {
      this->load_each(call.log_partition, row, end, start, count, probability);
      for (int i = 0; i < count; ++i) probability[i] = exponential(-probability[i]);
    }
    if (call.weights) this->load_each(call.weights, row, end, start, count, share);
    for (int i = 0; i < count; ++i) share[i] = call.weights ? share[i] * probability[i] : probability[i];
  }

  struct Forward {
    const ManyRows& k;
    std::vector<V> centre, mass, sum, u, votes, share;  // the first three of each block

    explicit Forward(const ManyRows& k) : k(k) {
      const size_t field = size_t(kBlocks) * k.J * k.D;
      if (k.compares) centre.resize(field);
      mass.resize(kBlocks * k.J), sum.resize(field);
      u.resize(kChildren * k.P), votes.resize(kPair * k.J * k.D), share.resize(kPair * k.J);
    }

    // Mass and sum over the children of a part, for its rows.
    void children_of(const Part& part, T* mass_out, T* sum_out) {
      for (int64_t row = part.row; row < part.end; row += kBlocks * kLanes) {
        const int count = static_cast<int>(std::min<int64_t>(kBlocks, k.blocks(part.end - row)));
        const int64_t field = int64_t{k.J} * k.D;
        for (int b = 0; b < count && k.compares; ++b)
          k.load(k.call.parents, row + b * kLanes, part.end, field, centre.data() + b * field);
        std::fill(mass.begin(), mass.end(), V{});
        std::fill(sum.begin(), sum.end(), V{});
        for (int start = part.first; start < part.last; start += kChildren)
          for (int b = 0; b < count; ++b)
            some_children(start, std::min(kChildren, part.last - start), row + b * kLanes, part.end, b);
        for (int b = 0; b < count; ++b) {
          k.store(mass.data() + b * k.J, row + b * kLanes, part.end, k.J, mass_out);
          k.store(sum.data() + b * field, row + b * kLanes, part.end, field, sum_out);
        }
      }
    }

    void some_children(int start, int count, int64_t row, int64_t end, int b) {
      k.load_children(row, end, start, count, u.data());
      if (k.uniform) return share_evenly(start, count, row, end, b);
      const V* centres = centre.data() + int64_t{b} * k.J * k.D;
      for (int i = 0; i < count; i += kPair) {
        const int both = std::min(kPair, count - i);
        std::fill(share.begin(), share.end(), V{});
        for (int one = 0; one < both; ++one) compare(start + i + one, one, u.data() + (i + one) * k.P, centres);
        k.share_out(share.data(), row, end, start + i, both);
        V *masses = mass.data() + b * k.J, *sums = sum.data() + int64_t{b} * k.J * k.D;
        both == kPair ? add_up<kPair>(masses, sums) : add_up<1>(masses, sums);
      }
    }

    void share_evenly(int start, int count, int64_t row, int64_t end, int b) {
      V probability[kChildren], even[kChildren], total{};
      k.even_shares(row, end, start, count, probability, even);
      for (int i = 0; i < count; ++i) {
        total += even[i];
        for (int p = 0; p < k.P; ++p) u[i * k.P + p] *= even[i];
      }
      for (int j = 0; j < k.J; ++j) mass[b * k.J + j] += total;
      V* sums = sum.data() + int64_t{b} * k.J * k.D;
      int at = 0;
      for (; at + 16 <= k.D; at += 16) add_transformed<16>(start, count, at, sums);
      for (; at + 8 <= k.D; at += 8) add_transformed<8>(start, count, at, sums);
      for (; at + 4 <= k.D; at += 4) add_transformed<4>(start, count, at, sums);
    }

    // u_i W_ij of some children, `tile` numbers of it.
    template <int tile>
    __attribute__((noinline)) void add_transformed(int start, int count, int at, V* sums) {
      const int64_t child = int64_t{k.J} * k.P * k.D;
      for (int j = 0; j < k.J; ++j) {
        V total[tile];
        V* s = sums + j * k.D + at;
#pragma GCC unroll 16
        for (int d = 0; d < tile; ++d) total[d] = s[d];
        const T* w = k.transform(start, j) + at;
        for (int i = 0; i < count; ++i, w += k.call.shared ? 0 : child)
#pragma GCC unroll 8
          for (int p = 0; p < k.P; ++p) {
            const V pose = u[i * k.P + p];
            const T* row = w + p * k.D;
            __builtin_prefetch(row + kChildren * child);
#pragma GCC unroll 16
            for (int d = 0; d < tile; ++d) total[d] += pose * row[d];
          }
#pragma GCC unroll 16
        for (int d = 0; d < tile; ++d) s[d] = total[d];
      }
    }

    void compare(int i, int one, const V* pose, const V* centres) {
      V* v = votes.data() + int64_t{one} * k.J * k.D;
      if (k.compares) {
        k.template form_votes<1>(pose, i, v, {centres}, {share.data() + one * k.J});
      } else {
        k.template form_votes<0>(pose, i, v, {}, {});
      }
    }

    template <int children>
    __attribute__((noinline)) void add_up(V* masses, V* sums) {
      for (int j = 0; j < k.J; ++j) {
        V r[children];
        for (int i = 0; i < children; ++i) masses[j] += r[i] = share[i * k.J + j];
        const V* v = votes.data() + j * k.D;
        V* s = sums + j * k.D;
        for (int d = 0; d < k.D; d += 4)
#pragma GCC unroll 4
          for (int n = d; n < d + 4; ++n) {
            V total = s[n];
            for (int i = 0; i < children; ++i) total += r[i] * v[i * k.J * k.D + n];
            s[n] = total;
          }
      }
    }
  };

  struct Backward {
    const ManyRows& k;
    T *grad_transforms, *grad_coordinates, *grad_parents;
    const bool compares;  // and passes gradients to what it compares with
    std::vector<V> centre, up_mass, up_sum, d_centre;  // of each block
    std::vector<V> u, du, votes, share, flow, d_offset;
    std::vector<T> nowhere, weighted;  // the pose of a row that is not there; poses times their shares
    const T* poses[kLanes];
    bool first_rows = true;  // that reach a transform: its gradient is not there yet

    Backward(const ManyRows& k, T* grad_transforms, T* grad_coordinates, T* grad_parents)
        : k(k), grad_transforms(grad_transforms), grad_coordinates(grad_coordinates), grad_parents(grad_parents),
          compares(k.compares && !k.call.hard) {
      const size_t field = size_t(kBlocks) * k.J * k.D;
      if (k.compares) centre.resize(field), d_centre.resize(field);
      up_mass.resize(kBlocks * k.J), up_sum.resize(field);
      u.resize(kChildren * k.P), du.resize(kChildren * k.P);
      votes.resize(k.J * k.D), share.resize(k.J), flow.resize(k.J), d_offset.resize(k.D);
      nowhere.resize(k.P), weighted.resize(kLanes * k.P);
    }

    void children_of(const Part& part) {
      for (int64_t row = part.row; row < part.end; row += kBlocks * kLanes) {
        const int count = static_cast<int>(std::min<int64_t>(kBlocks, k.blocks(part.end - row)));
        const int64_t field = int64_t{k.J} * k.D;
        for (int b = 0; b < count; ++b) {
          const int64_t first = row + b * kLanes;
          if (k.compares) k.load(k.call.parents, first, part.end, field, centre.data() + b * field);
          k.load(k.call.mass, first, part.end, k.J, up_mass.data() + b * k.J);
          k.load(k.call.sum, first, part.end, field, up_sum.data() + b * field);
        }
        std::fill(d_centre.begin(), d_centre.end(), V{});
        for (int start = part.first; start < part.last; start += kChildren)
          for (int b = 0; b < count; ++b) {
            first_rows = row == part.row && b == 0 && !k.call.shared;
            some_children(start, std::min(kChildren, part.last - start), row + b * kLanes, part.end, b);
          }
        for (int b = 0; b < count && k.compares; ++b)
          k.store(d_centre.data() + b * field, row + b * kLanes, part.end, field, grad_parents);
      }
    }

    void some_children(int start, int count, int64_t row, int64_t end, int b) {
      k.load_children(row, end, start, count, u.data());
      std::fill(du.begin(), du.end(), V{});
      if (k.uniform) return share_evenly(start, count, row, end, b);
      for (int i = 0; i < count; ++i) {
        compare(start + i, u.data() + i * k.P, b);
        flow_of_moments(row, end, start + i);
        for (int lane = 0; lane < kLanes; ++lane)
          poses[lane] = row + lane < end ? k.readable(k.call.children) + k.site(row + lane, start + i) * k.P : nowhere.data();
        std::fill(d_offset.begin(), d_offset.end(), V{});
        pass_on(start + i, b, du.data() + i * k.P);
        if (!grad_coordinates) continue;
        for (int d = 0; d < k.D; ++d) grad_coordinates[int64_t{start + i} * k.D + d] += lane_sum<T>(d_offset[d]);
      }
      k.put_children(du.data(), row, end, start, count);
    }

    // Where each vote's gradient is a_i R_ij times that of the sum, which all children share.
    void share_evenly(int start, int count, int64_t row, int64_t end, int b) {
      V probability[kChildren], even[kChildren], all{};
      k.even_shares(row, end, start, count, probability, even);
      for (int j = 0; j < k.J; ++j) all += up_mass[b * k.J + j];
      for (int i = 0; i < count; ++i) {
        V *pose = u.data() + i * k.P, *d_pose = du.data() + i * k.P;
        for (int p = 0; p < k.P; ++p)
          for (int lane = 0; lane < kLanes; ++lane) weighted[lane * k.P + p] = pose[p][lane] * even[i][lane];
        int at = 0;
        for (; at + kLanes <= k.D; at += kLanes) pass_on_evenly<kLanes>(start + i, b, at, row, end, d_pose);
        if (at < k.D) pass_on_evenly<kLanes / 2>(start + i, b, at, row, end, d_pose);
        V worth = all;
        for (int p = 0; p < k.P; ++p) {
          worth += pose[p] * d_pose[p];
          d_pose[p] *= even[i];
        }
        const V inflow = probability[i] * worth, outflow = -even[i] * worth;
        if (k.call.weights) k.add_child(&inflow, row, end, start + i, 1, k.call.grad_weights);
        if (k.call.log_partition) k.add_child(&outflow, row, end, start + i, 1, k.call.grad_log_partition);
      }
      k.put_children(du.data(), row, end, start, count);
    }

    template <int tile>
    __attribute__((noinline)) void pass_on_evenly(int i, int b, int at, int64_t row, int64_t end, V* d_pose) {
      for (int lane = 0; lane < kLanes; ++lane) poses[lane] = weighted.data() + lane * k.P;
      const T* w = k.transform(i, 0) + at;
      T* dw = grad_transforms + (k.call.shared ? 0 : int64_t{i} * k.J * k.P * k.D) + at;
      const V* s = up_sum.data() + int64_t{b} * k.J * k.D + at;
      for (int j = 0; j < k.J; ++j, s += k.D, w += k.P * k.D, dw += k.P * k.D) {
        pull_all<tile>(s, w, d_pose);
        V g[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) {
          g[lane] = V{};
          if (row + lane < end)
            std::memcpy(&g[lane], k.readable(k.call.sum) + ((row + lane) * k.J + j) * k.D + at, tile * sizeof(T));
        }
        push_all<tile>(g, dw);
      }
    }

    // Logits into `share`, and what a share is worth to the loss into `flow`.
    void compare(int i, const V* pose, int b) {
      const int64_t at = int64_t{b} * k.J * k.D;
      std::fill(share.begin(), share.end(), V{});
      std::copy_n(up_mass.data() + b * k.J, k.J, flow.data());
      if (k.compares) {
        k.template form_votes<2>(pose, i, votes.data(), {centre.data() + at, up_sum.data() + at}, {share.data(), flow.data()});
      } else {
        k.template form_votes<1>(pose, i, votes.data(), {up_sum.data() + at}, {flow.data()});
      }
    }

    // Logits and worth to a_i R_ij and the gradient of the logits.
    void flow_of_moments(int64_t row, int64_t end, int child) {
      k.flow_of_moments(share.data(), flow.data(), row, end, child);
    }

    // The gradients of the votes of child i, and what they pass on to parents, poses and transforms.
    void pass_on(int i, int b, V* d_pose) {
      int at = 0;
      for (; at + kLanes <= k.D; at += kLanes) pass_on_columns<kLanes>(i, b, at, d_pose);
      if (at < k.D) pass_on_columns<kLanes / 2>(i, b, at, d_pose);
    }

    // The same of `tile` numbers of the votes, from the number `at` on.
    template <int tile>
    __attribute__((noinline)) void pass_on_columns(int i, int b, int at, V* d_pose) {
      const T* w = k.transform(i, 0) + at;
      T* dw = grad_transforms + (k.call.shared ? 0 : int64_t{i} * k.J * k.P * k.D) + at;
      const V *v = votes.data() + at, *s = up_sum.data() + int64_t{b} * k.J * k.D + at;
      const V* c = compares ? centre.data() + int64_t{b} * k.J * k.D + at : nullptr;
      V* d_c = compares ? d_centre.data() + int64_t{b} * k.J * k.D + at : nullptr;
      for (int j = 0; j < k.J; ++j, v += k.D, s += k.D, w += k.P * k.D, dw += k.P * k.D) {
        const V r = share[j], f = flow[j];
        V g[kLanes];
#pragma GCC unroll 16
        for (int d = 0; d < kLanes; ++d) g[d] = d < tile ? r * s[d] : V{};
        if (compares) {
#pragma GCC unroll 16
          for (int d = 0; d < tile; ++d) {
            g[d] += f * c[d];
            d_c[d] += f * v[d];
          }
          c += k.D, d_c += k.D;
        }
        if (grad_coordinates)
          for (int d = 0; d < tile; ++d) d_offset[at + d] += g[d];
        pull_all<tile>(g, w, d_pose);
        transpose<T>(g);  // to the numbers of a row in each vector
        push_all<tile>(g, dw);
      }
    }

    template <int tile>
    inline void pull_all(const V* g, const T* w, V* d_pose) const {
      int p = 0;
      for (; p + 8 <= k.P; p += 8) pull<8, tile>(g, w + p * k.D, d_pose + p);
      for (; p < k.P; ++p) pull<1, tile>(g, w + p * k.D, d_pose + p);
    }

    template <int tile>
    inline void push_all(const V* g, T* dw) const {
      int p = 0;
      for (; p + 8 <= k.P; p += 8) push<8, tile>(g, p, dw + p * k.D);
      for (; p < k.P; ++p) push<1, tile>(g, p, dw + p * k.D);
    }

    // du_i += W_ij dV_ij, some numbers of the pose.
    template <int count, int tile>
    inline void pull(const V* g, const T* w, V* d_pose) const {
      V sum[count];
#pragma GCC unroll 8
      for (int p = 0; p < count; ++p) sum[p] = d_pose[p];
#pragma GCC unroll 16
      for (int d = 0; d < tile; ++d)
#pragma GCC unroll 8
        for (int p = 0; p < count; ++p) sum[p] += g[d] * w[p * k.D + d];
#pragma GCC unroll 8
      for (int p = 0; p < count; ++p) d_pose[p] = sum[p];
    }

    // dW_ij += sum over rows of u_i^T dV_ij, some rows of the transform.
    template <int count, int tile>
    inline void push(const V* g, int first, T* dw) const {
      V sum[count];
#pragma GCC unroll 8
      for (int p = 0; p < count; ++p) sum[p] = V{};
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) {
        const T* pose = poses[lane] + first;
#pragma GCC unroll 8
        for (int p = 0; p < count; ++p) sum[p] += g[lane] * pose[p];
      }
#pragma GCC unroll 8
      for (int p = 0; p < count; ++p) {
        if constexpr (tile == kLanes) {
          store_vector<T>(first_rows ? sum[p] : load_vector(dw + p * k.D) + sum[p], dw + p * k.D);
        } else {
          for (int d = 0; d < tile; ++d) dw[p * k.D + d] = (first_rows ? T(0) : dw[p * k.D + d]) + sum[p][d];
        }
      }
    }
  };
};

}  // namespace
