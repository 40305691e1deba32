// The generation that a worker is in: its assignment, its engine, and how it was lost.
#pragma once

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
class EngineUse {
 public:
  EngineUse(CurrentGeneration* owner, std::shared_ptr<collective::Engine> engine)
      : owner_(owner), engine_(std::move(engine)) {}
  EngineUse(const EngineUse&) = delete;
  EngineUse& operator=(const EngineUse&) = delete;
  ~EngineUse();
  explicit operator bool() const { return engine_ != nullptr; }
  collective::Engine* operator->() const { return engine_.get(); }
  collective::Engine& operator*() const { return *engine_; }

 private:
  CurrentGeneration* const owner_;
  std::shared_ptr<collective::Engine> engine_;
};

/// Thread-safe. Calls nobody but the engine, and that without its lock.
class CurrentGeneration {
 public:
  /// An engine that begins after the close has failed already.
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

  mutable std::mutex mutex_;
  session::Assignment assignment_;
  hvd_membership_info place_{};
  std::shared_ptr<collective::Engine> engine_;
  int uses_ = 0;
  std::condition_variable unused_;
  std::optional<Loss> loss_;
  std::optional<Status> closed_;
};

}  // namespace hvd::elastic
