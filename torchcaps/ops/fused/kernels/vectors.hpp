// Vector poses under inner products: the votes of a child for all parents are formed once a pass, and lie in the nearest
// cache until they are added up.
//
// Some blocks of rows pass by while the transforms of some children are at hand, so that these come from memory once.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "rows.hpp"

namespace {

template <typename T, int P_, int D_>
class Vectors : Rows<T> {
  using Base = Rows<T>;
  using typename Base::V;
  using Base::blocks, Base::call, Base::I, Base::J, Base::kLanes, Base::readable, Base::rows, Base::writable;
  static constexpr int kBlocks = 8;
  static constexpr int kChildren = 8;  // loaded at once
  static constexpr int kPair = 2;      // children whose votes are held at once

 public:
  explicit Vectors(const Call& call)
      : Base(call), P(call.P), D(call.D), compares(call.similarity == kInnerProduct) {}

  static bool suits(const Call& call) {
    return call.M == 1 && call.similarity != kGaussian && !call.scatter && call.D % (kLanes / 2) == 0;
  }

  void moments() const {
    const int64_t parts = child_parts(), numbers = rows * J;
    if (parts == 1) {
      return parallel_for(call.threads, blocks(rows), 1, [&](int64_t first, int64_t last) {
        const int64_t end = std::min(rows, last * kLanes);
        Forward(*this).children_of({first * kLanes, end, 0, I}, writable(call.mass), writable(call.sum));
      });
    }
    std::vector<std::vector<T>> others(parts - 1);
    each_part(parts, [&](int64_t part) {
      T *mass = writable(call.mass), *sum = writable(call.sum);
      if (part > 0) {
        others[part - 1].resize(numbers * (1 + D));
        mass = others[part - 1].data(), sum = mass + numbers;
      }
      Forward(*this).children_of(children_part(part, parts), mass, sum);
    });
    for (const auto& other : others) {
      add(other.data(), numbers, writable(call.mass));
      add(other.data() + numbers, numbers * D, writable(call.sum));
    }
  }

  void backward() const {
    const int64_t parts = call.shared ? 1 : child_parts();
    if (parts > 1) return backward_by_children(parts);
    backward_by_images(std::min<int64_t>(call.images, call.threads));
  }

 private:
  const Size<P_> P;
  const Size<D_> D;
  const bool compares;

  // What a task has to do: rows, and children of them.
  struct Part {
    int64_t row, end;
    int first, last;
  };

  // Among how many tasks the children are shared out; windows share children, so that they share rows out.
  int64_t child_parts() const { return call.sites ? 1 : std::clamp<int64_t>(I / (2 * kChildren), 1, call.threads); }

  Part children_part(int64_t part, int64_t parts) const {
    return {0, rows, static_cast<int>(I * part / parts), static_cast<int>(I * (part + 1) / parts)};
  }

  template <typename Work>
  void each_part(int64_t parts, const Work& work) const {
    parallel_for(call.threads, parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) work(part);
    });
  }

  static void add(const T* from, int64_t count, T* to) {
    for (int64_t k = 0; k < count; ++k) to[k] += from[k];
  }

  void backward_by_children(int64_t parts) const {
    const int64_t numbers = compares ? rows * J * D : 0;
    std::vector<std::vector<T>> others(parts - 1);
    each_part(parts, [&](int64_t part) {
      T* parents = writable(call.grad_parents);
      if (part > 0 && compares) {
        others[part - 1].resize(numbers);
        parents = others[part - 1].data();
      }
      Backward work(*this, writable(call.grad_transforms), writable(call.grad_coordinates), parents);
      work.children_of(children_part(part, parts));
    });
    for (const auto& other : others) add(other.data(), numbers, writable(call.grad_parents));
  }

  void backward_by_images(int64_t parts) const {
    const int64_t transforms = (call.shared ? 1 : call.I) * J * P * D, coordinates = call.coordinates ? call.I * D : 0;
    std::vector<std::vector<T>> others(parts - 1);
    each_part(parts, [&](int64_t part) {
      T *sums = writable(call.grad_transforms), *offsets = writable(call.grad_coordinates);
      if (part > 0) {
        others[part - 1].resize(transforms + coordinates);
        sums = others[part - 1].data();
        if (coordinates) offsets = sums + transforms;
      }
      Backward work(*this, sums, offsets, writable(call.grad_parents));
      const int64_t row = call.images * part / parts * call.windows, end = call.images * (part + 1) / parts * call.windows;
      work.children_of({row, end, 0, I});
    });
    for (const auto& other : others) {
      add(other.data(), transforms, writable(call.grad_transforms));
      add(other.data() + transforms, coordinates, writable(call.grad_coordinates));
    }
  }

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

  void add_children(const V* du, int64_t row, int64_t end, int start, int count) const {
    if (this->adjacent(start, count)) return this->add_child(du, row, end, start, P, call.grad_children, count);
    for (int i = 0; i < count; ++i) this->add_child(du + i * P, row, end, start + i, P, call.grad_children);
  }

  struct Forward {
    const Vectors& k;
    std::vector<V> centre, mass, sum, u, votes, share;  // the first three of each block

    explicit Forward(const Vectors& k) : k(k) {
      const size_t field = size_t(kBlocks) * k.J * k.D;
      if (k.compares) centre.resize(field);
      mass.resize(kBlocks * k.J), sum.resize(field);
      u.resize(kChildren * k.P), votes.resize(kPair * k.J * k.D), share.resize(kPair * k.J);
    }

    // Mass and sum over the children of a part, for its rows.
    void children_of(const Part& part, T* mass_out, T* sum_out) {
      for (int64_t row = part.row; row < part.end; row += kBlocks * kLanes) {
        const int count = static_cast<int>(std::min<int64_t>(kBlocks, blocks(part.end - row)));
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
    const Vectors& k;
    T *grad_transforms, *grad_coordinates, *grad_parents;
    const bool compares;  // and passes gradients to what it compares with
    std::vector<V> centre, up_mass, up_sum, d_centre;  // of each block
    std::vector<V> u, du, votes, share, flow, d_offset;
    std::vector<T> nowhere;  // the pose of a row that is not there
    const T* poses[kLanes];

    Backward(const Vectors& k, T* grad_transforms, T* grad_coordinates, T* grad_parents)
        : k(k), grad_transforms(grad_transforms), grad_coordinates(grad_coordinates), grad_parents(grad_parents),
          compares(k.compares && !k.call.hard) {
      const size_t field = size_t(kBlocks) * k.J * k.D;
      if (k.compares) centre.resize(field), d_centre.resize(field);
      up_mass.resize(kBlocks * k.J), up_sum.resize(field);
      u.resize(kChildren * k.P), du.resize(kChildren * k.P);
      votes.resize(k.J * k.D), share.resize(k.J), flow.resize(k.J), d_offset.resize(k.D);
      nowhere.resize(k.P);
    }

    void children_of(const Part& part) {
      for (int64_t row = part.row; row < part.end; row += kBlocks * kLanes) {
        const int count = static_cast<int>(std::min<int64_t>(kBlocks, blocks(part.end - row)));
        const int64_t field = int64_t{k.J} * k.D;
        for (int b = 0; b < count; ++b) {
          const int64_t first = row + b * kLanes;
          if (k.compares) k.load(k.call.parents, first, part.end, field, centre.data() + b * field);
          k.load(k.call.mass, first, part.end, k.J, up_mass.data() + b * k.J);
          k.load(k.call.sum, first, part.end, field, up_sum.data() + b * field);
        }
        std::fill(d_centre.begin(), d_centre.end(), V{});
        for (int start = part.first; start < part.last; start += kChildren)
          for (int b = 0; b < count; ++b)
            some_children(start, std::min(kChildren, part.last - start), row + b * kLanes, part.end, b);
        for (int b = 0; b < count && k.compares; ++b)
          k.store(d_centre.data() + b * field, row + b * kLanes, part.end, field, grad_parents);
      }
    }

    void some_children(int start, int count, int64_t row, int64_t end, int b) {
      k.load_children(row, end, start, count, u.data());
      std::fill(du.begin(), du.end(), V{});
      for (int i = 0; i < count; ++i) {
        compare(start + i, u.data() + i * k.P, b);
        flow_of_moments(row, end, start + i);
        for (int lane = 0; lane < kLanes; ++lane)
          poses[lane] = row + lane < end ? readable(k.call.children) + k.site(row + lane, start + i) * k.P : nowhere.data();
        std::fill(d_offset.begin(), d_offset.end(), V{});
        pass_on(start + i, b, du.data() + i * k.P);
        if (!grad_coordinates) continue;
        for (int d = 0; d < k.D; ++d) grad_coordinates[int64_t{start + i} * k.D + d] += lane_sum<T>(d_offset[d]);
      }
      k.add_children(du.data(), row, end, start, count);
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
        int p = 0;
        for (; p + 8 <= k.P; p += 8) pull<8, tile>(g, w + p * k.D, d_pose + p);
        for (; p < k.P; ++p) pull<1, tile>(g, w + p * k.D, d_pose + p);
        transpose<T>(g);  // to the numbers of a row in each vector
        for (p = 0; p + 8 <= k.P; p += 8) push<8, tile>(g, p, dw + p * k.D);
        for (; p < k.P; ++p) push<1, tile>(g, p, dw + p * k.D);
      }
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
          store_vector<T>(load_vector(dw + p * k.D) + sum[p], dw + p * k.D);
        } else {
          for (int d = 0; d < tile; ++d) dw[p * k.D + d] += sum[p][d];
        }
      }
    }
  };
};

}  // namespace
