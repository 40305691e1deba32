// The generation that a worker is in: its assignment, its engine, and how it was lost.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "collective/engine.h"
#include "elastic/process_set.h"
#include "session/session.h"

namespace hvd::elastic {

/// Where a worker stands, derived from an assignment.
hvd_membership_info membership_of(const session::Assignment& assignment, uint64_t worker);

/// How the generation was lost, as far as it is known.
struct Loss {
  Status status;
  Duration silence{0};
  Time at{};
};

class CurrentGeneration;

/// The current engine, held for the length of a call: whoever takes the engine away waits for all of these.
/// While one is held its generation stays the current one.
class EngineUse {
 public:
  EngineUse(CurrentGeneration* owner, collective::Engine* engine) : owner_(owner), engine_(engine) {}
  EngineUse(const EngineUse&) = delete;
  EngineUse& operator=(const EngineUse&) = delete;
  ~EngineUse();
  explicit operator bool() const { return engine_ != nullptr; }
  collective::Engine* operator->() const { return engine_; }
  collective::Engine& operator*() const { return *engine_; }
  /// This worker's place in its generation. Of an engine.
  const hvd_membership_info& place() const;

 private:
  CurrentGeneration* const owner_;
  collective::Engine* const engine_;
};

/// Thread-safe. Calls nobody but the engine, and that without its lock.
class CurrentGeneration {
 public:
  /// After the engine before it was taken away; one thread at a time does either. An engine that begins after
  /// the close has failed already.
  void begin(const session::Assignment& assignment, const hvd_membership_info& place,
             std::shared_ptr<collective::Engine> engine);
  /// For good, and why; the first call counts.
  void close(const Status& why);
  std::optional<Status> closed() const;

  enum class Lost { kNow, kBefore, kNot };  // kNot: another generation is current, or none any more
  /// `known`: by the driver, who knows best who was lost and why.
  Lost lose(uint64_t generation, const Status& why, Duration silence, bool known);
  /// Nothing while it is whole.
  std::optional<Loss> loss() const;
  /// Ends its operations with its loss if it is lost, though whoever lost it has not got to the engine yet;
  /// otherwise with `why`.
  void fail(const Status& why);

  /// Nothing between generations, after the end, and if another generation than the one given is current.
  EngineUse engine(std::optional<uint64_t> generation = std::nullopt);
  /// Takes the engine away, which fails with `why`, and waits for those who use it. Nothing if there was
  /// none. *ret_whole: the generation was not lost, until now.
  std::shared_ptr<collective::Engine> take_engine(const Status& why, bool* ret_whole = nullptr);
  Status why_no_engine() const;

  session::Assignment assignment() const;
  hvd_membership_info place() const;
  uint64_t generation() const;
  /// Whom a process set means here; `member`: this worker has to be one. Throws Error(HVD_INVALID).
  std::shared_ptr<const SetPlace> place_in(ProcessSet& set, bool member) const;

 private:
  friend class EngineUse;

  /// Returns when no use is held. Under the lock, while the engine can't be had.
  void wait_unused(std::unique_lock<std::mutex>& lock);
  void leave();

  mutable std::mutex mutex_;
  // Written while no use is held, so that who holds one reads them without the lock.
  session::Assignment assignment_;
  hvd_membership_info place_{};
  std::shared_ptr<collective::Engine> engine_;
  // How many uses are held, and whether there can be more. A use takes no lock: it counts itself
  // as long as the engine can be had. Whoever takes the engine away sees all of those in the count.
  static constexpr uint32_t kOpen = uint32_t{1} << 31;
  std::atomic<uint32_t> uses_{0};
  std::condition_variable unused_;
  std::optional<Loss> loss_;
  std::optional<Status> closed_;
};

inline const hvd_membership_info& EngineUse::place() const { return owner_->place_; }

}  // namespace hvd::elastic
