// A generation's communicators: one for each set of ranks that has had an operation.
#include <algorithm>

#include "modules/nccl/generation.h"

namespace hvdnccl {

namespace {

using namespace std::chrono_literals;
constexpr auto kInit = 300s;  // the last resort: a rank that is lost ends the wait by abort
constexpr auto kPeace = 5s;

// The name of a set in the store: "0-3,7", or a digest where that is too long. All members know all ranks.
std::string key_of(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", ranks[i]);
    if (last > i) text += fmt::format("-{}", ranks[last]);
    i = last + 1;
  }
  if (text.size() > 100) {
    uint64_t high = 0xcbf29ce484222325U, low = 0x84222325cbf29ce4U;  // FNV-1a, twice
    for (const char c : text) {
      high = (high ^ static_cast<uint8_t>(c)) * 0x100000001b3U;
      low = (low ^ static_cast<uint8_t>(c + 1)) * 0x100000001b3U;
    }
    text = fmt::format("{}-{}:{}:{:016x}{:016x}", ranks.front(), ranks.back(), ranks.size(), high, low);
  }
  return "nccl/" + text;
}

}  // namespace

// The first of the ranks makes it when it is needed: every id that NCCL gives out keeps a thread and a socket
// of its until all ranks have used it.
NcclUniqueId Generation::unique_id(const std::vector<int>& ranks) {
  const std::string key = key_of(ranks);
  Libraries& libraries = device_->libraries();
  NcclUniqueId id{};
  hvd_error error = HVD_ERROR_INIT;
  if (ranks.front() == place_.rank) {
    if (const NcclResult result = libraries.nccl.ncclGetUniqueId(&id); result != kNcclSuccess) {
      throw_nccl(libraries, result, "ncclGetUniqueId");
    }
    const hvd_status status =
        host_->kv_set(place_.generation, key.c_str(), id.internal, sizeof(id.internal), &error);
    if (status != HVD_OK) throw Failure(status, error.message);
    return id;
  }
  const auto deadline = Clock::now() + kInit;
  for (;;) {
    if (aborted_) throw Aborted{};
    size_t size = sizeof(id.internal);
    // In slices, so that close never has to wait for it.
    const hvd_status status =
        host_->kv_get(place_.generation, key.c_str(), 250 * HVD_MILLISECOND, id.internal, &size, &error);
    if (status == HVD_OK && size == sizeof(id.internal)) return id;
    if (status == HVD_OK) {
      throw Failure(HVD_INTERNAL,
                    fmt::format("key {} has {} bytes: expected {}", key, size, sizeof(id.internal)));
    }
    if (status != HVD_TIMEOUT || Clock::now() >= deadline) {
      throw Failure(status, fmt::format("waiting for rank {} to begin a communicator: {}", ranks.front(),
                                        error.message));
    }
  }
}

NcclComm Generation::communicator(const std::vector<int>& ranks) {
  if (const auto found = communicators_.find(ranks); found != communicators_.end()) return found->second;
  Libraries& libraries = device_->libraries();
  if (scratch_ == 0) { libraries.check(libraries.cuda.cuMemAlloc_v2(&scratch_, 256), "cuMemAlloc"); }
  const NcclUniqueId id = unique_id(ranks);
  const auto me = std::find(ranks.begin(), ranks.end(), place_.rank) - ranks.begin();
  NcclConfig config;
  NcclComm& communicator = communicators_[ranks];  // from the first moment, so that an abort finds it
  const NcclResult result = libraries.nccl.ncclCommInitRankConfig(
      &communicator, static_cast<int>(ranks.size()), id, static_cast<int>(me), &config);
  const std::string what = fmt::format("the communicator of {} ranks", ranks.size());
  if (result != kNcclSuccess && result != kNcclInProgress) throw_nccl(libraries, result, what.c_str());
  await(communicator, what.c_str(), Clock::now() + kInit);
  return communicator;
}

// Those of one device in one group: each waits for the device, where the next one's kernels may be at work.
void Generation::abort_communicators() {
  std::vector<NcclComm> all;
  for (const auto& [ranks, communicator] : communicators_) {
    if (communicator != nullptr) all.push_back(communicator);
  }
  communicators_.clear();
  for (Running& running : running_) running.communicator = nullptr;
  if (all.empty()) return;
  Libraries& libraries = device_->libraries();
  const NcclFunctions& nccl = libraries.nccl;
  const auto warn = [&](const char* what, NcclResult result) {
    if (result == kNcclSuccess || result == kNcclInProgress) return;
    host_->log(HVD_LOG_WARNING, "{} of generation {}: {}", what, place_.generation,
               nccl.ncclGetErrorString(result));
  };
  const bool grouped = all.size() > 1 && nccl.ncclGroupStart() == kNcclSuccess;
  for (NcclComm communicator : all) warn("ncclCommAbort", nccl.ncclCommAbort(communicator));
  if (grouped) warn("ncclGroupEnd", nccl.ncclGroupEnd());
}

// All members do this, once their operations are over: peers may still read what this rank's device holds for
// them.
void Generation::finish_in_peace() {
  const auto deadline = Clock::now() + kPeace;
  try {
    while (!running_.empty()) {
      watch();
      if (running_.empty()) break;
      if (aborted_ || Clock::now() >= deadline) return;
      pause(1ms);
    }
    Libraries& libraries = device_->libraries();
    for (const auto& [ranks, communicator] : communicators_) {
      const NcclResult result = libraries.nccl.ncclCommFinalize(communicator);
      if (result != kNcclSuccess && result != kNcclInProgress)
        throw_nccl(libraries, result, "ncclCommFinalize");
    }
    for (const auto& [ranks, communicator] : communicators_)
      await(communicator, "ncclCommFinalize", deadline);
    while (!communicators_.empty()) {
      NcclComm communicator = communicators_.begin()->second;
      communicators_.erase(communicators_.begin());
      if (const NcclResult result = libraries.nccl.ncclCommDestroy(communicator); result != kNcclSuccess) {
        host_->log(HVD_LOG_WARNING, "ncclCommDestroy: {}", libraries.nccl.ncclGetErrorString(result));
      }
    }
  } catch (const Aborted&) {
  } catch (const Failure& failure) {
    host_->log(HVD_LOG_INFO, "generation {} does not end in peace, but by abort: {}", place_.generation,
               failure.what());
  }
}

}  // namespace hvdnccl
