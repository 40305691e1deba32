// Compares calls field by field and writes the sentence about the difference.
#include "collective/mismatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "collective/kinds/kind.h"
#include "collective/messages.h"
#include "numeric/dtype.h"

namespace hvd::collective {

namespace {

constexpr size_t kMaxRanksNamed = 4;  // of one value
constexpr size_t kMaxValuesNamed = 4;

bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

bool same_shape(const Row& row, const Spec& a, const Spec& b) {
  if (!row.own_rows) return a.shape == b.shape;
  return a.shape.size() == b.shape.size() &&
         std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1);
}

std::string describe_shape(const Row& row, const Spec& spec) {
  std::string text = "[";
  for (size_t i = 0; i < spec.shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += row.own_rows && i == 0 ? "*" : std::to_string(spec.shape[i]);
  }
  return text + "]";
}

const char* reduction_name(hvd_reduction reduction) {
  switch (reduction) {
    case HVD_REDUCTION_SUM: return "sum";
    case HVD_REDUCTION_AVERAGE: return "average";
    case HVD_REDUCTION_MIN: return "min";
    case HVD_REDUCTION_MAX: return "max";
    case HVD_REDUCTION_PRODUCT: return "product";
  }
  return "unknown reduction";
}

template <class T>
std::string list_of(const char* open, const std::vector<T>& values, const char* close) {
  std::string list = open;
  for (size_t i = 0; i < std::min<size_t>(values.size(), 16); ++i) {
    list += fmt::format("{}{}", i == 0 ? "" : ", ", values[i]);
  }
  if (values.size() > 16) list += fmt::format(", ... {} in all", values.size());
  return list + close;
}

using Value = std::function<std::string(const Signature&)>;

/// "shape [3] on rank 0 (host a), [4] on rank 2 (host b)"; "" if all have the same value.
std::string describe_difference(const std::vector<const Signature*>& calls,
                                const std::vector<std::string>& hosts, const std::string& what,
                                const Value& value) {
  std::vector<std::pair<std::string, std::vector<int32_t>>> groups;
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    if (calls[rank] == nullptr) continue;
    std::string text = value(*calls[rank]);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == text; });
    if (group == groups.end()) group = groups.emplace(group, std::move(text), std::vector<int32_t>());
    group->second.push_back(static_cast<int32_t>(rank));
  }
  if (groups.size() < 2) return "";
  std::string text = what;
  for (size_t i = 0; i < std::min(groups.size(), kMaxValuesNamed); ++i) {
    text += fmt::format("{}{} on {}", i == 0 ? (what.empty() ? "" : " ") : ", ", groups[i].first,
                        describe_ranks(groups[i].second, hosts));
  }
  if (groups.size() > kMaxValuesNamed)
    text += fmt::format(" and {} more values", groups.size() - kMaxValuesNamed);
  return text;
}

}  // namespace

std::string describe_ranks(const std::vector<int32_t>& ranks, const std::vector<std::string>& hosts) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMaxRanksNamed); ++i) {
    const auto rank = static_cast<size_t>(ranks[i]);
    text += fmt::format("{}{} (host {})", i == 0 ? "" : ", ", rank, rank < hosts.size() ? hosts[rank] : "?");
  }
  if (ranks.size() > kMaxRanksNamed) text += fmt::format(" and {} more", ranks.size() - kMaxRanksNamed);
  return text;
}

bool agrees(const Signature& a, const Signature& b) {
  const Row& row = row_of(a.kind);
  if (a.kind != b.kind || a.specs.size() != b.specs.size()) return false;
  if (row.reduces && (a.reduction != b.reduction || !same_bits(a.prescale, b.prescale) ||
                      !same_bits(a.postscale, b.postscale))) {
    return false;
  }
  if (row.rooted && a.root != b.root) return false;
  if (a.memory != b.memory) return false;
  if (a.members != b.members) return false;
  if (row.equal_splits && a.splits != b.splits) return false;
  for (size_t i = 0; i < a.specs.size(); ++i) {
    if (a.specs[i].dtype != b.specs[i].dtype || !same_shape(row, a.specs[i], b.specs[i])) return false;
  }
  return true;
}

std::string describe_mismatch(const std::vector<const Signature*>& calls,
                              const std::vector<std::string>& hosts) {
  const auto first =
      std::find_if(calls.begin(), calls.end(), [](const Signature* call) { return call != nullptr; });
  if (first == calls.end()) return "";
  const Signature& some = **first;
  const Row& row = row_of(some.kind);
  std::string text;
  const auto differ = [&](const std::string& what, const Value& value) {
    if (text.empty()) text = describe_difference(calls, hosts, what, value);
    return !text.empty();
  };
  if (differ("", [](const Signature& r) { return kind_name(r.kind); }))
    return fmt::format("'{}': {}", some.name, text);
  if (!differ("number of tensors", [](const Signature& r) { return std::to_string(r.specs.size()); })) {
    for (size_t i = 0; i < some.specs.size() && text.empty(); ++i) {
      const std::string of = some.specs.size() > 1 ? fmt::format(" of tensor {}", i) : "";
      differ("dtype" + of, [i](const Signature& r) { return dtype_name(r.specs[i].dtype); });
      differ("shape" + of, [i, &row](const Signature& r) { return describe_shape(row, r.specs[i]); });
    }
  }
  differ("", [](const Signature& r) { return memory_name(r.memory); });
  if (row.reduces) {
    differ("reduction", [](const Signature& r) { return reduction_name(r.reduction); });
    differ("prescale", [](const Signature& r) { return fmt::format("{}", r.prescale); });
    differ("postscale", [](const Signature& r) { return fmt::format("{}", r.postscale); });
  }
  if (row.rooted) differ("root", [](const Signature& r) { return std::to_string(r.root); });
  differ("participants", [](const Signature& r) {
    return r.members.empty() ? std::string("all ranks") : list_of("{", r.members, "}");
  });
  if (row.equal_splits) {
    differ("splits", [](const Signature& r) { return list_of("[", r.splits, "]"); });
  }
  return fmt::format("{} '{}': {}", row.name, some.name, text);
}

}  // namespace hvd::collective
