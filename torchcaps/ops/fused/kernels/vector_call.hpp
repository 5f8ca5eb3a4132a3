// Vector poses under inner products or no similarity: which calls these are, and how their work is divided.
#pragma once

#include <algorithm>
#include <vector>

#include "rows.hpp"

namespace {

// The work of a task: rows, where their blocks begin in the coefficients, and a range of their children.
struct Part {
  int64_t row, end, block;
  int first, last;
};

template <typename T, int P_, int D_>
struct VectorCall : Rows<T> {
  using Base = Rows<T>;
  using Base::blocks, Base::call, Base::I, Base::J, Base::rows, Base::writable;
  static constexpr int kStep = std::max(Lanes<T>::count / 2, 4);  // fewest numbers of a vote that are processed at once

  const Size<P_> P;
  const Size<D_> D;
  const bool compares, uniform;  // uniform: a child is shared out evenly, and its votes are not needed

  explicit VectorCall(const Call& call)
      : Base(call), P(call.P), D(call.D), compares(call.similarity == kInnerProduct), uniform(!compares && !call.hard && !call.coordinates) {}

  static bool suits(const Call& call) {
    const bool sloping = std::any_of(call.terms, call.terms + call.count, [](const TorchcapsTerm& term) { return term.slope; });
    return call.M == 1 && call.similarity != kGaussian && !call.scatter && !sloping && call.D % kStep == 0;
  }

  // Mass and sum; a kernel's Forward adds up some children of some rows.
  template <typename Kernel>
  void moments_by(const Kernel& kernel) const {
    using Forward = typename Kernel::Forward;
    const int64_t parts = child_parts(), numbers = rows * J;
    if (parts == 1) {
      return parallel_for(call.threads, blocks(rows), 1, [&](int64_t first, int64_t last) {
        const int64_t end = std::min<int64_t>(rows, last * Lanes<T>::count);
        Forward(kernel).children_of({first * Lanes<T>::count, end, first, 0, I}, writable(call.mass), writable(call.sum));
      });
    }
    std::vector<std::vector<T>> others(parts - 1);
    this->each_part(parts, [&](int64_t part) {
      T *mass = writable(call.mass), *sum = writable(call.sum);
      if (part > 0) {
        others[part - 1].resize(numbers * (1 + D));
        mass = others[part - 1].data(), sum = mass + numbers;
      }
      Forward(kernel).children_of(children_part(part, parts), mass, sum);
    });
    for (const auto& other : others) {
      add(other.data(), numbers, writable(call.mass));
      add(other.data() + numbers, numbers * D, writable(call.sum));
    }
  }

  // Coefficients of the gradients of votes, and the gradients of parents; a kernel's Flow is told where to write the latter.
  template <typename Kernel>
  void flow_by(const Kernel& kernel) const {
    using Flow = typename Kernel::Flow;
    this->clear_flow();
    const int64_t parts = child_parts(), numbers = call.grad_parents ? rows * J * D : 0;
    if (parts == 1) {
      return this->each_part(this->row_parts(), [&](int64_t part) {
        Flow(kernel, writable(call.grad_parents)).children_of(rows_part(part));
      });
    }
    std::vector<std::vector<T>> others(parts - 1);
    this->each_part(parts, [&](int64_t part) {
      T* parents = writable(call.grad_parents);
      if (part > 0 && parents) {
        others[part - 1].resize(numbers);
        parents = others[part - 1].data();
      }
      Flow(kernel, parents).children_of(children_part(part, parts));
    });
    for (const auto& other : others) add(other.data(), numbers, writable(call.grad_parents));
  }

  // Gradients of children, transforms and coordinates; a kernel's PassOn is told where to add those that are sums.
  template <typename Kernel>
  void pass_on_by(const Kernel& kernel) const {
    using PassOn = typename Kernel::PassOn;
    if (call.sites) this->clear(call.grad_children, call.images * call.grid * P);
    if (call.shared) this->clear(call.grad_transforms, this->transforms());
    this->clear(call.grad_coordinates, this->coordinates());
    const int64_t parts = call.shared ? 1 : child_parts();
    if (parts > 1) {
      return this->each_part(parts, [&](int64_t part) {
        PassOn(kernel, writable(call.grad_transforms), writable(call.grad_coordinates)).children_of(children_part(part, parts));
      });
    }
    this->sum_over_parts(this->row_parts(), [&](int64_t part, T* transforms, T* coordinates) {
      PassOn(kernel, transforms, coordinates).children_of(rows_part(part));
    });
  }

 private:
  // The number of tasks that divide the children; with windows, which share children, tasks divide the rows instead.
  int64_t child_parts() const { return call.sites ? 1 : std::clamp<int64_t>(I / 16, 1, call.threads); }

  Part children_part(int64_t part, int64_t parts) const {
    const auto first = [&](int64_t part) {
      return static_cast<int>(std::min<int64_t>(I, this->groups() * part / parts * Base::kTogether));
    };
    return {0, rows, 0, first(part), first(part + 1)};
  }

  Part rows_part(int64_t part) const {
    const auto [row, end, block] = this->row_range(part, this->row_parts());
    return {row, end, block, 0, I};
  }

  static void add(const T* from, int64_t count, T* to) {
    for (int64_t k = 0; k < count; ++k) to[k] += from[k];
  }
};

}  // namespace
