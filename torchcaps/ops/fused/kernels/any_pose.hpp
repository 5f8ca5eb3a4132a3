// Poses of any shape, all similarities, with or without scatter: each vote is formed in registers whenever it is used.
// Loop nest: blocks of rows (a row in each lane), kChildren children at a time, parents, numbers of a vote.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "rows.hpp"

namespace {

template <typename T, int M_, int P_, int D_>
class AnyPose : Rows<T> {
  using Base = Rows<T>;
  using typename Base::V;
  using Base::blocks, Base::call, Base::I, Base::J, Base::kLanes, Base::readable, Base::rows, Base::writable;
  static constexpr bool kKnown = M_ > 0;
  static constexpr int kPose = kKnown ? M_ * D_ : 1;
  static constexpr int kChildren = Base::kTogether;  // whose votes are held at once
  static constexpr int kBlocks = 2;                  // of rows, over which a transform's gradient is added up
  // Rows of a vote that are formed at once: they take half of the registers.
  static constexpr int kRows = kKnown ? std::clamp(kRegisters / 2 / std::max(D_, 1), 1, std::max(M_, 1)) : 1;
  static constexpr int kSums = kRegisters >= 32 ? 4 : 2;
  static_assert(!kKnown || M_ % kRows == 0);

 public:
  explicit AnyPose(const Call& call) : Base(call), M(call.M), P(call.P), D(call.D), H(M * D) {}

  void moments() const {
    this->each_range([&](auto range) {
      for (Forward work(*this, range.end); range.row < range.end; range.row += kLanes, ++range.block)
        work.moments(range.row, range.block);
    });
  }

  void scores() const {
    this->each_range([&](auto range) {
      for (Forward work(*this, range.end); range.row < range.end; range.row += kLanes, ++range.block)
        work.scores(range.row, range.block);
    });
  }

  void flow() const {
    this->clear_flow();
    this->each_part(this->row_parts(), [&](int64_t part) {
      auto [row, end, block] = this->row_range(part, this->row_parts());
      for (Flow work(*this); row < end; row += kLanes, ++block) work.rows_of(row, end, block);
    });
  }

  void pass_on() const {
    this->clear(call.grad_children, call.images * call.grid * M * P);
    this->clear(call.grad_transforms, this->transforms());
    this->clear(call.grad_coordinates, this->coordinates());
    this->sum_over_parts(this->row_parts(), [&](int64_t part, T* transforms, T* coordinates) {
      auto [row, end, block] = this->row_range(part, this->row_parts());
      for (PassOn work(*this, transforms, coordinates); row < end; row += kBlocks * kLanes, block += kBlocks)
        work.rows_of(row, end, block);
    });
  }

 private:
  const Size<M_> M;
  const Size<P_> P;
  const Size<D_> D;
  const int H;

  int pose() const {
    if constexpr (kKnown) return kPose;
    return H;
  }

  // Some rows of V_ij = u_i W_ij + c_i, from row m on.
#ifdef __AVX512F__  // with fewer registers, the compiler knows better where to inline it
  __attribute__((always_inline))
#endif
  inline void form(const V* u, const T* w, const T* c, int m, int rows, V* v) const {
    for (int h = 0; h < rows * D; ++h) v[h] = c ? splat(c[m * D + h]) : V{};
    for (int p = 0; p < P; ++p)
      for (int r = 0; r < rows; ++r)
        for (int d = 0; d < D; ++d) v[r * D + d] += u[(m + r) * P + p] * w[p * D + d];
  }

  // Forms a vote, as much of it at a time as registers hold, and calls `use(v, first, count)` for each part.
  template <typename Use>
  __attribute__((always_inline)) inline void each_rows(const V* u, const T* w, const T* c, V* scratch, const Use& use) const {
    if constexpr (kKnown) {
#pragma GCC unroll 1
      for (int m = 0; m < M_; m += kRows) {
        V v[kRows * D_];
        form(u, w, c, m, kRows, v);
        use(v, m * D_, kRows * D_);
      }
    } else {
      form(u, w, c, 0, M, scratch);
      use(scratch, 0, H);
    }
  }

  __attribute__((always_inline)) inline void store_vote(const V* u, const T* w, const T* c, V* out) const {
    if constexpr (!kKnown) return form(u, w, c, 0, M, out);
    each_rows(u, w, c, out, [&](const V* v, int first, int count) {
      for (int h = 0; h < count; ++h) out[first + h] = v[h];
    });
  }

  // What the vote passes on to the pose of its child: du_i += W_ij dV_ij.
  __attribute__((always_inline)) inline void vote_backward(const V* g, const T* w, V* du) const {
    for (int m = 0; m < M; m += kRows) {
      V held[kKnown ? kRows * D_ : 1];  // in registers
      const V* own = kKnown ? held : g + m * D;
      for (int n = 0; n < kRows * D_; ++n) held[n] = g[m * D + n];
      for (int p = 0; p < P; ++p) {
        V total[kRows];
        for (int r = 0; r < kRows; ++r) total[r] = du[(m + r) * P + p];
#pragma GCC unroll 4
        for (int d = 0; d < D; ++d)
          for (int r = 0; r < kRows; ++r) total[r] += own[r * D + d] * w[p * D + d];
        for (int r = 0; r < kRows; ++r) du[(m + r) * P + p] = total[r];
      }
    }
  }

  // The similarity of votes and parents, with the tensors of one block of rows.
  struct Parents {
    const V *centre, *precision, *log_weight;  // [J, H], [J, H], [J]
  };

  using Sums = V[kSums];

  static V total(const Sums& sums) {
    V total = sums[0];
    for (int n = 1; n < kSums; ++n) total += sums[n];
    return total;
  }

  // Adds up `term(h)` of some numbers of a vote, in several sums, so that no addition waits for the one before; a loop that is
  // not unrolled would keep them in memory.
  template <typename Term>
  __attribute__((always_inline)) static inline void add_up(int count, Sums& sums, const Term& term) {
    int h = 0;
#pragma GCC unroll 8
    for (; h + kSums <= count; h += kSums)
#pragma GCC unroll 4
      for (int n = 0; n < kSums; ++n) sums[n] += term(h + n);
    for (; h < count; ++h) sums[0] += term(h);
  }

  // What some numbers of a vote, from `first` on, add to its logit for parent j.
  template <Similarity similarity>
  __attribute__((always_inline)) inline void compare(const V* v, int first, int count, const Parents& parents, int j,
                                                     Sums& sums) const {
    if constexpr (similarity == kUniform) return;
    const V* centre = parents.centre + int64_t{j} * pose() + first;
    if constexpr (similarity == kInnerProduct) return add_up(count, sums, [&](int h) { return v[h] * centre[h]; });
    const V* precision = parents.precision + int64_t{j} * pose() + first;
    add_up(count, sums, [&](int h) {
      const V deviation = v[h] - centre[h];
      return deviation * deviation * precision[h];
    });
  }

  template <Similarity similarity>
  __attribute__((always_inline)) inline V logit(const Sums& sums, const Parents& parents, int j) const {
    const V both = total(sums);
    if constexpr (similarity == kGaussian) return parents.log_weight[j] - both * T(0.5);
    return both;
  }

  // R_ij = exp(l_ij - Z_i) for one parent, from logits that were written down; 0 for children past `count`.
  __attribute__((always_inline)) inline void probabilities(const T* logits, int j, int count, const V* log_partition,
                                                           V* R) const {
    for (int i = 0; i < kChildren; ++i)
      R[i] = i < count ? this->coefficient_of(logits, i, j) - log_partition[i] : splat(-std::numeric_limits<T>::infinity());
#pragma GCC unroll 8
    for (int i = 0; i < kChildren; ++i) R[i] = exponential(R[i]);  // side by side, so that none waits for another
  }

  // One block of rows, forward.
  struct Forward {
    const AnyPose& k;
    const int64_t end;  // of the rows
    typename Base::Own own;
    std::vector<V> centre, precision, log_weight, u, logits, votes, mass, shift, first, second, scratch;
    const V tiny = splat(std::sqrt(std::numeric_limits<T>::min()));  // as torchcaps.numerics.positive

    Forward(const AnyPose& k, int64_t end) : k(k), end(end) {
      const size_t parents = size_t(k.J) * k.H, children = kChildren;
      if (k.call.similarity != kUniform) centre.resize(parents);
      if (k.call.similarity == kGaussian) precision.resize(parents), log_weight.resize(k.J);
      u.resize(children * k.M * k.P);
      logits.resize(children * k.J);
      votes.resize(children * k.H);
      mass.resize(k.J), shift.resize(parents), first.resize(parents), second.resize(parents);
      scratch.resize(k.H);
    }

    Parents parents() const { return {centre.data(), precision.data(), log_weight.data()}; }

    void load_parents(int64_t row) {
      if (!centre.empty()) k.load(k.call.parents, row, end, int64_t{k.J} * k.H, centre.data());
      if (precision.empty()) return;
      k.load(k.call.precision, row, end, int64_t{k.J} * k.H, precision.data());
      k.load(k.call.log_weight, row, end, k.J, log_weight.data());
    }

    void load_children(int64_t row, int start, int count) {
      for (int i = 0; i < count; ++i)
        k.load_child(k.call.children, row, end, start + i, k.M * k.P, u.data() + i * k.M * k.P);
    }

    // Logits [count, J] of some children, also written to `to` if that is not null.
    void compare(int start, int count, T* to = nullptr) {
      if (k.call.similarity == kGaussian) return compare_by<kGaussian>(start, count, to);
      if (k.call.similarity == kInnerProduct) return compare_by<kInnerProduct>(start, count, to);
      std::fill(logits.begin(), logits.begin() + count * k.J, V{});
    }

    template <Similarity similarity>
    __attribute__((noinline)) void compare_by(int start, int count, T* to) {
      for (int j = 0; j < k.J; ++j)
        for (int i = 0; i < count; ++i) {
          Sums sums = {};
          const V* pose = u.data() + i * k.M * k.P;
          k.each_rows(pose, k.transform(start + i, j), k.offset(start + i), scratch.data(), [&](const V* v, int first, int n) {
            k.template compare<similarity>(v, first, n, parents(), j, sums);
          });
          const V logit = k.template logit<similarity>(sums, parents(), j);
          k.put_coefficient(logit, to, i, j);
          logits[i * k.J + j] = logit;
        }
    }

    void scores(int64_t row, int64_t block) {
      load_parents(row);
      V partition[kChildren];
      const int64_t numbers = k.call.reduced ? 1 : k.J;
      for (int start = 0; start < k.I; start += kChildren) {
        const int count = std::min(kChildren, k.I - start);
        load_children(row, start, count);
        compare(start, count, k.call.logits ? writable(k.call.logits) + k.coefficient(block, start, 0, k.J) : nullptr);
        if (k.call.reduced) k.partitions(logits.data(), count, partition);
        k.template scatter<false>(k.call.reduced ? partition : logits.data(), row, end, count * numbers, k.call.scores,
                                  [&](int64_t r) { return (r * k.I + start) * numbers; });
      }
    }

    void moments(int64_t row, int64_t block) {
      if (!k.call.logits) load_parents(row);
      std::fill(mass.begin(), mass.end(), V{});
      std::fill(first.begin(), first.end(), V{});
      std::fill(second.begin(), second.end(), V{});
      for (int start = 0; start < k.I; start += kChildren) {
        const int count = std::min(kChildren, k.I - start);
        load_children(row, start, count);
        if (start == 0 && k.call.scatter) place_shift();
        k.load_own(row, end, start, count, own);
        if (k.call.logits) {
          const T* from = readable(k.call.logits) + k.coefficient(block, start, 0, k.J);
          add(start, count, [&](int j, V* shares) {
            k.probabilities(from, j, count, own.log_partition, shares);
            for (int i = 0; i < count; ++i) shares[i] *= own.weight[i];
          });
        } else {
          compare(start, count);
          k.share_out(logits.data(), own, 0, count);
          add(start, count, [&](int j, V* shares) {
            for (int i = 0; i < count; ++i) shares[i] = logits[i * k.J + j];
          });
        }
      }
      if (k.call.scatter) {  // first is the mean minus the shift
        for (int j = 0; j < k.J; ++j) {
          const V divisor = larger<T>(mass[j], tiny);
          for (int at = j * k.H; at < (j + 1) * k.H; ++at) {
            const V sum = (first[at] + shift[at]) * mass[j];
            shift[at] = first[at] - (sum / divisor - shift[at]);  // now the rest
            first[at] = sum;
          }
        }
        k.store(second.data(), row, end, int64_t{k.J} * k.H, k.call.scatter);
        if (k.call.rest) k.store(shift.data(), row, end, int64_t{k.J} * k.H, k.call.rest);
      }
      k.store(mass.data(), row, end, k.J, k.call.mass);
      k.store(first.data(), row, end, int64_t{k.J} * k.H, k.call.sum);
    }

    // Votes are measured from one of them: float32 has too few digits for a small deviation beside a large mean.
    void place_shift() {
      for (int j = 0; j < k.J; ++j) k.store_vote(u.data(), k.transform(0, j), k.offset(0), shift.data() + j * k.H);
    }

    // Adds up the votes of some children times their shares, which `find(j, shares)` gives.
    template <typename Find>
    __attribute__((noinline)) void add(int start, int count, const Find& find) {
      for (int j = 0; j < k.J; ++j) {
        for (int i = 0; i < count; ++i)
          k.store_vote(u.data() + i * k.M * k.P, k.transform(start + i, j), k.offset(start + i), votes.data() + i * k.H);
        for (int i = count; i < kChildren; ++i) std::fill_n(votes.data() + i * k.H, k.H, V{});
        V r[kChildren] = {}, total{};
        find(j, r);
        for (int i = 0; i < kChildren; ++i) total += r[i];
        k.call.scatter ? add_moments(j, r, total) : add_sum(j, r);
        mass[j] += total;
      }
    }

    __attribute__((noinline)) void add_sum(int j, const V* r) {
      V* sum = first.data() + int64_t{j} * k.H;
      for (int h = 0; h < k.pose(); ++h) {
        V total = sum[h];
#pragma GCC unroll 8
        for (int i = 0; i < kChildren; ++i) total += r[i] * votes[i * k.H + h];
        sum[h] = total;
      }
    }

    // Merges the mean and scatter of some votes, with weights r of sum `total`, into those of the votes before (Chan, Golub &
    // LeVeque 1979).
    __attribute__((noinline)) void add_moments(int j, const V* r, V total) {
      V *mean = first.data() + int64_t{j} * k.H, *scatter = second.data() + int64_t{j} * k.H;
      const V* from = shift.data() + int64_t{j} * k.H;
      const V one = T(1) / larger<T>(total, tiny), ratio = total / larger<T>(mass[j] + total, tiny), part = mass[j] * ratio;
      const int size = k.pose();
      for (int h = 0; h < size; ++h) {
        V v[kChildren], sum{}, square{};
#pragma GCC unroll 8
        for (int i = 0; i < kChildren; ++i) {
          v[i] = votes[i * size + h] - from[h];
          sum += r[i] * v[i];
        }
        const V middle = sum * one;
#pragma GCC unroll 8
        for (int i = 0; i < kChildren; ++i) {
          const V deviation = v[i] - middle;
          square += r[i] * deviation * deviation;
        }
        const V apart = middle - mean[h];
        mean[h] += ratio * apart;
        scatter[h] += square + part * apart * apart;
      }
    }
  };

  // One block of rows: shares and gradients of the logits, and from these those of the similarity and the activations.
  struct Flow {
    enum GradShare { kOfNothing, kOfSum, kOfScatter };  // a share's gradient, from those of sum and scatter

    const AnyPose& k;
    const bool moments;   // else scores
    const bool compares;  // and passes gradients on to the parents
    std::vector<V> centre, precision, log_weight, mean, up_mass, up_sum, up_scatter;  // of the parents
    std::vector<V> mass, first, second;                                               // weighted by the logits' gradients
    std::vector<V> u, votes, share, gradient, scratch;                                // of some children
    typename Base::Own own;

    explicit Flow(const AnyPose& k)
        : k(k), moments(k.call.grad_scores == nullptr), compares(k.call.grad_parents && !k.call.hard) {
      const size_t field = size_t(k.J) * k.H;
      if (k.call.similarity != kUniform) centre.resize(field);
      if (k.call.similarity == kGaussian) precision.resize(field), log_weight.resize(k.J);
      if (k.call.grad_parents) first.resize(field);
      if (k.call.grad_precision) mass.resize(k.J), second.resize(field);
      if (moments) up_mass.resize(k.J), up_sum.resize(field);
      if (k.call.scatter) mean.resize(field), up_scatter.resize(field);
      u.resize(kChildren * k.M * k.P), votes.resize(kChildren * k.H);
      share.resize(kChildren * k.J), gradient.resize(kChildren * k.J);
      scratch.resize(k.H);
    }

    void rows_of(int64_t row, int64_t end, int64_t block) {
      load_parents(row, end);
      for (auto* sums : {&mass, &first, &second}) std::fill(sums->begin(), sums->end(), V{});
      for (int start = 0; start < k.I; start += kChildren) {
        const int count = std::min(kChildren, k.I - start);
        for (int i = 0; i < count; ++i)
          k.load_child(k.call.children, row, end, start + i, k.M * k.P, u.data() + i * k.M * k.P);
        if (k.call.logits || (moments && k.even())) {
          moments ? flow_apart(row, end, block, start, count) : written_scores(row, end, block, start, count);
          continue;
        }
        compare(start, count);
        moments ? flow_of_moments(row, end, start, count) : flow_of_scores(row, end, start, count);
        k.put_coefficients(share.data(), block, start, count, k.J, k.call.shares);
        put_gradients(block, start, count, [&](int j, V* flow) {
          for (int i = 0; i < count; ++i) flow[i] = gradient[i * k.J + j];
        });
      }
      if (k.call.grad_parents) store_similarity(row, end);
    }

    void load_parents(int64_t row, int64_t end) {
      const int64_t field = int64_t{k.J} * k.H;
      const auto load = [&](const void* tensor, int64_t numbers, std::vector<V>& out) {
        if (!out.empty()) k.load(tensor, row, end, numbers, out.data());
      };
      load(k.call.parents, field, centre);
      load(k.call.precision, field, precision);
      load(k.call.log_weight, k.J, log_weight);
      load(k.call.mean, field, mean);
      load(k.call.mass, k.J, up_mass);
      load(k.call.sum, field, up_sum);
      load(k.call.scatter, field, up_scatter);
      if (up_scatter.empty()) return;
      // <V, dS> = <V - mean, dS> + <mean, dS>, the last one the same for all children
      for (int j = 0; j < k.J; ++j)
        for (int h = 0; h < k.H; ++h) up_mass[j] += mean[j * k.H + h] * up_sum[j * k.H + h];
    }

    // Puts logits into `share`, and the gradient of each share, its gradient, into `gradient`.
    void compare(int start, int count) {
      if (k.call.similarity == kGaussian) return compare_by<kGaussian>(start, count);
      if (k.call.similarity == kInnerProduct) return compare_by<kInnerProduct>(start, count);
      std::fill(share.begin(), share.end(), V{});
      compare_by<kUniform>(start, count);
    }

    template <Similarity similarity>
    void compare_by(int start, int count) {
      if (!up_scatter.empty()) return compare_by<similarity, kOfScatter>(start, count);
      if (moments) return compare_by<similarity, kOfSum>(start, count);
      if constexpr (similarity != kUniform) compare_by<similarity, kOfNothing>(start, count);
    }

    template <Similarity similarity, GradShare grad_of>
    __attribute__((noinline)) void compare_by(int start, int count) {
      const Parents parents = {centre.data(), precision.data(), log_weight.data()};
      for (int j = 0; j < k.J; ++j)
        for (int i = 0; i < count; ++i) {
          Sums sums = {}, grad_sums = {};
          const V* pose = u.data() + i * k.M * k.P;
          k.each_rows(pose, k.transform(start + i, j), k.offset(start + i), scratch.data(), [&](const V* v, int first, int n) {
            k.template compare<similarity>(v, first, n, parents, j, sums);
            add_grad_share<grad_of>(v, first, n, j, grad_sums);
          });
          if constexpr (similarity != kUniform) share[i * k.J + j] = k.template logit<similarity>(sums, parents, j);
          if constexpr (grad_of != kOfNothing) gradient[i * k.J + j] = up_mass[j] + k.total(grad_sums);
        }
    }

    template <GradShare grad_of>
    __attribute__((always_inline)) inline void add_grad_share(const V* v, int first, int count, int j, Sums& sums) const {
      if constexpr (grad_of == kOfNothing) return;
      const int64_t at = int64_t{j} * k.pose() + first;
      const V *s = up_sum.data() + at, *q = up_scatter.data() + at, *m = mean.data() + at;
      if constexpr (grad_of == kOfSum) return add_up(count, sums, [&](int h) { return v[h] * s[h]; });
      add_up(count, sums, [&](int h) {
        const V deviation = v[h] - m[h];
        return deviation * (deviation * q[h] + s[h]);
      });
    }

    // From logits and gradients of the shares to a_i R_ij and the gradients of the logits.
    void flow_of_moments(int64_t row, int64_t end, int start, int count) {
      V mean_grad[kChildren];
      k.load_own(row, end, start, count, own);
      k.flow_of_moments(share.data(), gradient.data(), own, 0, count, mean_grad);
      k.add_own(mean_grad, own, row, end, start, count);
    }

    // The gradients of the logits, from the upstream ones of the logits or of their normaliser; the logits are in `share`.
    void flow_of_scores(int64_t row, int64_t end, int start, int count) {
      if (!k.call.reduced) return load_scores(k.call.grad_scores, row, end, start, count, k.J, gradient.data());
      V grad[kChildren], log_partition[kChildren];
      load_scores(k.call.grad_scores, row, end, start, count, 1, grad);
      load_scores(k.call.scores, row, end, start, count, 1, log_partition);
      for (int i = 0; i < count; ++i)
        for (int j = 0; j < k.J; ++j)
          gradient[i * k.J + j] = grad[i] * exponential_below(share[i * k.J + j] - log_partition[i]);
    }

    void load_scores(const void* scores, int64_t row, int64_t end, int start, int count, int64_t numbers, V* out) const {
      k.gather(scores, row, end, count * numbers, out, [&](int64_t r) { return (r * k.I + start) * numbers; });
    }

    // For shares that can be found one parent at a time: even ones, and those of logits that were written down.
    void flow_apart(int64_t row, int64_t end, int64_t block, int start, int count) {
      V mean_grad[kChildren] = {};
      k.load_own(row, end, start, count, own);
      if (up_scatter.empty()) {
        k.even() ? even_by<kOfSum>(block, start, count, mean_grad) : written_by<kOfSum>(block, start, count, mean_grad);
      } else {
        k.even() ? even_by<kOfScatter>(block, start, count, mean_grad) : written_by<kOfScatter>(block, start, count, mean_grad);
      }
      k.add_own(mean_grad, own, row, end, start, count);
    }

    // The gradient of a share: the gradient of the loss with respect to it.
    template <GradShare grad_of>
    __attribute__((always_inline)) inline V grad_share_of(int start, int i, int j) {
      Sums grad_sums = {};
      k.each_rows(u.data() + i * k.M * k.P, k.transform(start + i, j), k.offset(start + i), scratch.data(),
                  [&](const V* v, int first, int n) { add_grad_share<grad_of>(v, first, n, j, grad_sums); });
      return up_mass[j] + k.total(grad_sums);
    }

    template <GradShare grad_of>
    __attribute__((noinline)) void even_by(int64_t block, int start, int count, V* total) {
      for (int j = 0; j < k.J && (k.call.grad_weights || k.call.grad_log_partition); ++j)
        for (int i = 0; i < count; ++i) total[i] += grad_share_of<grad_of>(start, i, j);
      for (int i = 0; i < count; ++i) {
        const V R = k.even_share(own.log_partition[i]), share = R * own.weight[i];
        total[i] *= R;
        k.put_coefficients(&share, block, start + i, 1, 1, k.call.shares);
      }
    }

    template <GradShare grad_of>
    __attribute__((noinline)) void written_by(int64_t block, int start, int count, V* total) {
      const int64_t at = k.coefficient(block, start, 0, k.J);
      const T* logits = readable(k.call.logits) + at;
      T* shares = k.call.shares ? writable(k.call.shares) + at : nullptr;
      put_gradients(block, start, count, [&](int j, V* flow) {
        V R[kChildren];
        k.probabilities(logits, j, count, own.log_partition, R);
        for (int i = 0; i < count; ++i) {
          const V g = grad_share_of<grad_of>(start, i, j);
          total[i] += R[i] * g;
          k.put_coefficient(R[i] * own.weight[i], shares, i, j);
          flow[i] = R[i] * (own.weight[i] * g);
        }
      });
    }

    void written_scores(int64_t row, int64_t end, int64_t block, int start, int count) {
      const T* logits = readable(k.call.logits) + k.coefficient(block, start, 0, k.J);
      V grad[kChildren], log_partition[kChildren];
      load_scores(k.call.grad_scores, row, end, start, count, 1, grad);
      load_scores(k.call.scores, row, end, start, count, 1, log_partition);
      put_gradients(block, start, count, [&](int j, V* flow) {
        k.probabilities(logits, j, count, log_partition, flow);
        for (int i = 0; i < count; ++i) flow[i] *= grad[i];
      });
    }

    // Stores the gradients of the logits of some children, which `find(j, flow)` gives, with `adds` plus those that are there,
    // and adds up the votes, or their deviations from the centres, times these.
    template <typename Find>
    __attribute__((noinline)) void put_gradients(int64_t block, int start, int count, const Find& find) {
      T* to = k.call.flow ? writable(k.call.flow) + k.coefficient(block, start, 0, k.J) : nullptr;
      if (compares) std::fill(votes.begin() + count * k.H, votes.end(), V{});
      for (int j = 0; j < k.J; ++j) {
        V f[kChildren] = {};
        find(j, f);
        for (int i = 0; i < count; ++i) {
          if (k.call.adds) f[i] += k.coefficient_of(to, i, j);
          k.put_coefficient(f[i], to, i, j);
        }
        if (!compares) continue;
        for (int i = 0; i < count; ++i)
          k.store_vote(u.data() + i * k.M * k.P, k.transform(start + i, j), k.offset(start + i), votes.data() + i * k.H);
        k.call.similarity == kGaussian ? add_deviations(j, f) : add_votes(j, f);
      }
    }

    __attribute__((noinline)) void add_votes(int j, const V* f) {
      V* sum = first.data() + int64_t{j} * k.H;
      for (int h = 0; h < k.pose(); ++h) {
        V total = sum[h];
#pragma GCC unroll 8
        for (int i = 0; i < kChildren; ++i) total += f[i] * votes[i * k.H + h];
        sum[h] = total;
      }
    }

    __attribute__((noinline)) void add_deviations(int j, const V* f) {
      V *once = first.data() + int64_t{j} * k.H, *twice = second.data() + int64_t{j} * k.H;
      const V* from = centre.data() + int64_t{j} * k.H;
      for (int i = 0; i < kChildren; ++i) mass[j] += f[i];
      const int size = k.pose();
      for (int h = 0; h < size; ++h) {
        V sum = once[h], square = twice[h];
#pragma GCC unroll 8
        for (int i = 0; i < kChildren; ++i) {
          const V deviation = votes[i * size + h] - from[h], slope = f[i] * deviation;
          sum += slope;
          square += slope * deviation;
        }
        once[h] = sum, twice[h] = square;
      }
    }

    void store_similarity(int64_t row, int64_t end) {
      const int64_t field = int64_t{k.J} * k.H;
      if (k.call.similarity == kGaussian) {
        for (int64_t n = 0; n < field; ++n) first[n] *= precision[n], second[n] *= T(-0.5);
        k.store(second.data(), row, end, field, k.call.grad_precision);
        k.store(mass.data(), row, end, k.J, k.call.grad_log_weight);
      }
      k.store(first.data(), row, end, field, k.call.grad_parents);
    }
  };

  // Some blocks of rows: the gradients of the votes, from the terms of all steps, and from these those of all inputs.
  struct PassOn {
    static constexpr int kTerms = 6;  // at once
    static constexpr int kPair = 2;   // children at once, which share the parents' fields

    // Where the coefficients of a term lie, and how far it is to those of the next parent and of the next children.
    struct Source {
      const T* first;
      int64_t parent, children;
    };

    const AnyPose& k;
    T *grad_transforms, *grad_coordinates;
    std::vector<V> fields;                    // of each block, [J, H, terms, 2]: constant and slope
    std::vector<V> origins;                   // of each block, [J, H]: votes are measured from there
    std::vector<V> u, du, d_votes, d_offset;  // per child and block, [children, blocks, ...]
    std::vector<V> field, steepest, votes;
    std::vector<Source> sources;  // of each block and term, for some children
    int64_t row = 0, end = 0, block = 0;
    int count = 0;  // of blocks

    PassOn(const AnyPose& k, T* grad_transforms, T* grad_coordinates)
        : k(k), grad_transforms(grad_transforms), grad_coordinates(grad_coordinates) {
      const size_t pairs = kBlocks * kChildren;
      field.resize(k.J * k.H), fields.resize(kBlocks * field.size() * k.call.count * 2);
      origins.resize(kBlocks * field.size()), steepest.resize(field.size());
      u.resize(pairs * k.M * k.P), du.resize(pairs * k.M * k.P), d_votes.resize(pairs * k.H);
      d_offset.resize(kChildren * k.H), votes.resize(kPair * k.H), sources.resize(kBlocks * k.call.count);
    }

    static int64_t pair(int i, int b) { return i * kBlocks + b; }

    V* fields_of(int b, int j) { return fields.data() + (int64_t{b} * k.J + j) * k.H * k.call.count * 2; }

    V* origin_of(int b, int j) { return origins.data() + (int64_t{b} * k.J + j) * k.H; }

    // Votes are measured from the centre of the term with the steepest slope: beside it, float32 has too few digits for a
    // large mean.
    void load_fields(int b) {
      const int64_t stride = k.call.count * 2;
      const auto load = [&](const void* tensor, V* out) {
        tensor ? k.load(tensor, row + b * kLanes, end, field.size(), out) : (void)std::fill_n(out, field.size(), V{});
      };
      V* const origin = origin_of(b, 0);
      std::fill_n(origin, field.size(), V{});
      std::fill(steepest.begin(), steepest.end(), V{});
      for (int64_t t = 0; t < k.call.count; ++t) {
        const TorchcapsTerm& term = k.call.terms[t];
        V* const to = fields_of(b, 0) + 2 * t;
        load(term.constant, field.data());
        for (size_t n = 0; n < field.size(); ++n) to[n * stride] = field[n];
        load(term.slope, field.data());
        for (size_t n = 0; n < field.size(); ++n) to[n * stride + 1] = field[n];
        if (!term.centre) continue;
        load(term.centre, field.data());
        for (size_t n = 0; n < field.size(); ++n) {
          const V slope = to[n * stride + 1], steep = larger<T>(slope, -slope);
          origin[n] = steep > steepest[n] ? field[n] : origin[n];
          steepest[n] = larger<T>(steep, steepest[n]);
        }
      }
      for (int64_t t = 0; t < k.call.count; ++t) {
        const TorchcapsTerm& term = k.call.terms[t];
        if (!term.slope) continue;
        V* const to = fields_of(b, 0) + 2 * t;
        load(term.centre, field.data());
        for (size_t n = 0; n < field.size(); ++n) to[n * stride] += to[n * stride + 1] * (origin[n] - field[n]);
        if (!term.rest) continue;
        load(term.rest, field.data());
        for (size_t n = 0; n < field.size(); ++n) to[n * stride] -= to[n * stride + 1] * field[n];
      }
    }

    void rows_of(int64_t first, int64_t last, int64_t first_block) {
      row = first, end = last, block = first_block;
      count = static_cast<int>(std::min<int64_t>(kBlocks, blocks(end - row)));
      for (int b = 0; b < count; ++b) load_fields(b);
      for (int start = 0; start < k.I; start += kChildren) children(start, std::min(kChildren, k.I - start));
    }

    void children(int start, int n) {
      const int size = k.M * k.P;
      for (int i = 0; i < n; ++i)
        for (int b = 0; b < count; ++b)
          k.load_child(k.call.children, row + b * kLanes, end, start + i, size, u.data() + pair(i, b) * size);
      for (int b = 0; b < count; ++b)
        for (int64_t t = 0; t < k.call.count; ++t) {
          const auto& term = k.call.terms[t];
          const T* first = readable(term.coefficient) + k.coefficient(block + b, start, 0, term.parents);
          sources[b * k.call.count + t] = {first, term.parents > 1 ? k.next_parent() : 0, term.parents * k.next_parent()};
        }
      std::fill(du.begin(), du.end(), V{});
      if (grad_coordinates) std::fill(d_offset.begin(), d_offset.end(), V{});
      for (int j = 0; j < k.J; ++j) {
        for (int b = 0; b < count; ++b) votes_of(j, b, start, n);
        for (int i = 0; i < n && grad_transforms; ++i) add_transform(j, i, start + i);
      }
      for (int i = 0; i < n; ++i) {
        for (int b = 0; b < count && k.call.grad_children; ++b)
          k.add_child(du.data() + pair(i, b) * size, row + b * kLanes, end, start + i, size, k.call.grad_children);
        if (!grad_coordinates) continue;
        for (int h = 0; h < k.H; ++h) grad_coordinates[int64_t{start + i} * k.H + h] += lane_sum<T>(d_offset[i * k.H + h]);
      }
    }

    // The gradients of the votes for parent j, into `d_votes`, and what they pass on to the poses.
    __attribute__((noinline)) void votes_of(int j, int b, int start, int n) {
      for (int i = 0; i < n; i += kPair) {
        const int both = std::min(kPair, n - i);
        for (int one = 0; one < both; ++one) {
          const int child = start + i + one;
          k.store_vote(u.data() + pair(i + one, b) * k.M * k.P, k.transform(child, j), k.offset(child), votes.data() + one * k.H);
        }
        both == kPair ? add_terms<kPair>(i, j, b) : add_terms<1>(i, j, b);
        for (int one = i; one < i + both; ++one) {
          const V* g = d_votes.data() + pair(one, b) * k.H;
          if (k.call.grad_children) k.vote_backward(g, k.transform(start + one, j), du.data() + pair(one, b) * k.M * k.P);
          if (grad_coordinates)
            for (int h = 0; h < k.pose(); ++h) d_offset[one * k.H + h] += g[h];
        }
      }
    }

    // dV_ij = sum over terms of coefficient (constant + slope (V_ij - origin)), of some children
    template <int children>
    inline void add_terms(int i, int j, int b) {
      const int count = static_cast<int>(k.call.count);
      add_some_terms<children, true>(i, j, b, 0, std::min(count, kTerms));
      for (int first = kTerms; first < count; first += kTerms)
        add_some_terms<children, false>(i, j, b, first, std::min(count - first, kTerms));
    }

    template <int children, bool begins, int terms = 0>
    inline void add_some_terms(int i, int j, int b, int first, int count) {
      if constexpr (terms < kTerms)
        if (count > terms) return add_some_terms<children, begins, terms + 1>(i, j, b, first, count);
      V r[children][terms + 1];
      V* g[children];
      const V* v[children];
      for (int one = 0; one < children; ++one) {
        for (int t = 0; t < terms; ++t) {
          const Source& from = sources[b * k.call.count + first + t];
          const T* coefficient = from.first + (i + one) * k.width() + j * from.parent;
          __builtin_prefetch(coefficient + from.children);
          r[one][t] = k.load_coefficient(coefficient);
        }
        g[one] = d_votes.data() + pair(i + one, b) * k.H;
        v[one] = votes.data() + one * k.H;
      }
      const V *fields = fields_of(b, j) + 2 * first, *origin = origin_of(b, j);
      const int64_t stride = k.call.count * 2;
#pragma GCC unroll 4
      for (int h = 0; h < k.pose(); ++h, fields += stride) {
        V constant[children] = {}, slope[children] = {};
#pragma GCC unroll 8
        for (int t = 0; t < terms; ++t)
#pragma GCC unroll 2
          for (int one = 0; one < children; ++one) {
            constant[one] += r[one][t] * fields[2 * t];
            slope[one] += r[one][t] * fields[2 * t + 1];
          }
#pragma GCC unroll 2
        for (int one = 0; one < children; ++one)
          g[one][h] = (begins ? V{} : g[one][h]) + constant[one] + slope[one] * (v[one][h] - origin[h]);
      }
    }

    // dW_ij += sum over rows of u_i^T dV_ij, for as many elements at a time as a vector has lanes.
    __attribute__((noinline)) void add_transform(int j, int i, int child) {
      const int numbers = k.P * k.D;
      T* out = grad_transforms + (int64_t{k.call.shared ? 0 : child} * k.J + j) * numbers;
      for (int start = 0; start < numbers; start += kLanes) {
        V sums[kLanes];
        for (int l = 0; l < kLanes; ++l) sums[l] = V{};
        for (int b = 0; b < count; ++b)
          for (int m = 0; m < k.M; ++m)
            outer(u.data() + (pair(i, b) * k.M + m) * k.P, d_votes.data() + pair(i, b) * k.H + m * k.D, start, sums);
        fold_all<T, kLanes / 2>(sums);
        const int live = std::min(kLanes, numbers - start);
        if (live == kLanes) {
          store_vector<T>(load_vector(out + start) + sums[0], out + start);
        } else {
          for (int l = 0; l < live; ++l) out[start + l] += sums[0][l];
        }
      }
    }

    __attribute__((always_inline)) inline void outer(const V* pose, const V* g, int start, V* sums) const {
      if constexpr (kKnown && kLanes % D_ == 0) {
        for (int p = 0; p < kLanes / D_; ++p)
          for (int d = 0; d < D_; ++d) sums[p * D_ + d] += pose[start / D_ + p] * g[d];
      } else {
        for (int at = start; at < std::min<int>(start + kLanes, k.P * k.D); ++at)
          sums[at - start] += pose[at / k.D] * g[at % k.D];
      }
    }
  };
};

}  // namespace
