// One step of routing by inner products, of children whose transforms are shared by the places of a map. No vote is formed: the
// transforms have moved to the parents.
//
//   l_ij = <x_i, A_tj>,  R_ij = softmax_j l_ij,  S_tj = sum_(i of type t) a_i R_ij x_i,  x_i = [u_i | e_n]
//
// A_tj are the queries of the parents. A child i is of one of T types and at one of N places; x_i has the Q numbers u_i of its
// pose, standardised if asked for, and E more that depend on its place n alone, such as 1 and its coordinates.
//
// For one example and type, a pass takes its places in blocks whose shares stay in the nearest cache:
//
//   for each block of places
//     for each group of its places, one in each lane
//       for all parents, a few at once:  l_ij, 2^l_ij, their sum over the parents
//     for all parents, a few at once, the pose in the lanes
//       for each place:                  S_tj += R_ij x_i
//
// The pass back makes l_ij and R_ij again, from the largest logit and 1 / sum of each child, with <x_i, dS_tj> beside l_ij:
//
//   dl_ij = a_i R_ij (<x_i, dS_tj> - da_i),  da_i = sum_j R_ij <x_i, dS_tj>,
//   du_i = sum_j a_i R_ij dS_tj + dl_ij A_tj,  dA_tj = sum_i dl_ij x_i
//
// Of standardised poses that is the gradient of x_i, with centred A and dS. That of the pose is (dx_i - x_i <x_i, dx_i> / Q) /
// deviation, and <x_i, dx_i> = sum_j a_i R_ij <x_i, dS_tj> + dl_ij <x_i, A_tj> is known before dx_i is.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <memory>

#include "rows.hpp"

// Mirrored in torchcaps/ops/fused/folded.py. Tensors are contiguous; a null pointer stands for one that is not there.
struct TorchcapsFolded {
  int64_t B, N, T, J, Q, E, leaky, threads, adds;  // whether gradients of children are added to what is there
  double epsilon;  // poses are standardised with it; they are taken as they are if it is negative
  const void *children, *places, *weights;  // [B, N, T, Q], [E, N], [B, N, T]
  const void *queries, *place_queries;      // [B, T, J, Q], [B, T, J, E]
  void *sums, *place_sums, *partition;      // [B, T, J, Q], [B, T, J, E], [B, T, groups of places, 2, lanes] or null
  const void *grad_sums, *grad_place_sums;
  void *grad_children, *grad_weights, *grad_queries, *grad_place_queries;
};

namespace {

constexpr double kLog2E = 1.4426950408889634, kLn2 = 0.6931471805599453;

// Takes tasks in turn, on at most so many threads: whoever is ready takes the next one, so no thread waits for another but at
// the very end.
template <typename Work>
void share_out(int64_t threads, int64_t tasks, const Work& work) {
  std::atomic<int64_t> next{0};
  std::exception_ptr failed;  // no exception may leave the parallel region
  const auto take = [&] {
    [[maybe_unused]] const WithoutSubnormals here{};
    try {
      work([&] { return next.fetch_add(1); });
    } catch (...) {
#pragma omp critical
      failed = std::current_exception();
    }
  };
  const int64_t most = omp_in_parallel() ? 1 : std::min(threads, tasks);
  if (most <= 1) {
    take();
  } else {
#pragma omp parallel num_threads(static_cast<int>(most))
    take();
  }
  if (failed) std::rethrow_exception(failed);
}

template <int most, typename Work>
__attribute__((always_inline)) inline void with_size(int size, const Work& work) {
  if constexpr (most > 1)
    if (size < most) return with_size<most - 1>(size, work);
  work(std::integral_constant<int, most>{});
}

// A number of things in groups of at most `most`, nearly the same ones.
template <int most>
struct Groups {
  explicit Groups(int count) : groups((count + most - 1) / most), size(count / std::max(groups, 1)), larger(count - size * groups) {}

  // Calls work(n, first) for each group; n is known at compile time.
  template <typename Work>
  __attribute__((always_inline)) void each(const Work& work) const {
    run(size + 1, 0, larger, work);
    run(size, larger * (size + 1), groups - larger, work);
  }

 private:
  template <typename Work>
  __attribute__((always_inline)) static void run(int count, int first, int times, const Work& work) {
    if (!times) return;
    with_size<most>(count, [&](auto n) __attribute__((always_inline)) {
      for (int at = first; at < first + times * n; at += n) work(n, at);
    });
  }

  const int groups, size, larger;
};

// 2^t of n vectors, t in [-126, 126] or NaN, with a relative error of 2e-7. Stage by stage: the chain of one vector alone would
// wait for its own results.
template <int n>
__attribute__((always_inline)) inline void powers_of_two(Vec<float>* t) {
  using V = Vec<float>;
  typedef Lanes<float>::Mask Mask;
  constexpr float kCoefficients[] = {0.009675541293f, 0.0555071329f, 0.2402211972f, 0.6931469671f, 1.000000072f};
  constexpr float kRounding = 12582912.0f + 127;  // a sum with it is rounded to a whole number, and ends in the bits of an exponent
  Mask whole[n];
  V rest[n], y[n];
#pragma GCC unroll 16
  for (int k = 0; k < n; ++k) {
    const V shifted = t[k] + kRounding;
    whole[k] = (Mask)shifted << 23;
    rest[k] = t[k] - (shifted - kRounding);
    y[k] = rest[k] * 0.00132764668f + kCoefficients[0];
  }
#pragma GCC unroll 16
  for (int stage = 1; stage < 5; ++stage)
#pragma GCC unroll 16
    for (int k = 0; k < n; ++k) y[k] = y[k] * rest[k] + kCoefficients[stage];
#pragma GCC unroll 16
  for (int k = 0; k < n; ++k) t[k] = y[k] * (V)whole[k];
}

template <int n>
inline void powers_of_two(Vec<double>* t) {
  for (int k = 0; k < n; ++k)
    for (int lane = 0; lane < Lanes<double>::count; ++lane) t[k][lane] = std::exp2(t[k][lane]);
}

// The first numbers of a vector, 0 in the others.
template <typename T>
inline Vec<T> load_first(const T* from, int count) {
  if (count >= Lanes<T>::count) return load_vector(from);
  Vec<T> value{};
  for (int lane = 0; lane < count; ++lane) value[lane] = from[lane];
  return value;
}

template <typename T>
inline void store_first(Vec<T> value, T* to, int count) {
  if (count >= Lanes<T>::count) return store_vector<T>(value, to);
  for (int lane = 0; lane < count; ++lane) to[lane] = value[lane];
}

template <typename T>
constexpr int64_t whole_vectors(int64_t count) {
  return (count + Lanes<T>::count - 1) / Lanes<T>::count * Lanes<T>::count;
}

// The pass over the places of one example and type; has memory for the work of one thread. Q_ is Q, or 0 if only known at run
// time.
template <typename T, int Q_>
class FoldedPass {
  using V = Vec<T>;
  static constexpr int L = Lanes<T>::count;
  static constexpr bool kHolds = Q_ && Q_ <= kRegisters / 2;  // the poses of a group are in registers, and never standardised
  static constexpr int kParents = kHolds ? kRegisters * 5 / 16 : kRegisters / 2;  // in work at once
  static constexpr int kParentsBack = kHolds ? kRegisters / 8 : kRegisters / 2;   // the same in the pass back

 public:
  struct Child {
    const T *poses, *weights;  // of the first place
    int64_t stride, weight_stride;
  };

  FoldedPass(int64_t N, int64_t J, int64_t Q, int64_t E, const T* places, bool leaky, double epsilon)
      : N(N), J(J), E(E), Q(Q), row(whole_vectors<T>(Q)), block(block_of(N, J, row)), places(places), leaky(leaky),
        standard(epsilon >= 0), epsilon(epsilon), logit_groups(J), back_groups(J), narrow_groups(J), wide_groups(J) {
    const int64_t pairs = int64_t{block} * J, wide = int64_t{row} * J;
    memory.reset(new V[(2 * pairs + int64_t{block} * (row + 1) + 7 * wide + row) / L + row + Q + (J + 2) * E]);
    T* free = reinterpret_cast<T*>(memory.get());
    const auto take = [&](int64_t count) { return std::exchange(free, free + count); };
    shares = take(pairs), flows = take(pairs), rows = take(int64_t{block} * row);
    centred_queries = take(wide), centred_slopes = take(wide), total = take(wide), queries = take(wide), slopes = take(wide);
    turned_queries = take(wide), turned_slopes = take(wide);
    means = take(block), largest = take(row + E * L), cut = take(L * row);
    poses = reinterpret_cast<V*>(take((Q + E) * L)), place_sums = reinterpret_cast<V*>(take(J * E * L));
  }

  static int64_t partition_size(int64_t N) { return 2 * whole_vectors<T>(N); }

  // S_tj and its part of the places from A_tj; the partition is null where no pass back follows. Neither pass
  // is inlined: among the variables of its caller, GCC would keep fewer of its own in registers.
  __attribute__((noinline)) void forward(Child child, const T* A, const T* Ae, T* S, T* Se, T* partition) {
    T* const sum = Q == row ? S : total;
    std::fill_n(sum, int64_t{J} * row, T(0));
    if (Se) std::fill_n(place_sums, J * E, V{});
    A = centred(A, centred_queries);
    if constexpr (kHolds) find_largest(A, Ae);
    A = by_number(A, turned_queries);
    // Where parents are few, their shares are scaled and poses added up where they lie; else scaled copies of the poses.
    const bool copies = Q != row || J > 2 * row;
    for (int first = 0; first < N; first += block) {
      const int count = std::min(block, N - first);
      for (int n = 0; n < count; n += L) {
        const int there = std::min(L, count - n);
        V local[kHolds ? Q_ : 1], *x = kHolds ? local : poses;
        const V scale = load_places(child, first + n, there, x, means + n);
        V top, total;
        T* const share = shares + int64_t{n} * J;
        exponentials(x, scale * T(kLog2E), load_extra(first + n), A, Ae, share, top, total);
        V factor = T(1) / total;
        if (partition) store_vector<T>(top, partition + 2 * (first + n)), store_vector<T>(factor, partition + 2 * (first + n) + L);
        if (child.weights) factor *= load_weights(child, first + n, there);
        if (Se) add_up_places(share, first + n, factor);
        copies ? copy_rows(child, first, n, there, factor * scale) : multiply(share, factor * scale);
      }
      add_up_rows(shares, child, first, count, copies, sum);
    }
    if (Se) sum_places(Se);
    if (Q != row) unpadded(total, S);
    if (standard) centre(S, S);
  }

  // From dS_tj (G), and its part of the places or null, to du_i, which may be added to what is there, da_i (null if not wanted) and dA_tj.
  __attribute__((noinline)) void backward(Child child, const T* A, const T* Ae, const T* G, const T* Ge, const T* partition, T* du,
                                          bool adds, T* da, T* dA, T* dAe) {
    T* const sum = Q == row ? dA : total;
    std::fill_n(sum, int64_t{J} * row, T(0));
    if (dAe) std::fill_n(place_sums, J * E, V{});
    A = centred(A, centred_queries), G = centred(G, centred_slopes);
    const T *wide_A = kHolds ? A : padded(A, queries), *wide_G = kHolds ? G : padded(G, slopes);
    const bool copies = Q != row;  // else poses are added up where they lie
    A = by_number(A, turned_queries), G = by_number(G, turned_slopes);
    for (int first = 0; first < N; first += block) {
      const int count = std::min(block, N - first);
      for (int n = 0; n < count; n += L) {
        const int there = std::min(L, count - n);
        T *const R = shares, *const dl = flows + int64_t{n} * J;
        V along{}, scale;
        Along own{};
        {
          V local[kHolds ? Q_ : 1], *x = kHolds ? local : poses;
          scale = load_places(child, first + n, there, x, means + n);
          const V* const e = load_extra(first + n);
          const V top = load_vector(partition + 2 * (first + n)), inverse = load_vector(partition + 2 * (first + n) + L);
          back_groups.each([&](auto size, int j) __attribute__((always_inline)) {
            constexpr int m = size;
            V t[m], d[m], without[m];
            products<m>(x, scale * T(kLog2E), A + j * parent_step(), t);
#pragma GCC unroll 16
            for (int k = 0; k < m; ++k) without[k] = t[k];
            add_places<m>(e, Ae + j * E, t);
#pragma GCC unroll 16
            for (int k = 0; k < m; ++k) t[k] = bounded(t[k] - top);
            powers_of_two<m>(t);
#pragma GCC unroll 16
            for (int k = 0; k < m; ++k) store_vector<T>(t[k] *= inverse, R + (j + k) * L);
            products<m>(x, scale * T(kLog2E), G + j * parent_step(), d);
            if (!kHolds && standard)
#pragma GCC unroll 16
              for (int k = 0; k < m; ++k) own.slope += t[k] * d[k];
            if (Ge) add_places<m>(e, Ge + j * E, d);
#pragma GCC unroll 16
            for (int k = 0; k < m; ++k) {
              const V part = t[k] * d[k];
              along += part;
              if (!kHolds && standard) own.both += part * without[k], own.pose += t[k] * without[k];
              store_vector<T>(d[k], dl + (j + k) * L);
            }
          });
        }
        if (da) store_weights(along * T(kLn2), child, first + n, there, da);
        const V weight = child.weights ? load_weights(child, first + n, there) : splat(T(1));
        const V factor = kHolds ? weight : weight * scale;
        V flow[kHolds ? Q_ : 1];
        for (V& sum : flow) sum = V{};
        for (int j = 0; j < J; ++j) {
          const V y = load_vector(R + j * L) * factor, slope = y * T(kLn2) * (load_vector(dl + j * L) - along);
          store_vector<T>(slope, dl + j * L);
          if constexpr (kHolds) {
#pragma GCC unroll 16
            for (int q = 0; q < Q_; ++q) flow[q] += y * wide_G[j * Q_ + q];
#pragma GCC unroll 16
            for (int q = 0; q < Q_; ++q) flow[q] += slope * wide_A[j * Q_ + q];
          } else {
            store_vector<T>(y, R + j * L);
          }
        }
        // Whole groups are read and written where they lie; others are copied, and cut out of their copies.
        const bool whole = there == L && Q == row;
        if (!whole) copy_rows(child, first, n, there, splat(T(1)));
        if (dAe) add_up_places(dl, first + n, standard ? T(1) / scale : splat(T(1)));
        if (!du) continue;
        T* const to = du + (first + n) * child.stride;
        if constexpr (kHolds) {
          store_places(flow, there, to, child.stride, adds);
        } else {
          T back[L];
          const V all = T(kLn2) * own.slope + T(kLn2 * kLn2) * (own.both - along * own.pose);
          store_vector<T>(all * factor * scale / T(-int(Q)), back);
          Start start{nullptr, row, means + n, back};
          if (standard) start.poses = whole ? child.poses + (first + n) * child.stride : rows + int64_t{n} * row;
          if (whole) {
            start.step = child.stride;
            pass_on(R, dl, wide_G, wide_A, start, to, child.stride, adds);
            continue;
          }
          pass_on(R, dl, wide_G, wide_A, start, cut, row, false);
          for (int k = 0; k < there; ++k)
            for (int q = 0; q < Q; q += L) {
              T* const at = to + k * child.stride + q;
              const V value = load_vector(cut + k * row + q);
              store_first<T>(adds ? value + load_first(at, Q - q) : value, at, Q - q);
            }
        }
      }
      add_up_rows(flows, child, first, count, copies, sum);
    }
    if (dAe) sum_places(dAe);
    if (Q != row) unpadded(total, dA);
    if (standard) centre(dA, dA);
  }

  void uniform_back(Child child, T share, const T* G, const T* Ge, T* du, bool adds, T* da) {
    std::fill_n(total, row, T(0));
    for (int j = 0; j < J; ++j)
      for (int q = 0; q < Q; q += L) store_first<T>(load_vector(total + q) + load_first(G + int64_t{j} * Q + q, Q - q), total + q, Q - q);
    for (int n = 0; n < N; ++n) {
      const T weight = child.weights ? child.weights[n * child.weight_stride] * share : share;
      T* const to = du + n * child.stride;
      for (int q = 0; du && q < Q; q += L) {
        const V flow = load_vector(total + q) * weight;
        store_first<T>(adds ? flow + load_first(to + q, Q - q) : flow, to + q, Q - q);
      }
      if (!da) continue;
      T along = 0;
      for (int q = 0; q < Q; ++q) along += total[q] * child.poses[n * child.stride + q];
      for (int k = 0; Ge && k < E; ++k)
        for (int j = 0; j < J; ++j) along += Ge[j * E + k] * places[k * N + n];
      da[n * child.weight_stride] += share * along;
    }
  }

 private:
  static int block_of(int64_t N, int64_t J, int64_t row) {
    constexpr int64_t kNumbers = 4096;  // of a block, so that shares and poses stay in the nearest cache
    const int64_t fitting = kNumbers / std::max(J, row) / L * L;
    return static_cast<int>(std::clamp<int64_t>(fitting, L, whole_vectors<T>(N)));
  }

  // Sums over the parents for <x_i, dx_i> of standardised poses: of R_ij times <x_i, dS_tj>, <x_i, A_tj>, and both.
  struct Along {
    V slope, pose, both;
  };

  // What the gradients of a group of standardised places begin with: back (pose - mean).
  struct Start {
    const T* poses;  // null if they begin with 0
    int64_t step;
    const T *means, *back;
  };

  // At least the exponent of the least normal number; NaN stays.
  static V bounded(V t) { return larger<T>(splat(T(std::numeric_limits<T>::min_exponent - 1)), t); }

  V load_weights(Child child, int n, int there) const {
    if (child.weight_stride == 1) return load_first(child.weights + n, there);
    V value{};
    for (int lane = 0; lane < there; ++lane) value[lane] = child.weights[(n + lane) * child.weight_stride];
    return value;
  }

  void store_weights(V value, Child child, int n, int there, T* da) const {
    for (int lane = 0; lane < there; ++lane) da[(n + lane) * child.weight_stride] += value[lane];
  }

  // The poses of a group of places, one in each lane; where places are missing the last one is repeated. Returns 1, or if poses
  // are standardised 1 / deviation, while their means go to `mean`. Those in registers are multiplied by that and log2 e, so that
  // exponentials are powers of two; for those in memory, the logits are.
  __attribute__((always_inline)) V load_places(Child child, int n, int there, V* x, T* mean) const {
    const auto each_place = [&](const auto& work) __attribute__((always_inline)) {
      const T* from = child.poses + n * child.stride;
#pragma GCC unroll 16
      for (int lane = 0; lane < L; ++lane) {
        work(lane, from);
        from += lane + 1 < there ? child.stride : 0;
      }
    };
    int q = 0;
    for (; q + L <= Q; q += L) {
      V tile[L];
      each_place([&](int lane, const T* from) __attribute__((always_inline)) {
        tile[lane] = load_vector(from + q);
        // The same place of the next group: rows of few numbers lie too far apart for the hardware to foresee.
        if constexpr (kHolds) __builtin_prefetch(from + q + L * child.stride);
      });
      transpose<T>(tile);
#pragma GCC unroll 16
      for (int lane = 0; lane < L; ++lane) x[q + lane] = tile[lane];
    }
    if constexpr (L / 2 >= 4 && (!Q_ || Q_ % L == L / 2)) {
      if (q + L / 2 <= Q) {
        Half<T> half[L];
        each_place([&](int lane, const T* from) __attribute__((always_inline)) { half[lane] = load_half(from + q); });
#pragma GCC unroll 16
        for (int lane = 0; lane < L / 2; ++lane) x[q + lane] = joined<T>(half[lane], half[lane + L / 2], std::make_index_sequence<L>{});
        transpose<T, L / 2>(x + q);
        q += L / 2;
      }
    }
    if constexpr (!Q_ || Q_ % (L / 2)) {
      for (; q < Q; ++q) each_place([&](int lane, const T* from) __attribute__((always_inline)) { x[q][lane] = from[q]; });
    }
    const V scale = standard ? statistics(x, mean) : splat(T(1));
    if constexpr (kHolds)
      for (int k = 0; k < Q; ++k) x[k] *= scale * T(kLog2E);
    return scale;
  }

  // The poses of a group of places from one in each lane to where they lie, or added to what is there; x is overwritten.
  __attribute__((always_inline)) void store_places(V* x, int there, T* to, int64_t stride, bool adds) const {
    constexpr int wide = Q_ % L ? L / 2 : L;  // numbers of a place that a vector of the transposed has
    static_assert(Q_ % wide == 0);
#pragma GCC unroll 4
    for (int q = 0; q < Q_; q += wide) {
      transpose<T, wide>(x + q);
      T* at = to + q;
      for (int n = 0; n < there; ++n, at += stride) {
        const T* const from = reinterpret_cast<const T*>(x + q + n % wide) + n / wide * wide;
        if constexpr (wide == L)
          store_vector<T>(adds ? load_vector(from) + load_vector(at) : load_vector(from), at);
        else
          store_half<T>(adds ? load_half(from) + load_half(at) : load_half(from), at);
      }
    }
  }

  // 1 / deviation. Sums are taken about the first number: it is at most sqrt(Q) deviations from the mean, so little cancels.
  V statistics(const V* x, T* mean) const {
    constexpr int kSums = 4;  // so that no sum waits for the one before
    V levels[kSums] = {}, squares[kSums] = {};
    int q = 0;
    for (; q + kSums <= Q; q += kSums)
#pragma GCC unroll 4
      for (int k = 0; k < kSums; ++k) {
        const V rest = x[q + k] - x[0];
        levels[k] += rest, squares[k] += rest * rest;
      }
    for (; q < Q; ++q) levels[0] += x[q] - x[0], squares[0] += (x[q] - x[0]) * (x[q] - x[0]);
    const T part = T(1) / T(int(Q));
    const V level = (levels[0] + levels[1] + levels[2] + levels[3]) * part;
    const V variance = (squares[0] + squares[1] + squares[2] + squares[3]) * part - level * level;
    store_vector<T>(x[0] + level, mean);
    T roots[L];
    store_vector<T>(larger<T>(V{}, variance) + T(epsilon), roots);
    for (T& root : roots) root = T(1) / std::sqrt(root);
    return load_vector(roots);
  }

  // What depends on the places alone, one in each lane, times log2 e; 0 where places are missing.
  const V* load_extra(int n) const {
    V* const e = poses + Q;
    for (int k = 0; k < E; ++k) e[k] = load_first(places + int64_t{k} * N + n, N - n) * T(kLog2E);
    return e;
  }

  // The poses of a group of a block as they lie, times a factor each, in rows that are filled up with zeros.
  __attribute__((always_inline)) void copy_rows(Child child, int first, int n, int there, V factor) const {
    T factors[L];
    store_vector<T>(factor, factors);
    const T* from = child.poses + (first + n) * child.stride;
    T* to = rows + int64_t{n} * row;
    for (int k = 0; k < there; ++k, from += child.stride, to += row) {
      for (int q = 0; q < row; q += L) store_vector<T>(load_first(from + q, Q - q) * factors[k], to + q);
      for (int q = Q; q < row; ++q) to[q] = 0;
    }
  }

  // The shares of a group for all parents times a factor for each place.
  void multiply(T* share, V factor) const {
    for (int j = 0; j < J; ++j) store_vector<T>(load_vector(share + j * L) * factor, share + j * L);
  }

  // Fields of the parents less their means over the numbers of a pose. The inner product of a standardised pose with a field is
  // that of the pose with the centred field, over its deviation: so poses are not centred themselves.
  const T* centred(const T* field, T* to) const {
    if (!standard) return field;
    centre(field, to);
    return to;
  }

  void centre(const T* field, T* to) const {
    for (int j = 0; j < J; ++j, field += Q, to += Q) {
      V sum{};
      for (int q = 0; q < Q; q += L) sum += load_first(field + q, Q - q);
      const T mean = lane_sum<T>(sum) / int(Q);
      for (int q = 0; q < Q; q += L) store_first<T>(load_first(field + q, Q - q) - mean, to + q, Q - q);
    }
  }

  // max_j |A_jq|: with it, one test tells for a whole group of places that no logit can overflow.
  void find_largest(const T* A, const T* Ae) {
    for (int q = 0; q < Q; q += L) {
      V most{};
      for (int j = 0; j < J; ++j) {
        const V value = load_first(A + int64_t{j} * Q + q, Q - q);
        most = larger<T>(larger<T>(value, -value), most);
      }
      store_vector<T>(most, largest + q);
    }
    for (int k = 0; k < E; ++k) {
      T most = 0;
      for (int j = 0; j < J; ++j) most = std::max(most, std::abs(Ae[j * E + k]));
      largest[row + k] = most;
    }
  }

  bool small(const V* x, const V* e) const {
    V bounds[2] = {};  // so that no sum waits for the one before
    for (int q = 0; q < Q; ++q) bounds[q % 2] += larger<T>(x[q], -x[q]) * largest[q];
    V bound = bounds[0] + bounds[1];
    for (int k = 0; k < E; ++k) bound += larger<T>(e[k], -e[k]) * largest[row + k];
    return lane_fold<T>(bound, [](V a, V b) { return a < b ? b : a; }) < T(80);  // not if it is NaN
  }

  // What poses in memory are compared with, one number of all parents after the other: [Q, J] from [J, Q].
  const T* by_number(const T* field, T* to) const {
    if (kHolds) return field;
    for (int j = 0; j < J; ++j)
      for (int q = 0; q < Q; ++q) to[int64_t{q} * J + j] = field[int64_t{j} * Q + q];
    return to;
  }

  int64_t parent_step() const { return kHolds ? Q_ : 1; }

  // The logits of n parents, times log2 e, which is in `scale`, as 1 / deviation is.
  template <int n>
  __attribute__((always_inline)) void logits(const V* x, V scale, const V* e, const T* A, const T* Ae, V* t) const {
    products<n>(x, scale, A, t);
    add_places<n>(e, Ae, t);
  }

  // The part of them that depends on the poses.
  template <int n>
  __attribute__((always_inline)) void products(const V* x, V scale, const T* A, V* t) const {
    if constexpr (kHolds) {
#pragma GCC unroll 16
      for (int k = 0; k < n; ++k) t[k] = x[0] * A[k * Q_];
#pragma GCC unroll 16
      for (int q = 1; q < Q_; ++q)
#pragma GCC unroll 16
        for (int k = 0; k < n; ++k) t[k] += x[q] * A[k * Q_ + q];
    } else {
#pragma GCC unroll 16
      for (int k = 0; k < n; ++k) t[k] = x[0] * A[k];
      for (int q = 1; q < Q; ++q) {
        A += J;
#pragma GCC unroll 16
        for (int k = 0; k < n; ++k) t[k] += x[q] * A[k];
      }
#pragma GCC unroll 16
      for (int k = 0; k < n; ++k) t[k] *= scale;
    }
  }

  // The part that depends on the place alone: mostly one number or none.
  template <int n>
  __attribute__((always_inline)) void add_places(const V* e, const T* Ae, V* t) const {
    if (E == 1) {
#pragma GCC unroll 16
      for (int k = 0; k < n; ++k) t[k] += e[0] * Ae[k];
    } else if (E) {
#pragma GCC unroll 16
      for (int k = 0; k < n; ++k) t[k] = with_places(t[k], e, Ae + k * E);
    }
  }

  // Not inlined: registers are for what all children have.
  __attribute__((noinline)) V with_places(V t, const V* e, const T* Ae) const {
    for (int k = 0; k < E; ++k) t += e[k] * Ae[k];
    return t;
  }

  // The exponentials of l_ij - top_i for all parents, and their sum.
  __attribute__((always_inline)) void exponentials(const V* x, V scale, const V* e, const T* A, const T* Ae, T* to, V& top, V& sum) {
    top = V{}, sum = leaky ? splat(T(1)) : V{};
    const bool one_group = J <= kParents;
    if (!one_group && kHolds && small(x, e)) {
      return logit_groups.each([&](auto size, int j) __attribute__((always_inline)) {
        constexpr int n = size;
        V t[n];
        logits<n>(x, scale, e, A + j * parent_step(), Ae + j * E, t);
        powers_of_two<n>(t);
#pragma GCC unroll 16
        for (int k = 0; k < n; ++k) store_vector<T>(t[k], to + (j + k) * L), sum += t[k];
      });
    }
    if (!leaky) top -= std::numeric_limits<T>::max();
    if (one_group) {
      return with_size<kParents>(J, [&](auto size) __attribute__((always_inline)) {
        constexpr int n = size;
        V t[n];
        logits<n>(x, scale, e, A, Ae, t);
#pragma GCC unroll 16
        for (int k = 0; k < n; ++k) top = larger<T>(t[k], top);
#pragma GCC unroll 16
        for (int k = 0; k < n; ++k) t[k] = bounded(t[k] - top);
        powers_of_two<n>(t);
        if (leaky) sum = none_of_these(top);
#pragma GCC unroll 16
        for (int k = 0; k < n; ++k) store_vector<T>(t[k], to + k * L), sum += t[k];
      });
    }
    logit_groups.each([&](auto size, int j) __attribute__((always_inline)) {
      constexpr int n = size;
      V t[n];
      logits<n>(x, scale, e, A + j * parent_step(), Ae + j * E, t);
#pragma GCC unroll 16
      for (int k = 0; k < n; ++k) store_vector<T>(t[k], to + (j + k) * L), top = larger<T>(t[k], top);
    });
    if (leaky) sum = none_of_these(top);
    logit_groups.each([&](auto size, int j) __attribute__((always_inline)) {
      constexpr int n = size;
      V t[n];
#pragma GCC unroll 16
      for (int k = 0; k < n; ++k) t[k] = bounded(load_vector(to + (j + k) * L) - top);
      powers_of_two<n>(t);
#pragma GCC unroll 16
      for (int k = 0; k < n; ++k) store_vector<T>(t[k], to + (j + k) * L), sum += t[k];
    });
  }

  // The exponential of the leak, whose logit is 0.
  static V none_of_these(V top) {
    V t[1] = {bounded(-top)};
    powers_of_two<1>(t);
    return t[0];
  }

  void add_up_rows(const T* share, Child child, int first, int count, bool copies, T* to) const {
    copies ? add_up(share, count, rows, row, to) : add_up(share, count, child.poses + first * child.stride, child.stride, to);
  }

  // to_j += sum_n share_nj row_n, with the pose in the lanes; rows are so far apart.
  void add_up(const T* share, int count, const T* from, int64_t step, T* to) const {
    int q = 0;
    for (; q + 2 * L <= row; q += 2 * L) add_up_columns<2>(share, count, from + q, step, to + q);
    for (; q < row; q += L) add_up_columns<1>(share, count, from + q, step, to + q);
  }

  template <int wide>
  const auto& groups_of() const {
    if constexpr (wide == 2)
      return wide_groups;
    else
      return narrow_groups;
  }

  template <int wide>
  __attribute__((noinline)) void add_up_columns(const T* share, int count, const T* from, int64_t step, T* to) const {
    groups_of<wide>().each([&](auto size, int j) __attribute__((always_inline)) {
      constexpr int n = size;
      V sum[n][wide];
#pragma GCC unroll 24
      for (int k = 0; k < n; ++k)
#pragma GCC unroll 2
        for (int h = 0; h < wide; ++h) sum[k][h] = load_vector(to + int64_t{j + k} * row + h * L);
      const T* row_n = from;
      for (int first = 0; first < count; first += L) {
        const T* const shares_j = share + int64_t{first} * J + j * L;
        for (int place = 0; place < std::min(L, count - first); ++place, row_n += step) {
          V x[wide];
#pragma GCC unroll 2
          for (int h = 0; h < wide; ++h) x[h] = load_vector(row_n + h * L);
#pragma GCC unroll 24
          for (int k = 0; k < n; ++k)
#pragma GCC unroll 2
            for (int h = 0; h < wide; ++h) sum[k][h] += x[h] * shares_j[k * L + place];
        }
      }
#pragma GCC unroll 24
      for (int k = 0; k < n; ++k)
#pragma GCC unroll 2
        for (int h = 0; h < wide; ++h) store_vector<T>(sum[k][h], to + int64_t{j + k} * row + h * L);
    });
  }

  // Adds share_nj factor_n e_n of a group of places, of what depends on the places alone: one in each lane, until all are added up.
  void add_up_places(const T* share, int n, V factor) {
    for (int k = 0; k < E; ++k) {
      const V e = load_first(places + int64_t{k} * N + n, N - n) * factor;
      for (int j = 0; j < J; ++j) place_sums[j * E + k] += load_vector(share + j * L) * e;
    }
  }

  void sum_places(T* to) const {
    for (int k = 0; k < J * E; ++k) to[k] = lane_sum<T>(place_sums[k]);
  }

  // du_n = sum_j share_nj G_j + flow_nj A_j of a whole group of places, with the pose in the lanes.
  void pass_on(const T* share, const T* flow, const T* G, const T* A, Start start, T* du, int64_t stride, bool adds) const {
    const auto columns = [&](int q, auto wide) {
      pass_on_columns<wide>(share, flow, G + q, A + q, start, du + q, stride, adds);
      if (start.poses) start.poses += wide * L;
    };
    int q = 0;
    for (; q + 2 * L <= row; q += 2 * L) columns(q, std::integral_constant<int, 2>{});
    for (; q < row; q += L) columns(q, std::integral_constant<int, 1>{});
  }

  template <int wide>
  __attribute__((noinline)) void pass_on_columns(const T* share, const T* flow, const T* G, const T* A, Start start, T* du,
                                                 int64_t stride, bool adds) const {
    constexpr int n = L / wide;
    for (int first = 0; first < L; first += n) {
      V sum[n][wide] = {};
      if (start.poses)
#pragma GCC unroll 16
        for (int k = 0; k < n; ++k)
#pragma GCC unroll 2
          for (int h = 0; h < wide; ++h) {
            const V pose = load_vector(start.poses + (first + k) * start.step + h * L);
            sum[k][h] = (pose - start.means[first + k]) * start.back[first + k];
          }
      for (int j = 0; j < J; ++j) {
        const auto add = [&](const T* parts, const T* field) __attribute__((always_inline)) {
          V numbers[wide];
#pragma GCC unroll 2
          for (int h = 0; h < wide; ++h) numbers[h] = in_register<T>(load_vector(field + int64_t{j} * row + h * L));
#pragma GCC unroll 16
          for (int k = 0; k < n; ++k) {
            const V part = in_register<T>(splat(parts[j * L + first + k]));
#pragma GCC unroll 2
            for (int h = 0; h < wide; ++h) sum[k][h] += numbers[h] * part;
          }
        };
        add(share, G), add(flow, A);
      }
#pragma GCC unroll 16
      for (int k = 0; k < n; ++k)
#pragma GCC unroll 2
        for (int h = 0; h < wide; ++h) {
          T* const to = du + (first + k) * stride + h * L;
          store_vector<T>(adds ? sum[k][h] + load_vector(to) : sum[k][h], to);
        }
    }
  }

  // Fields of the parents with rows filled up with zeros.
  const T* padded(const T* field, T* to) const {
    if (Q == row) return field;
    for (int j = 0; j < J; ++j) {
      std::copy_n(field + int64_t{j} * Q, Q, to + int64_t{j} * row);
      std::fill_n(to + int64_t{j} * row + Q, row - Q, T(0));
    }
    return to;
  }

  void unpadded(const T* field, T* to) const {
    for (int j = 0; j < J; ++j) std::copy_n(field + int64_t{j} * row, Q, to + int64_t{j} * Q);
  }

  const int N, J, E;
  const Size<Q_> Q;
  const Size<Q_ ? whole_vectors<T>(Q_) : 0> row;  // the numbers of a row that is filled up
  const int block;                                 // the places of a block
  const T* const places;
  const bool leaky, standard;
  const double epsilon;
  const Groups<kParents> logit_groups;
  const Groups<kParentsBack> back_groups;
  const Groups<kRegisters * 3 / 4> narrow_groups;
  const Groups<kRegisters * 3 / 8> wide_groups;
  std::unique_ptr<V[]> memory;
  T *shares, *flows, *rows, *centred_queries, *centred_slopes, *total, *queries, *slopes, *turned_queries, *turned_slopes;
  T *means, *largest, *cut;
  V *poses, *place_sums;
};

// One pass over all examples and types.
template <typename T, int Q_>
void run_folded(const TorchcapsFolded& f, bool back) {
  using Pass = FoldedPass<T, Q_>;
  const auto at = [](const void* tensor, int64_t place) { return tensor ? static_cast<T*>(const_cast<void*>(tensor)) + place : nullptr; };
  const int64_t size = f.J * f.Q, extra = f.J * f.E, partition = Pass::partition_size(f.N);
  share_out(f.threads, f.B * f.T, [&](const auto& next) {
    Pass pass(f.N, f.J, f.Q, f.E, at(f.places, 0), f.leaky, f.epsilon);
    for (int64_t task; (task = next()) < f.B * f.T;) {
      const int64_t b = task / f.T, t = task % f.T, place = (b * f.N * f.T + t) * f.Q, weight = b * f.N * f.T + t;
      const typename Pass::Child child{at(f.children, place), at(f.weights, weight), f.T * f.Q, f.T};
      const T *A = at(f.queries, task * size), *Ae = at(f.place_queries, task * extra);
      if (back) {
        pass.backward(child, A, Ae, at(f.grad_sums, task * size), at(f.grad_place_sums, task * extra), at(f.partition, task * partition),
                      at(f.grad_children, place), f.adds, at(f.grad_weights, weight), at(f.grad_queries, task * size),
                      at(f.grad_place_queries, task * extra));
      } else {
        pass.forward(child, A, Ae, at(f.sums, task * size), at(f.place_sums, task * extra), at(f.partition, task * partition));
      }
    }
  });
}

}  // namespace
