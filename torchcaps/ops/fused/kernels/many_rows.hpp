// Vector poses under inner products, rows in the lanes: the votes of a child for all parents are formed once a pass, and stay
// in the nearest cache until they are added up.
//
// Several blocks of rows are processed while the transforms of some children are in a cache, so that these are read from
// memory once.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "vector_call.hpp"

namespace {

// Loop nest: blocks of rows (kBlocks at once share one read of the transforms, kSide of them in registers), children two by two,
// parents, numbers of a vote. Layout: a V is one number of kLanes rows, a "block". Of a block: u [child, P], votes [child, J, D],
// share [child, J].
template <typename T, int P_, int D_>
struct ManyRows : VectorCall<T, P_, D_> {
  using Base = VectorCall<T, P_, D_>;
  using V = Vec<T>;
  using Base::call, Base::D, Base::I, Base::J, Base::P;
  static constexpr int kLanes = Lanes<T>::count;
  static constexpr int kBlocks = 8;
  static constexpr int kChildren = 8;  // loaded at once
  static constexpr int kPair = 2;      // children whose votes are held at once
  static constexpr bool kManyRegisters = kRegisters >= 32;

  using Base::Base;

  void moments() const { this->moments_by(*this); }
  void flow() const { this->flow_by(*this); }
  void pass_on() const { this->pass_on_by(*this); }

  // How many numbers of a block are held: of the children's poses, of the pairs of a child and a parent, of the votes.
  int64_t poses() const { return kChildren * P; }
  int64_t pairs() const { return int64_t{kPair} * J; }
  int64_t votes() const { return pairs() * D; }

  // Blocks at once: two where registers are few, so that each number of a transform that is loaded serves both.
  static constexpr int kSide = kManyRegisters ? 1 : 2;
  // Where registers are many, there are two sums, so that no addition waits for the one before.
  static constexpr int kSums = kManyRegisters ? 2 : 1;

  // Forms the votes V_ij = u_i W_ij + c_i of a child in some blocks of rows, from number `first` on in as many tiles of `tile`
  // numbers as there are, and adds to the inner products of each vote with some vectors of its parent.
  template <int blocks, int tile, size_t products>
  __attribute__((noinline)) void form(const V* u, int i, int first, V* votes, const std::array<const V*, products> with,
                                      const std::array<V*, products> product) const {
    const int last = after<tile>(first);
    constexpr int sums = blocks == 1 ? 2 : 1;
    const T *w = this->transform(i, 0), *offset = this->offset(i);
    const int64_t field = int64_t{J} * D, next = P * field;  // the next child's transforms are prefetched
    for (int j = 0; j < J; ++j, w += P * D) {
      V inner[sums][products + 1][blocks] = {};
      if (!kManyRegisters)
        for (int p = 0; p < P; ++p) __builtin_prefetch(w + next + p * D + first);
#pragma GCC unroll 4
      for (int at = first; at < last; at += tile) {
        V sum[blocks][tile];
#pragma GCC unroll 2
        for (int b = 0; b < blocks; ++b)
#pragma GCC unroll 16
          for (int d = 0; d < tile; ++d) sum[b][d] = V{};
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
          V pose[blocks];
#pragma GCC unroll 2
          for (int b = 0; b < blocks; ++b) pose[b] = in_register<T>(u[b * poses() + p]);
          const T* row = w + p * D + at;
          if (kManyRegisters) __builtin_prefetch(row + next);
#pragma GCC unroll 16
          for (int d = 0; d < tile; ++d)
#pragma GCC unroll 2
            for (int b = 0; b < blocks; ++b) sum[b][d] += pose[b] * row[d];
        }
        const int64_t place = int64_t{j} * D + at;
#pragma GCC unroll 2
        for (int b = 0; b < blocks; ++b) {
          if (offset)
            for (int d = 0; d < tile; ++d) sum[b][d] += offset[at + d];
          for (size_t one = 0; one < products; ++one)
#pragma GCC unroll 16
            for (int d = 0; d < tile; ++d) inner[d % sums][one][b] += sum[b][d] * with[one][b * field + place + d];
#pragma GCC unroll 16
          for (int d = 0; d < tile; ++d) votes[b * this->votes() + place + d] = sum[b][d];
        }
      }
      for (size_t one = 0; one < products; ++one)
        for (int b = 0; b < blocks; ++b) product[one][b * pairs() + j] += total(inner, one, b);
    }
  }

  // Where the numbers behind the last whole tile begin.
  template <int tile>
  int after(int first) const {
    return first + (D - first) / tile * tile;
  }

  template <int blocks, size_t products>
  void form_votes(const V* u, int i, V* votes, const std::array<const V*, products> with,
                  const std::array<V*, products> product) const {
    int at = 0;
    if constexpr (kManyRegisters) {
      if (at + 16 <= D) form<blocks, 16, products>(u, i, at, votes, with, product);
      at = after<16>(at);
    }
    if constexpr (blocks == 1) {
      if (at + 8 <= D) form<blocks, 8, products>(u, i, at, votes, with, product);
      at = after<8>(at);
    }
    if (at < D) form<blocks, 4, products>(u, i, at, votes, with, product);
  }

  template <size_t count, size_t rows, size_t columns>
  static V total(const V (&sums)[count][rows][columns], size_t row, size_t column) {
    V sum = sums[0][row][column];
    for (size_t one = 1; one < count; ++one) sum += sums[one][row][column];
    return sum;
  }

  // Prefetches the poses of the children that come next in a block of rows: in too many places for the hardware to foresee.
  void call_for(int64_t row, int64_t end, int start, int last) const {
    if (call.sites) return;
    constexpr int kLine = 64 / sizeof(T);
    const int numbers = std::min(kChildren, last - start) * P;
    for (; row < end; ++row)
      for (int n = 0; n < numbers; n += kLine) __builtin_prefetch(this->readable(call.children) + (row * I + start) * P + n);
  }

  // Goes through some blocks of rows for some children at a time: `work(start, count, row, b)`.
  template <int blocks = 1, typename Work>
  void each_children(const Part& part, int64_t row, int count, const Work& work) const {
    for (int start = part.first; start < part.last; start += kChildren)
      for (int b = 0; b < count; b += blocks) {
        const bool last = b + blocks >= count;
        const int64_t next = last ? row : row + (b + blocks) * kLanes;
        call_for(next, std::min(next + blocks * kLanes, part.end), last ? start + kChildren : start, part.last);
        work(start, std::min(kChildren, part.last - start), row + b * kLanes, b);
      }
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

  // Adds the votes of some children for each parent, times a factor of each pair.
  template <int children>
  __attribute__((noinline)) void add_votes(const V* votes, const V* factors, V* sums) const {
    for (int j = 0; j < J; ++j) {
      V r[children];
      for (int i = 0; i < children; ++i) r[i] = factors[i * J + j];
      const V* v = votes + j * D;
      V* s = sums + j * D;
      for (int d = 0; d < D; d += 4)
#pragma GCC unroll 4
        for (int n = d; n < d + 4; ++n) {
          V total = s[n];
          for (int i = 0; i < children; ++i) total += r[i] * v[i * J * D + n];
          s[n] = total;
        }
    }
  }

  void add_pair(int both, const V* votes, const V* factors, V* sums) const {
    both == kPair ? add_votes<kPair>(votes, factors, sums) : add_votes<1>(votes, factors, sums);
  }

  // R_ij of some children that are shared out evenly, and a_i times that.
  void even_shares(const typename Base::Own& own, int count, V* probability, V* share) const {
    for (int i = 0; i < count; ++i) {
      probability[i] = this->even_share(own.log_partition[i]);
      share[i] = own.weight[i] * probability[i];
    }
  }

  struct Forward {
    const ManyRows& k;
    std::vector<V> centre, mass, sum, u, votes, share;  // the first three of each block

    explicit Forward(const ManyRows& k) : k(k) {
      const size_t field = size_t(kBlocks) * k.J * k.D;
      if (k.compares) centre.resize(field);
      mass.resize(kBlocks * k.J), sum.resize(field);
      u.resize(2 * k.poses()), votes.resize(kSide * k.votes()), share.resize(kSide * k.pairs());
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
        if (k.uniform) {
          k.template each_children<2>(part, row, count, [&](int start, int children, int64_t row, int b) {
            if (b + 2 <= count) return share_evenly<2>(start, children, row, part.end, b);
            share_evenly<1>(start, children, row, part.end, b);
          });
        } else {
          k.template each_children<kSide>(part, row, count, [&](int start, int children, int64_t row, int b) {
            if (b + kSide <= count) return some_children<kSide>(start, children, row, part.end, b);
            some_children<1>(start, children, row, part.end, b);
          });
        }
        for (int b = 0; b < count; ++b) {
          k.store(mass.data() + b * k.J, row + b * kLanes, part.end, k.J, mass_out);
          k.store(sum.data() + b * field, row + b * kLanes, part.end, field, sum_out);
        }
      }
    }

    template <int blocks>
    void some_children(int start, int count, int64_t row, int64_t end, int b) {
      for (int one = 0; one < blocks; ++one)
        k.load_children(row + one * kLanes, end, start, count, u.data() + one * k.poses());
      typename Base::Own own[blocks];
      for (int one = 0; one < blocks; ++one) k.load_own(row + one * kLanes, end, start, count, own[one]);
      const int64_t field = int64_t{k.J} * k.D;
      for (int i = 0; i < count; i += kPair) {
        const int both = std::min(kPair, count - i);
        std::fill(share.begin(), share.end(), V{});
        for (int one = 0; one < both; ++one) compare<blocks>(start + i + one, one, u.data() + (i + one) * k.P, b);
        for (int block = 0; block < blocks; ++block) {
          V *shares = share.data() + block * k.pairs(), *masses = mass.data() + (b + block) * k.J;
          k.share_out(shares, own[block], i, both);
          for (int one = 0; one < both; ++one)
            for (int j = 0; j < k.J; ++j) masses[j] += shares[one * k.J + j];
          k.add_pair(both, votes.data() + block * k.votes(), shares, sum.data() + (b + block) * field);
        }
      }
    }

    template <int blocks>
    void share_evenly(int start, int count, int64_t row, int64_t end, int b) {
      for (int one = 0; one < blocks; ++one) {
        V probability[kChildren], even[kChildren], total{}, *pose = u.data() + one * k.poses();
        typename Base::Own own;
        k.load_children(row + one * kLanes, end, start, count, pose);
        k.load_own(row + one * kLanes, end, start, count, own);
        k.even_shares(own, count, probability, even);
        for (int i = 0; i < count; ++i) {
          total += even[i];
          for (int p = 0; p < k.P; ++p) pose[i * k.P + p] *= even[i];
        }
        for (int j = 0; j < k.J; ++j) mass[(b + one) * k.J + j] += total;
      }
      V* sums = sum.data() + int64_t{b} * k.J * k.D;
      int at = 0;
      if constexpr (kManyRegisters && blocks == 1)
        for (; at + 16 <= k.D; at += 16) add_transformed<blocks, 16>(start, count, at, sums);
      if constexpr (kManyRegisters || blocks == 1)
        for (; at + 8 <= k.D; at += 8) add_transformed<blocks, 8>(start, count, at, sums);
      for (; at + 4 <= k.D; at += 4) add_transformed<blocks, 4>(start, count, at, sums);
    }

    // Adds `tile` numbers of u_i W_ij of some children.
    template <int blocks, int tile>
    __attribute__((noinline)) void add_transformed(int start, int count, int at, V* sums) {
      const int64_t child = int64_t{k.J} * k.P * k.D, field = int64_t{k.J} * k.D;
      const bool line = at % (64 / sizeof(T)) == 0;
      const int64_t ahead = (kManyRegisters ? 1 : kChildren) * child;  // is prefetched
      for (int j = 0; j < k.J; ++j) {
        V total[blocks][tile];
        V* s = sums + j * k.D + at;
#pragma GCC unroll 2
        for (int b = 0; b < blocks; ++b)
#pragma GCC unroll 16
          for (int d = 0; d < tile; ++d) total[b][d] = s[b * field + d];
        const T* w = k.transform(start, j) + at;
        for (int i = 0; i < count; ++i, w += k.call.shared ? 0 : child) {
          if (line)
            for (int p = 0; p < k.P; ++p) __builtin_prefetch(w + ahead + p * k.D);
#pragma GCC unroll 8
          for (int p = 0; p < k.P; ++p) {
            V pose[blocks];
#pragma GCC unroll 2
            for (int b = 0; b < blocks; ++b) pose[b] = in_register<T>(u[b * k.poses() + i * k.P + p]);
            const T* row = w + p * k.D;
#pragma GCC unroll 16
            for (int d = 0; d < tile; ++d)
#pragma GCC unroll 2
              for (int b = 0; b < blocks; ++b) total[b][d] += pose[b] * row[d];
          }
        }
#pragma GCC unroll 2
        for (int b = 0; b < blocks; ++b)
#pragma GCC unroll 16
          for (int d = 0; d < tile; ++d) s[b * field + d] = total[b][d];
      }
    }

    template <int blocks>
    void compare(int i, int one, const V* pose, int b) {
      V* v = votes.data() + int64_t{one} * k.J * k.D;
      if (k.compares) {
        const V* centres = centre.data() + int64_t{b} * k.J * k.D;
        k.template form_votes<blocks, 1>(pose, i, v, {centres}, {share.data() + one * k.J});
      } else {
        k.template form_votes<blocks, 0>(pose, i, v, {}, {});
      }
    }
  };

  // Shares and gradients of the logits, and from these the gradients of the parents and of the children's activations.
  struct Flow {
    const ManyRows& k;
    T* grad_parents;
    const bool compares;                               // and passes gradients on to the parents
    std::vector<V> centre, up_mass, up_sum, d_centre;  // of each block
    std::vector<V> u, votes, share, gradient;

    Flow(const ManyRows& k, T* grad_parents) : k(k), grad_parents(grad_parents), compares(grad_parents && !k.call.hard) {
      const size_t field = size_t(kBlocks) * k.J * k.D;
      if (k.compares) centre.resize(field);
      if (grad_parents) d_centre.resize(field);
      up_mass.resize(kBlocks * k.J), up_sum.resize(field);
      u.resize(kSide * k.poses()), votes.resize(kSide * k.votes());
      share.resize(kSide * k.pairs()), gradient.resize(kSide * k.pairs());
    }

    void children_of(const Part& part) {
      const int64_t field = int64_t{k.J} * k.D;
      for (int64_t row = part.row, block = part.block; row < part.end; row += kBlocks * kLanes, block += kBlocks) {
        const int count = static_cast<int>(std::min<int64_t>(kBlocks, k.blocks(part.end - row)));
        for (int b = 0; b < count; ++b) {
          const int64_t first = row + b * kLanes;
          if (k.compares) k.load(k.call.parents, first, part.end, field, centre.data() + b * field);
          k.load(k.call.mass, first, part.end, k.J, up_mass.data() + b * k.J);
          k.load(k.call.sum, first, part.end, field, up_sum.data() + b * field);
        }
        std::fill(d_centre.begin(), d_centre.end(), V{});
        k.template each_children<kSide>(part, row, count, [&](int start, int children, int64_t row, int b) {
          if (b + kSide <= count) return some_children<kSide>(start, children, row, part.end, b, block + b);
          some_children<1>(start, children, row, part.end, b, block + b);
        });
        for (int b = 0; b < count && grad_parents; ++b)
          k.store(d_centre.data() + b * field, row + b * kLanes, part.end, field, grad_parents);
      }
    }

    template <int blocks>
    void some_children(int start, int count, int64_t row, int64_t end, int b, int64_t block) {
      for (int one = 0; one < blocks; ++one)
        k.load_children(row + one * kLanes, end, start, count, u.data() + one * k.poses());
      typename Base::Own own[blocks];
      for (int n = 0; n < blocks; ++n) k.load_own(row + n * kLanes, end, start, count, own[n]);
      if (k.uniform) return share_evenly<blocks>(start, count, own, row, end, b, block);
      V mean_grad[blocks][kChildren];
      for (int i = 0; i < count; i += kPair) {
        const int both = std::min(kPair, count - i);
        std::fill(share.begin(), share.end(), V{});
        for (int one = 0; one < both; ++one) compare<blocks>(start + i + one, one, u.data() + (i + one) * k.P, b);
        for (int n = 0; n < blocks; ++n) {
          V *shares = share.data() + n * k.pairs(), *gradients = gradient.data() + n * k.pairs();
          k.flow_of_moments(shares, gradients, own[n], i, both, mean_grad[n] + i);
          k.put_flow(shares, gradients, block + n, start + i, both);
          V* d_centres = d_centre.data() + (b + n) * int64_t{k.J} * k.D;
          if (compares) k.add_pair(both, votes.data() + n * k.votes(), gradients, d_centres);
        }
      }
      for (int n = 0; n < blocks; ++n) k.add_own(mean_grad[n], own[n], row + n * kLanes, end, start, count);
    }

    template <int blocks>
    void share_evenly(int start, int count, const typename Base::Own (&own)[blocks], int64_t row, int64_t end, int b,
                      int64_t block) {
      V probability[blocks][kChildren], even[blocks][kChildren];
      for (int n = 0; n < blocks; ++n) {
        k.even_shares(own[n], count, probability[n], even[n]);
        for (int i = 0; i < count; ++i) k.put_coefficients(even[n] + i, block + n, start + i, 1, 1, k.call.shares);
      }
      if (!k.call.grad_weights && !k.call.grad_log_partition) return;
      V mean_grad[blocks][kChildren] = {};
      for (int i = 0; i < count; ++i) {
        compare<blocks>(start + i, 0, u.data() + i * k.P, b);
        for (int n = 0; n < blocks; ++n) {
          for (int j = 0; j < k.J; ++j) mean_grad[n][i] += gradient[n * k.pairs() + j];
          mean_grad[n][i] *= probability[n][i];
        }
      }
      for (int n = 0; n < blocks; ++n) k.add_own(mean_grad[n], own[n], row + n * kLanes, end, start, count);
    }

    // Logits of child i, and the gradients of its shares.
    template <int blocks>
    void compare(int i, int one, const V* pose, int b) {
      const int64_t at = int64_t{b} * k.J * k.D;
      V *v = votes.data() + int64_t{one} * k.J * k.D;
      V *logits = share.data() + one * k.J, *grad_share = gradient.data() + one * k.J;
      for (int n = 0; n < blocks; ++n) std::copy_n(up_mass.data() + (b + n) * k.J, k.J, grad_share + n * k.pairs());
      if (k.compares) {
        // Two products of each vote in one pass: with the centre (the logit), and with the gradient of the sum (the gradient of the
        // share, which starts at that of the mass).
        k.template form_votes<blocks, 2>(pose, i, v, {centre.data() + at, up_sum.data() + at}, {logits, grad_share});
      } else {
        k.template form_votes<blocks, 1>(pose, i, v, {up_sum.data() + at}, {grad_share});
      }
    }
  };

  // The gradients of the votes, from the terms of all steps, and from these those of all inputs.
  struct PassOn {
    struct Coefficients {
      const T* from;
      int64_t parent, block, children;  // how far it is to those of the next one, and to those to prefetch
    };

    const ManyRows& k;
    T *grad_transforms, *grad_coordinates;
    std::vector<V> constants;  // of each block, [J, terms, D]
    std::vector<V> field, du, d_offset, factors;
    V gradients[kSide * kSide * kLanes];
    std::vector<Coefficients> coefficients;  // of each term, for some blocks
    std::vector<T> poses;                    // of some children, [child, row]; 0 for a row that is not there
    bool first_rows = true;                  // that reach a transform: its gradient is written, not added to

    PassOn(const ManyRows& k, T* grad_transforms, T* grad_coordinates)
        : k(k), grad_transforms(grad_transforms), grad_coordinates(grad_coordinates),
          constants(kBlocks * k.call.count * k.J * k.D), field(k.J * k.D), du(kSide * kChildren * k.P),
          d_offset(kChildren * k.D), factors(kSide * k.call.count), coefficients(k.call.count),
          poses(kChildren * kSide * kLanes * k.P) {}

    void children_of(const Part& part) {
      for (int64_t row = part.row, block = part.block; row < part.end; row += kBlocks * kLanes, block += kBlocks) {
        const int count = static_cast<int>(std::min<int64_t>(kBlocks, k.blocks(part.end - row)));
        for (int b = 0; b < count; ++b) load_constants(row + b * kLanes, part.end, b);
        k.template each_children<kSide>(part, row, count, [&](int start, int children, int64_t row, int b) {
          first_rows = row == part.row && !k.call.shared;
          const int ahead = b + kSide < count ? kSide : -b;  // to the blocks that come next
          if (b + kSide <= count) return some_children<kSide>(start, children, row, part.end, b, block + b, ahead);
          some_children<1>(start, children, row, part.end, b, block + b, ahead);
        });
      }
    }

    V* constant(int b, int j) { return constants.data() + (int64_t{b} * k.J + j) * k.call.count * k.D; }

    void load_constants(int64_t row, int64_t end, int b) {
      for (int64_t t = 0; t < k.call.count; ++t) {
        k.load(k.call.terms[t].constant, row, end, int64_t{k.J} * k.D, field.data());
        for (int j = 0; j < k.J; ++j) std::copy_n(field.data() + j * k.D, int(k.D), constant(b, j) + t * k.D);
      }
    }

    template <int blocks>
    void some_children(int start, int count, int64_t row, int64_t end, int b, int64_t block, int ahead) {
      std::fill(du.begin(), du.end(), V{});
      if (grad_coordinates) std::fill(d_offset.begin(), d_offset.end(), V{});
      for (int64_t t = 0; t < k.call.count; ++t) {
        const int64_t parents = k.call.terms[t].parents, next = parents * k.next_parent(), apart = k.groups() * next;
        const T* from = k.readable(k.call.terms[t].coefficient) + k.coefficient(block, start, 0, parents);
        coefficients[t] = {from, parents > 1 ? k.next_parent() : 0, apart, ahead > 0 ? ahead * apart : next + ahead * apart};
      }
      load_poses(start, count, row, end, blocks * kLanes);
      int at = 0;
      constexpr int wide = kSide * kLanes;
      for (; at + wide <= k.D; at += wide) pass_on_columns<blocks, wide>(start, count, b, at);
      for (; at + kLanes <= k.D; at += kLanes) pass_on_columns<blocks, kLanes>(start, count, b, at);
      if (at < k.D) pass_on_columns<blocks, kLanes / 2>(start, count, b, at);
      for (int one = 0; one < blocks && k.call.grad_children; ++one)
        k.put_children(du.data() + one * kChildren * k.P, row + one * kLanes, end, start, count);
      if (!grad_coordinates) return;
      for (int n = 0; n < count * k.D; ++n) grad_coordinates[int64_t{start} * k.D + n] += lane_sum<T>(d_offset[n]);
    }

    // Copies them to where they do not evict each other from the cache. Their gradients are prefetched for writing.
    void load_poses(int start, int count, int64_t row, int64_t end, int lanes) {
      const T *children = k.readable(k.call.children), *gradients = k.readable(k.call.grad_children);
      for (int lane = 0; lane < lanes; ++lane)
        for (int i = 0; i < count; ++i) {
          T* pose = poses.data() + (i * kSide * kLanes + lane) * k.P;
          if (row + lane >= end) {
            std::fill_n(pose, int(k.P), T(0));
            continue;
          }
          const int64_t place = k.site(row + lane, start + i) * k.P;
          for (int p = 0; p < k.P; ++p) pose[p] = children[place + p];
          if (gradients) __builtin_prefetch(gradients + place, 1);
        }
    }

    // Some numbers of the votes of some children, from the number `at` on.
    template <int blocks, int columns>
    __attribute__((noinline)) void pass_on_columns(int start, int count, int b, int at) {
      constexpr int tile = std::min(columns, kLanes), tiles = columns / tile;
      const int64_t child = k.call.shared ? 0 : int64_t{k.J} * k.P * k.D;
      for (int j = 0; j < k.J; ++j)
        for (int i = 0; i < count; ++i) {
          const T* w = k.transform(start + i, j) + at;
          T* dw = grad_transforms + (start + i) * child + int64_t{j} * k.P * k.D + at;
#pragma GCC unroll 8
          for (int p = 0; p < k.P; ++p) {  // of the next child
            __builtin_prefetch(w + child + p * k.D);
            if (grad_transforms) __builtin_prefetch(dw + child + p * k.D, 1);
          }
          load_factors<blocks>(i, j);
          V registers[kLanes], *g = kManyRegisters ? registers : gradients;
#pragma GCC unroll 2
          for (int one = 0; one < blocks; ++one) {
            const V *factor = factors.data() + one * k.call.count, *from = constant(b + one, j) + at;
#pragma GCC unroll 2
            for (int n = 0; n < tiles; ++n)
              gradient<tile>(factor, from + n * kLanes, g + (one * tiles + n) * kLanes);
          }
          if (grad_coordinates)
            for (int one = 0; one < blocks; ++one)
              for (int d = 0; d < columns; ++d) d_offset[i * k.D + at + d] += g[one * tiles * kLanes + d];
          if (k.call.grad_children) pull_all<blocks, columns>(g, w, du.data() + i * k.P);
          if (!grad_transforms) continue;
#pragma GCC unroll 4
          for (int n = 0; n < blocks * tiles; ++n) transpose<T>(g + n * kLanes);  // the numbers of a row together
          push_all<blocks, columns>(g, poses.data() + i * kSide * kLanes * k.P, dw);
        }
    }

    template <int blocks>
    inline void load_factors(int i, int j) {
      for (int64_t t = 0; t < k.call.count; ++t) {
        const auto& [first, parent, block, children] = coefficients[t];
        const T* from = first + i * k.width() + j * parent;
        for (int one = 0; one < blocks; ++one, from += block) {
          __builtin_prefetch(from + children);
          factors[one * k.call.count + t] = k.load_coefficient(from);
        }
      }
    }

    template <int tile>
    inline void gradient(const V* factor, const V* from, V* g) const {
      V sums[kLanes];
#pragma GCC unroll 16
      for (int d = 0; d < kLanes; ++d) sums[d] = V{};
      for (int64_t t = 0; t < k.call.count; ++t, from += k.D) {
        const V r = factor[t];
#pragma GCC unroll 16
        for (int d = 0; d < tile; ++d) sums[d] += r * from[d];
      }
#pragma GCC unroll 16
      for (int d = 0; d < kLanes; ++d) g[d] = sums[d];
    }

    template <int blocks, int columns>
    inline void pull_all(const V* g, const T* w, V* d_pose) const {
      constexpr int count = blocks == 1 ? 8 : 4;
      int p = 0;
      for (; p + count <= k.P; p += count) pull<blocks, count, columns>(g, w + p * k.D, d_pose + p);
      for (; p < k.P; ++p) pull<blocks, 1, columns>(g, w + p * k.D, d_pose + p);
    }

    template <int blocks, int columns>
    inline void push_all(const V* g, const T* poses, T* dw) const {
      constexpr int count = columns <= kLanes ? 8 : 4;
      int p = 0;
      for (; p + count <= k.P; p += count) push<blocks, count, columns>(g, poses + p, dw + p * k.D);
      for (; p < k.P; ++p) push<blocks, 1, columns>(g, poses + p, dw + p * k.D);
    }

    // du_i += W_ij dV_ij, some numbers of the pose.
    template <int blocks, int count, int columns>
    inline void pull(const V* g, const T* w, V* d_pose) const {
      constexpr int apart = std::max(columns, kLanes);  // from one block to the next
      V sums[kSums][blocks][count] = {};
#pragma GCC unroll kManyRegisters ? 16 : 1
      for (int d = 0; d < columns; ++d) {
        V of[blocks];
#pragma GCC unroll 2
        for (int one = 0; one < blocks; ++one) of[one] = in_register<T>(g[one * apart + d]);
#pragma GCC unroll 8
        for (int p = 0; p < count; ++p)
#pragma GCC unroll 2
          for (int one = 0; one < blocks; ++one) sums[d % kSums][one][p] += of[one] * w[p * k.D + d];
      }
#pragma GCC unroll 2
      for (int one = 0; one < blocks; ++one)
#pragma GCC unroll 8
        for (int p = 0; p < count; ++p) d_pose[one * k.poses() + p] += total(sums, one, p);
    }

    // dW_ij += sum over rows of u_i^T dV_ij, some rows of the transform.
    template <int blocks, int count, int columns>
    inline void push(const V* g, const T* pose, T* dw) const {
      constexpr int tile = std::min(columns, kLanes), tiles = columns / tile;
      const bool there = !first_rows;
      V sums[kSums][count][tiles] = {};
#pragma GCC unroll 1
      for (int one = 0; one < blocks; ++one, g += tiles * kLanes)
#pragma GCC unroll kManyRegisters ? 16 : 1
        for (int lane = 0; lane < kLanes; ++lane, pose += k.P) {
          V row[tiles];
#pragma GCC unroll 2
          for (int n = 0; n < tiles; ++n) row[n] = in_register<T>(g[n * kLanes + lane]);
#pragma GCC unroll 8
          for (int p = 0; p < count; ++p)
#pragma GCC unroll 2
            for (int n = 0; n < tiles; ++n) sums[lane % kSums][p][n] += row[n] * pose[p];
        }
#pragma GCC unroll 8
      for (int p = 0; p < count; ++p)
#pragma GCC unroll 2
        for (int n = 0; n < tiles; ++n) {
          const V sum = total(sums, p, n);
          T* to = dw + p * k.D + n * kLanes;
          if constexpr (tile == kLanes) {
            store_vector<T>(there ? load_vector(to) + sum : sum, to);
          } else {
            for (int d = 0; d < tile; ++d) to[d] = (there ? to[d] : T(0)) + sum[d];
          }
        }
    }
  };
};

}  // namespace
