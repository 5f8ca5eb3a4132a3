// Vector registers: exponentials, sums over lanes, transposition.
#pragma once

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

namespace {

// A vector is what one register holds: GCC keeps larger ones in memory.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kRegisters = 32;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kRegisters = 16;
#elif defined(__x86_64__)
constexpr int kVectorBytes = 16, kRegisters = 16;
#else
constexpr int kVectorBytes = 16, kRegisters = 32;
#endif

template <typename T>
struct Lanes {
  static constexpr int count = kVectorBytes / sizeof(T);
  typedef T Vec __attribute__((vector_size(kVectorBytes)));
  typedef T Half __attribute__((vector_size(kVectorBytes / 2)));
  typedef std::conditional_t<sizeof(T) == 4, int32_t, int64_t> Int;
  typedef Int Mask __attribute__((vector_size(kVectorBytes)));
};

template <typename T>
using Vec = typename Lanes<T>::Vec;
template <typename T>
using Half = typename Lanes<T>::Half;

template <typename T>
inline Vec<T> splat(T value) {
  return value - Vec<T>{};
}

template <typename T>
inline Vec<T> larger(Vec<T> a, Vec<T> b) {
  return a > b ? a : b;
}

// exp(x) for x in [-log(2) / 2, log(2) / 2] (Cephes).
inline Vec<float> polynomial(Vec<float> x) {
  using V = Vec<float>;
  V y = splat(1.9875691500e-4f);
  y = y * x + 1.3981999507e-3f;
  y = y * x + 8.3334519073e-3f;
  y = y * x + 4.1665795894e-2f;
  y = y * x + 1.6666665459e-1f;
  y = y * x + 5.0000001201e-1f;
  return y * x * x + x + 1.0f;
}

// exp with a relative error of 2e-7, exact 0 for -inf, NaN for NaN; with `below`, no x may be above 88.
template <bool below>
__attribute__((always_inline)) inline Vec<float> exponential_of(Vec<float> x) {
  using V = Vec<float>;
  const V shifted = x * 1.44269504088896341f + 12582912.0f;  // rounds to the nearest integer
  const V whole = shifted - 12582912.0f;
  const V rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  V y = polynomial(rest);
#ifdef __AVX512F__
  const __mmask16 there = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
  return (V)_mm512_maskz_scalef_ps(there, (__m512)y, (__m512)whole);
#else
  typedef Lanes<float>::Mask Mask;
  const Mask power = __builtin_convertvector(whole, Mask), half = below ? Mask{} : power >> 1;  // 2^128 is no float
  if constexpr (!below) y *= (V)((half + 127) << 23);
  y *= (V)((power - half + 127) << 23);
  return x < -87.0f ? V{} : y;
#endif
}

// The same for any x: inf where it overflows.
__attribute__((always_inline)) inline Vec<float> exponential(Vec<float> x) {
  return exponential_of<false>(x > 89.0f ? splat(89.0f) : x);
}

inline Vec<double> exponential(Vec<double> x) {
  for (int lane = 0; lane < Lanes<double>::count; ++lane) x[lane] = std::exp(x[lane]);
  return x;
}

// exp where no x is above 0, as in a softmax, or only a little.
__attribute__((always_inline)) inline Vec<float> exponential_below(Vec<float> x) { return exponential_of<true>(x); }

inline Vec<double> exponential_below(Vec<double> x) { return exponential(x); }

// log with an error of 1e-7, relative or absolute (Cephes); -inf for 0, NaN below 0, inf for inf and NaN for NaN.
inline Vec<float> logarithm(Vec<float> x) {
  using V = Vec<float>;
  typedef Lanes<float>::Mask Mask;
  const Mask bits = (Mask)x;
  V power = __builtin_convertvector((bits >> 23) - 127, V), part = (V)((bits & 0x7fffff) | 0x3f800000);
  const Mask upper = part > 1.41421356f;
  part = upper ? part * 0.5f : part;
  power = upper ? power + 1.0f : power;
  const V rest = part - 1.0f, square = rest * rest;
  V y = splat(7.0376836292e-2f);
  y = y * rest - 1.1514610310e-1f;
  y = y * rest + 1.1676998740e-1f;
  y = y * rest - 1.2420140846e-1f;
  y = y * rest + 1.4249322787e-1f;
  y = y * rest - 1.6668057665e-1f;
  y = y * rest + 2.0000714765e-1f;
  y = y * rest - 2.4999993993e-1f;
  y = y * rest + 3.3333331174e-1f;
  y = y * rest * square - power * 2.12194440e-4f - square * 0.5f;
  using Limits = std::numeric_limits<float>;
  y = x <= Limits::max() ? rest + y + power * 0.693359375f : x;
  return x < Limits::min() ? (x < 0.0f ? splat(Limits::quiet_NaN()) : splat(-Limits::infinity())) : y;
}

inline Vec<double> logarithm(Vec<double> x) {
  for (int lane = 0; lane < Lanes<double>::count; ++lane) x[lane] = std::log(x[lane]);
  return x;
}

// In each group of 2 * width lanes: the lower, or the upper, half of a, and after it that of b.
template <typename V, int width, size_t... lane>
inline V lower_halves(V a, V b, std::index_sequence<lane...>) {
  return __builtin_shufflevector(a, b, (int)((lane & width) ? sizeof...(lane) + lane - width : lane)...);
}

template <typename V, int width, size_t... lane>
inline V upper_halves(V a, V b, std::index_sequence<lane...>) {
  return __builtin_shufflevector(a, b, (int)((lane & width) ? sizeof...(lane) + lane : lane + width)...);
}

// Folds pairs of vectors until lane k of the one that is left holds the sum of the lanes of vector k.
template <typename T, int width>
__attribute__((always_inline)) inline void fold_all(Vec<T>* v) {
  constexpr auto lanes = std::make_index_sequence<Lanes<T>::count>{};
#pragma GCC unroll 16
  for (int k = 0; k < width; ++k)
    v[k] = lower_halves<Vec<T>, width>(v[k], v[k + width], lanes) + upper_halves<Vec<T>, width>(v[k], v[k + width], lanes);
  if constexpr (width > 1) fold_all<T, width / 2>(v);
}

// The lower or the upper halves of each 16 bytes of a and b, interleaved: a number of a, then one of b.
template <typename V, int upper, int within, size_t... lane>
inline V interleaved(V a, V b, std::index_sequence<lane...>) {
  constexpr auto from = [](int n) { return n / within * within + n % within / 2 + upper * within / 2; };
  return __builtin_shufflevector(a, b, ((lane & 1 ? sizeof...(lane) : 0) + from(lane))...);
}

// Transposes `count` vectors, as many as they have lanes or a fraction of that: in each group of `count` lanes, lane l of
// vector k and lane k of vector l change places.
template <typename T, int count = Lanes<T>::count, int width = count / 2>
__attribute__((always_inline)) inline void transpose(Vec<T>* v) {
  constexpr auto lanes = std::make_index_sequence<Lanes<T>::count>{};
  constexpr int within = 16 / sizeof(T);
  if constexpr (kVectorBytes <= 32 && count >= within && width == within / 2) {  // where a shuffle is one instruction
    for (int step = 1; step < within; step *= 2) {
      Vec<T> old[count];
#pragma GCC unroll 16
      for (int k = 0; k < count; ++k) old[k] = v[k];
#pragma GCC unroll 16
      for (int k = 0; k < count; k += 2) {
        const int from = k / within * within + k % within / 2;
        v[k] = interleaved<Vec<T>, 0, within>(old[from], old[from + within / 2], lanes);
        v[k + 1] = interleaved<Vec<T>, 1, within>(old[from], old[from + within / 2], lanes);
      }
    }
    return;
  }
#pragma GCC unroll 16
  for (int k = 0; k < count; ++k) {
    if (k & width) continue;
    const Vec<T> a = v[k], b = v[k + width];
    v[k] = lower_halves<Vec<T>, width>(a, b, lanes);
    v[k + width] = upper_halves<Vec<T>, width>(a, b, lanes);
  }
  if constexpr (width > 1) transpose<T, count, width / 2>(v);
}

// Vectors anywhere in an array of numbers. To the compiler they are numbers of that type, so that a store does not make it load
// sizes and addresses again, as after memcpy.
template <typename T>
inline Vec<T> load_vector(const T* from) {
  typedef Vec<T> Anywhere __attribute__((aligned(alignof(T))));
  return *reinterpret_cast<const Anywhere*>(from);
}

template <typename T>
inline Half<T> load_half(const T* from) {
  typedef Half<T> Anywhere __attribute__((aligned(alignof(T))));
  return *reinterpret_cast<const Anywhere*>(from);
}

template <typename T, size_t... lane>
inline Vec<T> joined(Half<T> lower, Half<T> upper, std::index_sequence<lane...>) {
  return __builtin_shufflevector(lower, upper, (int)lane...);
}

// Keeps a value in a register: where these are few, GCC would load it from memory again at each use.
template <typename T>
__attribute__((always_inline)) inline Vec<T> in_register(Vec<T> value) {
#if defined(__x86_64__) && !defined(__AVX512F__)
  asm("" : "+x"(value));
#endif
  return value;
}

template <typename T>
inline void store_half(Half<T> value, T* to) {
  typedef Half<T> Anywhere __attribute__((aligned(alignof(T))));
  *reinterpret_cast<Anywhere*>(to) = value;
}

template <typename T>
inline void store_vector(Vec<T> value, T* to) {
  typedef Vec<T> Anywhere __attribute__((aligned(alignof(T))));
  *reinterpret_cast<Anywhere*>(to) = value;
}

// The same past the caches, if `to` is aligned: for what is written once and read much later.
template <typename T>
inline void stream_vector(Vec<T> value, T* to) {
#ifdef __AVX512F__
  const bool aligned = reinterpret_cast<uintptr_t>(to) % sizeof value == 0;
  if (aligned) return _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)value);
#endif
  store_vector<T>(value, to);
}

// From here on, other threads see what this one has streamed.
inline void streams_end() {
#ifdef __AVX512F__
  _mm_sfence();
#endif
}

// Flushes subnormal numbers to 0 in this thread for as long as it lives: shares that all but vanish make many of them, and
// on some processors each takes far longer than a normal number.
class WithoutSubnormals {
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();

 public:
  WithoutSubnormals() { _mm_setcsr(before | 0x8040); }
  ~WithoutSubnormals() { _mm_setcsr(before); }
#elif defined(__aarch64__)
  uint64_t before;

 public:
  WithoutSubnormals() {
    asm volatile("mrs %0, fpcr" : "=r"(before));
    asm volatile("msr fpcr, %0" : : "r"(before | uint64_t{1} << 24));
  }
  ~WithoutSubnormals() { asm volatile("msr fpcr, %0" : : "r"(before)); }
#endif
};

// Reduces all lanes to one number: `both` takes two halves of them together.
template <typename T, int width = Lanes<T>::count / 2, typename Both>
inline T lane_fold(Vec<T> v, const Both& both) {
  constexpr auto lanes = std::make_index_sequence<Lanes<T>::count>{};
  v = both(v, upper_halves<Vec<T>, width>(v, v, lanes));
  if constexpr (width > 1) return lane_fold<T, width / 2>(v, both);
  return v[0];
}

template <typename T>
inline T lane_sum(Vec<T> v) {
  return lane_fold<T>(v, [](Vec<T> a, Vec<T> b) { return a + b; });
}

}  // namespace
