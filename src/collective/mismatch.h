// Comparison of the ranks' calls of one operation, and the sentence that says how they differ (contract 9).
#pragma once

#include <string>
#include <vector>

#include "collective/signature.h"

namespace hvd::collective {

/// "rank 2 (host b)", "ranks 0 (host a), 1 (host a)"; of many only the first few and a count.
std::string describe_ranks(const std::vector<int32_t>& ranks, const std::vector<std::string>& hosts);

/// Do two ranks' calls agree in everything that must agree?
bool agrees(const Signature& a, const Signature& b);

/// Says in what the calls differ: who has which value. `calls` by rank, NULL for those that did not call.
std::string describe_mismatch(const std::vector<const Signature*>& calls,
                              const std::vector<std::string>& hosts);

}  // namespace hvd::collective
