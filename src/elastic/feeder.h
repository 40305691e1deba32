// A worker that waits for its place is fed with the last commit of a member.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/loop.h"
#include "session/session.h"
#include "state/feed.h"
#include "wire/channel.h"
#include "wire/names.h"

namespace hvd::elastic {

/// A thread of low priority. It goes on until it is ended: as commits come it takes what has changed.
class Feeder {
 public:
  struct Fed {
    uint64_t source = 0, revision = 0, bytes = 0, lacking = 0;
    std::string failure;
  };
  /// Once for each source, on its thread: this worker may be given its place, or can't be fed.
  using Report = std::function<void(const Fed& fed)>;

  /// reads_others: it may read the memory of processes of this machine.
  Feeder(uint64_t worker, bool reads_others, LoggerPtr logger, Report report);
  Feeder(const Feeder&) = delete;
  Feeder& operator=(const Feeder&) = delete;
  ~Feeder();

  /// From now on by this one. Any thread.
  void feed(const session::FeedInfo& info);
  /// Ends it, and gives what has come.
  state::FeedCache take();

 private:
  void begin(const session::FeedInfo& info);
  void dial();
  void connected(uint64_t dial, std::shared_ptr<wire::Channel> channel, const Status& why);
  void closed();
  void received(std::span<const uint8_t> frame);
  void ask(uint64_t known);
  void take_commit(const wire::FeedCommitT& told);
  void take_piece(const wire::FeedPieceT& told);
  void go_on();
  void read_some();
  void request_some();
  void pass_done();
  void tell(const std::string& failure);
  template <class Body>
  void send(Body body);

  const uint64_t worker_;
  const bool reads_others_;
  const LoggerPtr logger_;
  const Report report_;

  // Of its thread.
  session::FeedInfo info_;
  uint64_t dials_ = 0;  // the newest attempt to connect
  std::shared_ptr<wire::Channel> channel_;
  state::FeedCache cache_;
  state::FeedCommit commit_;                      // the newest one known
  std::vector<state::FeedCache::Piece> lacking_;  // of it, when this pass began
  size_t next_ = 0, under_way_ = 0;
  bool direct_ = false, asked_ = false;
  uint64_t moved_ = 0, pass_ = 0;
  Time pass_began_{};
  std::unique_ptr<state::FeedProgress> progress_;
  bool told_ = false, joins_ = false;
  std::unique_ptr<Loop::Timer> timer_;
  Loop loop_;  // ends first
};

}  // namespace hvd::elastic
