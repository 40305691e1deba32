// One operation of a backend, as its ranks bring their parts of it together.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "numeric/dtype.h"
#include "numeric/reduce.h"

namespace hvd::collective::testing {

/// Checks that all bring the same operation, and runs it.
struct Gathering {
  std::map<int32_t, hvd_backend_op> parts;                // by rank
  std::map<int32_t, std::vector<backend::Part>> tensors;  // broadcast, allreduce: one or more
  std::map<int32_t, std::vector<size_t>> counts;
  std::vector<int32_t> ranks;

  void add(int32_t rank, int32_t size, const hvd_backend_op& op, std::span<const backend::Part> of) {
    EXPECT_TRUE(parts.emplace(rank, op).second);
    EXPECT_TRUE(of.empty() || op.collective == HVD_COLLECTIVE_BROADCAST ||
                op.collective == HVD_COLLECTIVE_ALLREDUCE);
    if (of.empty()) {
      tensors[rank] = {{op.input, op.output, op.count}};
    } else {
      tensors[rank].assign(of.begin(), of.end());
    }
    std::vector<int32_t> named;
    for (int32_t r = 0; r < size; ++r) {
      if (op.ranks == nullptr ||
          std::find(op.ranks, op.ranks + op.rank_count, r) != op.ranks + op.rank_count) {
        named.push_back(r);
      }
    }
    EXPECT_TRUE(ranks.empty() || ranks == named) << "ranks disagree about who takes part";
    ranks = named;
    if (op.counts != nullptr) {
      const size_t each = op.collective == HVD_COLLECTIVE_ALLTOALL ? 2 : 1;
      counts[rank].assign(op.counts, op.counts + each * ranks.size());
    }
    parts[rank].counts = nullptr;
    parts[rank].ranks = nullptr;
  }
  bool complete() const { return parts.size() == ranks.size(); }

  using Bytes = std::vector<uint8_t>;

  /// What a rank brings, one tensor after the other.
  Bytes flat(int32_t rank, size_t element, bool output) const {
    Bytes all;
    for (const backend::Part& part : tensors.at(rank)) {
      const auto* data = static_cast<const uint8_t*>(output ? part.output : part.input);
      if (part.count > 0) all.insert(all.end(), data, data + part.count * element);
    }
    return all;
  }
  void spread(int32_t rank, size_t element, const Bytes& all) const {
    size_t at = 0;
    for (const backend::Part& part : tensors.at(rank)) {
      if (part.count > 0) std::memcpy(part.output, all.data() + at, part.count * element);
      at += part.count * element;
    }
    EXPECT_EQ(at, all.size());
  }
  static Bytes reduced(const std::vector<Bytes>& inputs, const hvd_backend_op& op) {
    std::vector<const void*> pointers;
    for (const Bytes& input : inputs) {
      EXPECT_EQ(input.size(), inputs[0].size());
      pointers.push_back(input.data());
    }
    Bytes out(inputs[0].size());
    reduce_many(op.dtype, op.reduction, out.data(), pointers.data(), pointers.size(),
                out.size() / dtype_size(op.dtype), static_cast<int32_t>(inputs.size()));
    return out;
  }

  void run() {
    const hvd_backend_op& first = parts.begin()->second;
    for (auto& [rank, op] : parts) {
      EXPECT_EQ(op.collective, first.collective);
      EXPECT_EQ(op.dtype, first.dtype);
      EXPECT_EQ(op.memory, first.memory);
      EXPECT_EQ(op.root, first.root);
      EXPECT_EQ(op.reduction, first.reduction);
    }
    const size_t element = dtype_size(first.dtype);
    switch (first.collective) {
      case HVD_COLLECTIVE_BROADCAST: {
        const Bytes all = flat(first.root, element, true);
        for (auto& [rank, op] : parts) {
          if (rank != first.root) spread(rank, element, all);
        }
        return;
      }
      case HVD_COLLECTIVE_ALLREDUCE: {
        std::vector<Bytes> inputs;
        for (auto& [rank, op] : parts) inputs.push_back(flat(rank, element, false));
        const Bytes out = reduced(inputs, first);
        for (auto& [rank, op] : parts) spread(rank, element, out);
        return;
      }
      case HVD_COLLECTIVE_REDUCESCATTER: {
        std::vector<Bytes> inputs;
        for (auto& [rank, op] : parts) {
          EXPECT_EQ(counts[rank], counts.begin()->second);
          const auto* data = static_cast<const uint8_t*>(op.input);
          inputs.emplace_back(data, data + op.count * element);
        }
        const Bytes out = reduced(inputs, first);
        size_t at = 0, i = 0;
        for (auto& [rank, op] : parts) {
          const size_t bytes = counts[rank].at(i++) * element;
          if (bytes > 0) std::memcpy(op.output, out.data() + at, bytes);
          at += bytes;
        }
        EXPECT_EQ(at, out.size());
        return;
      }
      case HVD_COLLECTIVE_ALLGATHER:
        for (auto& [to, target] : parts) {
          auto* out = static_cast<uint8_t*>(target.output);
          size_t i = 0;
          for (auto& [from, op] : parts) {
            EXPECT_EQ(counts[from], counts.begin()->second);
            EXPECT_EQ(op.count, counts[from].at(i++));
            if (op.count > 0) std::memcpy(out, op.input, op.count * element);
            out += op.count * element;
          }
        }
        return;
      case HVD_COLLECTIVE_ALLTOALL: {
        const size_t n = parts.size();
        size_t to_index = 0;
        for (auto& [to, target] : parts) {
          auto* out = static_cast<uint8_t*>(target.output);
          size_t from_index = 0;
          for (auto& [from, op] : parts) {
            const auto& sends = counts[from];
            EXPECT_EQ(sends.size(), 2 * n);
            size_t at = 0;
            for (size_t i = 0; i < to_index; ++i) at += sends.at(i);
            EXPECT_EQ(sends.at(to_index), counts[to].at(n + from_index));
            const size_t bytes = sends.at(to_index) * element;
            if (bytes > 0) std::memcpy(out, static_cast<const uint8_t*>(op.input) + at * element, bytes);
            out += bytes;
            ++from_index;
          }
          ++to_index;
        }
        return;
      }
      default: ADD_FAILURE() << "collective " << first.collective;
    }
  }
};

}  // namespace hvd::collective::testing
